"""Decoding in passes with fMLLR: each pass adapts the features of every speaker to the words of the pass before.

The first pass is that of the speaker-independent twin, which also scores speakers with too little speech in all passes.
The transforms of the last pass are kept as Kaldi's scripts keep them: ``trans.ark`` and ``trans.scp`` by speaker, and
``spk2utt``.

Axes: T frames, F features, D projected values, P pdfs.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from speech3.decode.graph import DecodingGraph
from speech3.decode.output import write_hypotheses
from speech3.decode.search import Decoding, without_words
from speech3.decode.trained_model import BEAM, RETRY_BEAM, SAT, TrainedModel
from speech3.errors import DataError, FormatError, MismatchError, SettingError, counted, listed
from speech3.hmm import (
    ADAPTED,
    Adapted,
    Estimated,
    FmllrStats,
    FrameScorer,
    Gmm,
    Projected,
    ProjectedGmm,
    Projection,
    Scorer,
    Workers,
    check_transforms,
    read_transforms,
    sat,
    speaker_transforms,
    train,
    usable_transcripts,
    write_transforms,
)
from speech3.io import DECODE_FILE, MODEL_FILE
from speech3.language import Lexicon
from speech3.runtime import say

TRANSFORMS, TRANSFORMS_INDEX, SPK2UTT = "trans.ark", "trans.scp", "spk2utt"
PASS = "pass"  # and its number: the directories of the passes before the last, in that of a decoding
_MIN_GAIN = 1.0  # in log likelihood per frame (recipes/minilibri/RESULTS.md)
_NO_WORDS = "no words that can be aligned"
SEVERAL = "a transform hardly raises the likelihood, so there may be several speakers"
_MOST_UNKNOWN = 0.5  # of the words of another model
_ROUNDS = 2  # of alignment and transforms along given words


@dataclass(frozen=True, eq=False)
class EitherScorer(FrameScorer):
    """Scores projected features whose last value says whether they are adapted: 1, or 0 for the twin."""

    adapted: Gmm
    twin: Gmm

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        adapted = len(feats_TD) > 0 and feats_TD[0, -1] > 0
        return (self.adapted if adapted else self.twin).loglikes(np.ascontiguousarray(feats_TD[:, :-1]), pdfs)


class Marked(Mapping[str, np.ndarray]):
    """Projected features, adapted where the speaker has a transform, for `EitherScorer`: (T, D + 1)."""

    def __init__(self, feats: Projected) -> None:
        self.projected = feats

    def __getitem__(self, utterance: str) -> np.ndarray:
        feats_TD = self.projected[utterance]
        mark = float(self.projected.speaker_of[utterance] in self.projected.transforms)
        return np.concatenate([feats_TD, np.full((len(feats_TD), 1), mark, np.float32)], axis=1)

    def __iter__(self) -> Iterator[str]:
        return iter(self.projected)

    def __len__(self) -> int:
        return len(self.projected)


@dataclass(eq=False)
class KnownSpeakers:
    """Statistics of speakers from earlier recordings, and the transforms from these."""

    stats: dict[str, FmllrStats] = field(default_factory=dict)
    transforms: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, stats: Mapping[str, FmllrStats], transforms: Mapping[str, np.ndarray]) -> None:
        """Add the statistics of another recording, and replace the transforms."""
        for speaker, each in stats.items():
            self.stats[speaker] = each + self.stats[speaker] if speaker in self.stats else each
        self.transforms.update(transforms)

    def forget(self, speaker: str) -> None:
        self.stats.pop(speaker, None)
        self.transforms.pop(speaker, None)


def check_speaker(speaker: object) -> None:
    """Refuse what is not the name of a speaker, nor None."""
    if speaker is not None and (not isinstance(speaker, str) or not speaker.strip()):
        raise SettingError(f"speaker={speaker!r}: not a name; pass a string, or None if it is not known who speaks")


@dataclass(frozen=True, eq=False)
class SpeakerModel:
    """A model of `hmm.sat` for decoding in passes; `recognizer` is its twin, as it was loaded.

    `network`: the one that reads the features adapted by this model, and makes the last pass; None: the model itself.
    """

    recognizer: TrainedModel
    adapted: Adapted
    network: TrainedModel | None = None

    @property
    def _scorer(self) -> ProjectedGmm:
        assert isinstance(self.recognizer.scorer, ProjectedGmm)
        return self.recognizer.scorer

    @property
    def _directory(self) -> Path:
        """Where the settings of the passes after the first are; before they are tuned, those of the first count."""
        directory = self.recognizer.directory / ADAPTED
        return directory if (directory / DECODE_FILE).exists() else self.recognizer.directory

    def recognizer_with(self, graph: DecodingGraph | None) -> TrainedModel:
        """The recogniser of the passes after the first, for `Marked` features."""
        return self._adapted(EitherScorer(self.adapted.gmm, self.twin), graph)

    def recognizer_of(self, transform_DV: np.ndarray | None) -> TrainedModel:
        """The recogniser of one speaker; without a transform the twin, or the network on features not adapted."""
        if self.network:  # with its graph, which would be read again for each speaker
            return replace(self.network, transform=transform_DV, chosen_graph=self.network.graph)
        if transform_DV is None:
            return self.recognizer
        return self._adapted(ProjectedGmm(self.adapted.gmm, self.projection, transform_DV), self.recognizer.graph)

    def _adapted(self, scorer: Scorer, graph: DecodingGraph | None) -> TrainedModel:
        """The recogniser with another scorer, the settings of the passes after the first, and its own graphs."""
        settings, graphs = self._directory, self.recognizer.directory
        return replace(self.recognizer, scorer=scorer, directory=settings, chosen_graph=graph, graphs=graphs)

    @property
    def projection(self) -> Projection:
        """LDA and MLLT."""
        return self._scorer.projection

    @property
    def twin(self) -> Gmm:
        return self._scorer.gmm

    def adapted_to(
        self,
        feats: Mapping[str, np.ndarray],
        speaker_of: Mapping[str, str],
        transforms: Mapping[str, np.ndarray],
        graph: DecodingGraph | None,
    ) -> tuple[TrainedModel, Marked]:
        """The recogniser of the passes after the first, and its features, adapted where the speaker has a transform."""
        return self.recognizer_with(graph), Marked(Projected(feats, speaker_of, self.projection, transforms))

    def transforms(
        self,
        feats: Mapping[str, np.ndarray],
        speaker_of: Mapping[str, str],
        words: Mapping[str, str],
        earlier: Mapping[str, np.ndarray],
        jobs: int = 1,
        known: Mapping[str, FmllrStats] | None = None,
    ) -> tuple[Estimated, dict[str, FmllrStats]]:
        """Estimate the transforms of all speakers along the alignment of words, such as those of the pass before.

        Utterances without words or that cannot be aligned take no part. Speakers without an `earlier` transform, one of
        the pass before, are aligned by the twin, and posteriors are the twin's; the others by the adapted GMMs on their
        adapted features. Statistics of earlier recordings, `known`, are added, but not to those that are returned.
        """
        hmm, adapted, twin = self.recognizer.hmm, self.adapted, self.twin
        usable = usable_transcripts(words, hmm.lexicon, [each for each in feats if words.get(each)], strict=False)
        stats: dict[str, FmllrStats] = {}
        found = Estimated(dict(earlier), {}, {})
        projected = Projected(feats, speaker_of, self.projection, earlier)
        for has_one, aligning, by in ((False, twin, twin), (True, adapted.gmm, None)):
            chosen = {key: each for key, each in usable.words.items() if (speaker_of[key] in earlier) == has_one}
            if not chosen:
                continue
            with Workers(chosen, projected, jobs, speaker_of) as workers:
                workers.run(train.realign, hmm, aligning, BEAM, RETRY_BEAM, 0.1, "alignment for transforms")
                parts = workers.run(sat.fmllr_stats, hmm, adapted.gmm, by, "statistics of speakers")
                own = {speaker: each for part in parts for speaker, each in part.items()}
                total = {key: each + known[key] if known and key in known else each for key, each in own.items()}
                estimated = self.estimated(total, earlier)
                if not has_one:
                    gains = workers.run(sat.likelihood_gains, hmm, adapted.gmm, twin, estimated.transforms)
                    for speaker in [key for part in gains for key, gain in part.items() if gain < _MIN_GAIN]:
                        del estimated.transforms[speaker]
                        estimated.without[speaker] = SEVERAL
            stats |= own
            found.transforms.update(estimated.transforms)
            found.without.update(estimated.without)
            found.frames.update(estimated.frames)
        return found, stats

    def estimated(self, stats: Mapping[str, FmllrStats], earlier: Mapping[str, np.ndarray]) -> Estimated:
        """The transforms of the speakers who have statistics; those who get none keep their earlier one."""
        adapted = self.adapted
        least, prior = adapted.min_frames, adapted.prior_frames
        found, without = speaker_transforms(stats, adapted.prior, earlier, min_frames=least, prior_frames=prior)
        frames = {speaker: each.count for speaker, each in stats.items()}
        return Estimated({**{key: earlier[key] for key in stats if key in earlier}, **found}, without, frames)


def speaker_model(recognizer: TrainedModel) -> SpeakerModel | None:
    """The model for decoding in passes; None if the recogniser's model does not adapt to speakers."""
    adapted = recognizer.adapted
    return None if adapted is None else SpeakerModel(recognizer, adapted)


