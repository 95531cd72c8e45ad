"""Decoding in passes with fMLLR: each pass adapts the features of every speaker to the words of the pass before.

The first pass is that of the speaker-independent twin, which is the model itself. Speakers with too little speech keep
it in all passes: their utterances are scored by the twin. The transforms of the last pass are kept as Kaldi's scripts
keep them: ``trans.ark`` and ``trans.scp`` by speaker, and ``spk2utt``.

Axes: T frames, F features, D projected values, P pdfs.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from speech3.decode.graph import DECODE_SETTINGS, Graph
from speech3.decode.output import write_hypotheses
from speech3.decode.recognizer import Recognizer
from speech3.decode.search import without_words
from speech3.decode.trained_model import BEAM, RETRY_BEAM
from speech3.errors import MismatchError, listed
from speech3.hmm import (
    ADAPTED,
    Adapted,
    Estimated,
    FmllrSettings,
    FrameScorer,
    Gmm,
    Projected,
    ProjectedGmm,
    Projection,
    Workers,
    check_dims,
    load_adapted,
    merged_estimates,
    prior_stats,
    read_transforms,
    sat,
    train,
    usable_transcripts,
    write_transforms,
)
from speech3.runtime import say

TRANSFORMS, TRANSFORMS_INDEX, SPK2UTT = "trans.ark", "trans.scp", "spk2utt"


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
        self._feats = feats

    def __getitem__(self, utterance: str) -> np.ndarray:
        feats_TD = self._feats[utterance]
        mark = float(self._feats.speaker_of[utterance] in self._feats.transforms)
        return np.concatenate([feats_TD, np.full((len(feats_TD), 1), mark, np.float32)], axis=1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._feats)

    def __len__(self) -> int:
        return len(self._feats)


@dataclass(frozen=True, eq=False)
class SpeakerModel:
    """A model of `hmm.sat` for decoding in passes; `recognizer` is its twin, as it was loaded."""

    recognizer: Recognizer
    adapted: Adapted

    @property
    def _scorer(self) -> ProjectedGmm:
        assert isinstance(self.recognizer.scorer, ProjectedGmm)
        return self.recognizer.scorer

    def recognizer_with(self, graph: Graph) -> Recognizer:
        """The recogniser of the passes after the first.

        Its settings are in the directory `ADAPTED` of the model; before they are tuned, those of the first pass count.
        """
        scorer = EitherScorer(self.adapted.gmm, self._scorer.gmm)
        directory = self.recognizer.directory / ADAPTED
        if not (directory / DECODE_SETTINGS).exists():
            self.recognizer.settings.save(directory)
        return replace(self.recognizer, scorer=scorer, directory=directory, chosen_graph=graph)

    @property
    def projection(self) -> Projection:
        """LDA and MLLT."""
        return self._scorer.projection

    def projected(
        self, feats: Mapping[str, np.ndarray], speaker_of: Mapping[str, str], transforms: Mapping[str, np.ndarray]
    ) -> Projected:
        """Projected features, adapted where the speaker has a transform."""
        return Projected(feats, speaker_of, self.projection, transforms)

    def transforms(
        self,
        feats: Mapping[str, np.ndarray],
        speaker_of: Mapping[str, str],
        words: Mapping[str, str],
        earlier: Mapping[str, np.ndarray],
        jobs: int = 1,
    ) -> Estimated:
        """Estimate the transforms of all speakers along the alignment of words, such as those of the pass before.

        Parameters
        ----------
        words
            The words of each utterance; utterances without words or that cannot be aligned take no part.
        earlier
            Transforms of the pass before. Speakers who have none are aligned by the twin, and posteriors are the
            twin's; the others by the adapted GMMs on their adapted features.
        """
        hmm, adapted, twin = self.recognizer.hmm, self.adapted, self._scorer.gmm
        usable = usable_transcripts(words, hmm.lexicon, [each for each in feats if words.get(each)], strict=False)
        prior = prior_stats(adapted.gmm, adapted.frames) if adapted.prior_frames else None
        settings = FmllrSettings(adapted.least_frames, adapted.prior_frames, prior)
        found = Estimated({}, {}, {})
        for known, aligning, by in ((False, twin, twin), (True, adapted.gmm, None)):
            chosen = {key: each for key, each in usable.words.items() if (speaker_of[key] in earlier) == known}
            if not chosen:
                continue
            with Workers(chosen, self.projected(feats, speaker_of, earlier), jobs, speaker_of) as workers:
                workers.run(train.realign, hmm, aligning, BEAM, RETRY_BEAM, 0.1, "alignment for transforms")
                parts = workers.run(sat.estimate_transforms, hmm, adapted.gmm, settings, by, "transforms")
            found = merged_estimates([found, merged_estimates(parts)])
        kept = {speaker: each for speaker, each in earlier.items() if speaker not in found.transforms}
        return replace(found, transforms=found.transforms | kept)


def speaker_model(recognizer: Recognizer) -> SpeakerModel | None:
    """The model for decoding in passes; None if the recogniser's model does not adapt to speakers."""
    if not isinstance(recognizer.scorer, ProjectedGmm) or not (recognizer.directory / ADAPTED).is_dir():
        return None
    return SpeakerModel(recognizer, load_adapted(recognizer.directory))