def network_speakers(recognizer: TrainedModel) -> SpeakerModel | None:
    """The model that adapts a network's features to speakers; None if it reads no such features.

    Raises `Speech3Error`: the model directory has no such model.
    """
    if recognizer.sat is None:
        return None
    if recognizer.sat.adapted is None:
        raise FormatError(f"{recognizer.sat.directory}: does not adapt to speakers; restore the recipe's model sat")
    return SpeakerModel(recognizer.sat, recognizer.sat.adapted, recognizer)


def say_speakers(speaker_of: Mapping[str, str], found: Estimated) -> None:
    """Print how many speakers are adapted to, and whether it is known who speaks."""
    speakers = set(speaker_of.values())
    remedy = "list speakers in the utt2spk of a data directory, or let `speech3 speakers` find them"
    if len(speaker_of) > 1 and len(speakers) == len(speaker_of):
        say(f"  every utterance has a speaker of its own, so each is adapted to by itself; {remedy}")
    elif len(speaker_of) > 1 and len(speakers) == 1:
        say(f"  all utterances are of one speaker, {next(iter(speakers))}; if they are not, {remedy}")
    if without := sorted(speakers - found.transforms.keys()):
        reasons = (f"{speaker} ({found.without.get(speaker, _NO_WORDS)})" for speaker in without)
        say(f"  {len(without)} of {len(speakers)} speakers are not adapted to: {listed(reasons, 3)}")


def write_speakers(out: Path, transforms: Mapping[str, np.ndarray], speaker_of: Mapping[str, str]) -> None:
    """Write ``trans.ark``, ``trans.scp`` and ``spk2utt`` into a directory."""
    write_transforms(out / TRANSFORMS, transforms, out / TRANSFORMS_INDEX, out / SPK2UTT, speaker_of)


def forget_passes(out: Path) -> None:
    """Remove the passes of an earlier decoding, and the transforms of its speakers."""
    passes = [path for path in out.glob(f"{PASS}*") if path.name.removeprefix(PASS).isdecimal()]
    for path in (*passes, out / SAT, out):
        # Else `spk2utt` belongs to something else, and the transforms to a model's training.
        if (path / TRANSFORMS).exists() and not (path / MODEL_FILE).exists():
            written = (SPK2UTT, TRANSFORMS_INDEX, TRANSFORMS, *(("hyp.txt",) if path in passes else ()))
            for name in written:
                (path / name).unlink(missing_ok=True)
        if path in passes and path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def keep_speakers(out: Path, feats: Mapping[str, np.ndarray]) -> None:
    """Write the transforms with which features are adapted, if they are."""
    if isinstance(feats, Marked):
        write_speakers(out, feats.projected.transforms, feats.projected.speaker_of)


def read_speakers(path: Path, dim: int) -> dict[str, np.ndarray]:
    """The transforms of a directory or file that `write_speakers` or Kaldi wrote; refused if of another dimension."""
    found = read_transforms(path)
    check_transforms(found, dim, path)
    return found