def say_speakers(speaker_of: Mapping[str, str], found: Estimated) -> None:
    """Print how many speakers are adapted to, and whether it is known who speaks."""
    speakers = set(speaker_of.values())
    if len(speaker_of) > 1 and len(speakers) == len(speaker_of):
        say("  every utterance has a speaker of its own, so each is adapted to by itself; list speakers in utt2spk")
    elif len(speaker_of) > 1 and len(speakers) == 1:
        say(f"  all utterances are of one speaker, {next(iter(speakers))}; if they are not, list speakers in utt2spk")
    if found.without:
        reasons = (f"{speaker} ({why})" for speaker, why in sorted(found.without.items()))
        say(f"  {len(found.without)} of {len(speakers)} speakers are not adapted to: {listed(reasons, 3)}")


def write_speakers(out: Path, transforms: Mapping[str, np.ndarray], speaker_of: Mapping[str, str]) -> None:
    """Write ``trans.ark``, ``trans.scp`` and ``spk2utt`` into a directory."""
    write_transforms(out / TRANSFORMS, transforms, out / TRANSFORMS_INDEX, out / SPK2UTT, speaker_of)


def read_speakers(path: Path, dim: int) -> dict[str, np.ndarray]:
    """The transforms of a directory or file that `write_speakers` or Kaldi wrote; see `kaldi.transforms`.

    Raises
    ------
    Speech3Error
        There are none, or they are of another dimension.
    """
    found = read_transforms(path)
    check_dims(found, dim, path)
    return found


def before_last_pass(
    model: SpeakerModel,
    feats: Mapping[str, np.ndarray],
    speaker_of: Mapping[str, str],
    place: Callable[[int], Path],
    jobs: int = 1,
    silent: Set[str] = frozenset(),
) -> tuple[Recognizer, Mapping[str, np.ndarray]]:
    """Run all passes but the last; return the recogniser of the last pass, and the features for it.

    Parameters
    ----------
    place
        The directory for what a pass found: ``hyp.txt``, and the transforms from it (`write_speakers`).
    silent
        Utterances that are digital silence, which have no words.
    """
    using, given = model.recognizer, feats
    last = model.recognizer_with(model.recognizer.graph)
    transforms: dict[str, np.ndarray] = {}
    for number in range(1, model.adapted.passes):
        found = without_words(using.decode(given, jobs), silent)
        write_hypotheses(place(number) / "hyp.txt", found)
        words = {each.utterance: " ".join(each.units) for each in found.hypotheses}
        estimated = model.transforms(feats, speaker_of, words, transforms, jobs)
        if number == 1:
            say_speakers(speaker_of, estimated)
        transforms = estimated.transforms
        write_speakers(place(number), transforms, speaker_of)
        using, given = last, Marked(model.projected(feats, speaker_of, transforms))
    return using, given


def with_transforms(
    model: SpeakerModel, feats: Mapping[str, np.ndarray], speaker_of: Mapping[str, str], path: Path
) -> tuple[Recognizer, Mapping[str, np.ndarray]]:
    """The recogniser and the features of a pass with transforms from a file or directory (`read_speakers`)."""
    transforms = read_speakers(path, model.projection.dim)
    speakers = set(speaker_of.values())
    if not speakers & set(transforms):
        raise MismatchError(
            f"{path}: has transforms of other speakers ({listed(sorted(transforms), 3)}) than the data"
            f" ({listed(sorted(speakers), 3)}); give those of these speakers"
        )
    if unknown := sorted(speakers - set(transforms)):
        say(f"  {path}: no transform of {listed(unknown, 3)}: their utterances are not adapted")
    return model.recognizer_with(model.recognizer.graph), Marked(model.projected(feats, speaker_of, transforms))