@dataclass(frozen=True, eq=False)
class OtherWords:
    """What another model recognised in the utterances, for speakers to be adapted to; `path` is the file that has it.

    A better model's words give better transforms than the passes of the GMMs (recipes/minilibri/RESULTS.md).
    """

    path: Path
    by_utterance: Mapping[str, str]

    def check(self, utterances: Collection[str], lexicon: Lexicon) -> dict[str, str]:
        """The words of these utterances; raises `Speech3Error` if there are none, or most are not in the lexicon."""
        words = {key: self.by_utterance[key] for key in utterances if key in self.by_utterance}
        if not self.by_utterance:
            raise DataError(f"{self.path}: is empty; pass what another model recognised in these recordings")
        if not words:
            raise MismatchError(
                f"{self.path}: has words of other utterances ({listed(sorted(self.by_utterance), 3)}) than the data"
                f" ({listed(sorted(utterances), 3)}); pass what was recognised in these recordings"
            )
        said = Counter(word for each in words.values() for word in each.split())
        unknown = Counter({word: count for word, count in said.items() if word not in lexicon.by_word})
        if unknown.total() > _MOST_UNKNOWN * said.total():
            raise MismatchError(
                f"{self.path}: {unknown.total():,} of its {said.total():,} words are not in the model's lexicon"
                f" ({listed((word for word, _ in unknown.most_common()), 5)}); pass the words of a model with the same"
                " vocabulary"
            )
        return words

    def usable(self, utterances: Collection[str], lexicon: Lexicon) -> dict[str, str]:
        """What `check` returns; it is said what takes no part in adaptation."""
        words = self.check(utterances, lexicon)
        reasons = usable_transcripts(words, lexicon, words, strict=False).bad
        reasons |= {key: "has no line" for key in utterances if key not in words}
        if reasons:
            shown = listed((f"{key} ({why})" for key, why in sorted(reasons.items())), 3)
            who = f"{counted(len(reasons), 'utterance')} {'takes' if len(reasons) == 1 else 'take'}"
            say(f"  {self.path}: {who} no part in adaptation: {shown}")
        return words


# In place of the earlier passes: transforms that were estimated before, the words of another model, or transcripts,
# along which speakers are adapted as far as they can be aligned.
Known = Path | OtherWords | Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Pass:
    """A pass before the last: what it found (None if that was known), and the transforms and statistics from it."""

    number: int
    found: Decoding | None
    estimated: Estimated
    stats: Mapping[str, FmllrStats]


def passes_before_last(
    model: SpeakerModel,
    feats: Mapping[str, np.ndarray],
    speaker_of: Mapping[str, str],
    *,
    graph: DecodingGraph | None = None,
    jobs: int = 1,
    silent: Set[str] = frozenset(),
    first: Mapping[str, str] | None = None,
    known: KnownSpeakers | None = None,
) -> Iterator[Pass]:
    """Run all passes but the last, one after another, through the model's graph or another one.

    The words of the `first` pass are given if it has been run already. Utterances that are digital silence have no
    words. If all speakers are `known`, the first pass is adapted to them, and is followed by the last.
    """
    graph, known = graph or model.recognizer.graph, known or KnownSpeakers()
    transforms = {each: known.transforms[each] for each in speaker_of.values() if each in known.transforms}
    all_known = len(transforms) == len(set(speaker_of.values()))
    for number in range(1, min(model.adapted.passes, 2 if all_known else model.adapted.passes)):
        found = None
        if number > 1 or first is None:
            using, given = model.recognizer, feats
            if transforms:
                using, given = model.adapted_to(feats, speaker_of, transforms, graph)
            found = without_words(using.decode(given, jobs, graph), silent)
            words: Mapping[str, str] = {each.utterance: " ".join(each.units) for each in found.hypotheses}
        else:
            words = first
        estimated, stats = model.transforms(feats, speaker_of, words, transforms, jobs, known.stats)
        transforms = estimated.transforms
        yield Pass(number, found, estimated, stats)


def last_transforms(
    model: SpeakerModel,
    feats: Mapping[str, np.ndarray],
    speaker_of: Mapping[str, str],
    jobs: int = 1,
    silent: Set[str] = frozenset(),
    keep: Callable[[Pass], None] = lambda each: None,
) -> Mapping[str, np.ndarray]:
    """Run all passes but the last, each of which `keep` gets; return the transforms for the last pass."""
    transforms: Mapping[str, np.ndarray] = {}
    for each in passes_before_last(model, feats, speaker_of, jobs=jobs, silent=silent):
        keep(each)
        if each.number == 1:
            say_speakers(speaker_of, each.estimated)
        transforms = each.estimated.transforms
    return transforms


def before_last_pass(
    model: SpeakerModel,
    feats: Mapping[str, np.ndarray],
    speaker_of: Mapping[str, str],
    place: Callable[[int], Path],
    jobs: int = 1,
    silent: Set[str] = frozenset(),
) -> tuple[TrainedModel, Mapping[str, np.ndarray]]:
    """Run all passes but the last; return the recogniser of the last pass, and the features for it.

    `place`: the directory for what a pass found: ``hyp.txt``, and the transforms from it (`write_speakers`).
    """

    def keep(each: Pass) -> None:
        assert each.found is not None
        write_hypotheses(place(each.number) / "hyp.txt", each.found)
        write_speakers(place(each.number), each.estimated.transforms, speaker_of)

    return _last_pass(model, feats, speaker_of, last_transforms(model, feats, speaker_of, jobs, silent, keep))


def adapt(
    model: SpeakerModel, feats: Mapping[str, np.ndarray], speaker: str, known: KnownSpeakers | None = None
) -> TrainedModel:
    """The recogniser adapted to the one speaker of these utterances, to whose statistics they are added."""
    passes = list(passes_before_last(model, feats, dict.fromkeys(feats, speaker), known=known))
    if not passes:
        return model.recognizer_of(None)
    if known is not None:
        known.add(passes[-1].stats, passes[-1].estimated.transforms)
    return model.recognizer_of(passes[-1].estimated.transforms.get(speaker))


def transforms_along(
    model: SpeakerModel,
    feats: Mapping[str, np.ndarray],
    speaker_of: Mapping[str, str],
    words: Mapping[str, str],
    jobs: int = 1,
) -> Mapping[str, np.ndarray]:
    """The speakers' transforms along words, aligned first by the twin, then with the transforms from that."""
    transforms: Mapping[str, np.ndarray] = {}
    for _ in range(_ROUNDS):
        estimated, _ = model.transforms(feats, speaker_of, words, transforms, jobs)
        transforms = estimated.transforms
    say_speakers(speaker_of, estimated)
    return transforms


def with_known(
    model: SpeakerModel, feats: Mapping[str, np.ndarray], speaker_of: Mapping[str, str], known: Known, jobs: int = 1
) -> tuple[TrainedModel, Mapping[str, np.ndarray]]:
    """The recogniser and the features of a pass that needs no earlier ones (see `known_transforms`)."""
    return _last_pass(model, feats, speaker_of, known_transforms(model, feats, speaker_of, known, jobs))


def _last_pass(
    model: SpeakerModel,
    feats: Mapping[str, np.ndarray],
    speaker_of: Mapping[str, str],
    transforms: Mapping[str, np.ndarray],
) -> tuple[TrainedModel, Mapping[str, np.ndarray]]:
    if not transforms:
        return model.recognizer, feats
    return model.adapted_to(feats, speaker_of, transforms, model.recognizer.graph)


def known_transforms(
    model: SpeakerModel, feats: Mapping[str, np.ndarray], speaker_of: Mapping[str, str], known: Known, jobs: int = 1
) -> Mapping[str, np.ndarray]:
    """Transforms from a file or directory (`read_speakers`), or estimated along the words of another model.

    Raises `Speech3Error`: they are of other speakers, or of other utterances, or most words are not in the lexicon.
    """
    if isinstance(known, OtherWords):
        known = known.usable(feats.keys(), model.recognizer.hmm.lexicon)
    if isinstance(known, Mapping):
        return transforms_along(model, feats, speaker_of, known, jobs)
    path, transforms = known, read_speakers(known, model.projection.dim)
    if not transforms:
        raise DataError(f"{path}: is empty; pass the transforms of these speakers")
    speakers = set(speaker_of.values())
    if not speakers & set(transforms):
        raise MismatchError(
            f"{path}: has transforms of other speakers ({listed(sorted(transforms), 3)}) than the data"
            f" ({listed(sorted(speakers), 3)}); pass the transforms of these speakers"
        )
    if unknown := sorted(speakers - set(transforms)):
        say(f"  {path}: no transform of {listed(unknown, 3)}: their utterances are not adapted")
    return transforms
