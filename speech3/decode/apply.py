"""Apply recognisers to a data directory: features, scores, decoding in passes.

Several models can score together: their log likelihoods are averaged, frame by frame and senone by senone. This is the
geometric mean of posteriors (Swietojanski, Ghoshal and Renals 2013; Kaldi's ``decode_score_fusion.sh``), which also
exists for the outputs of LF-MMI, which are not normalised. The models must have the same senones and frame rate; their
networks and features may differ.

Axes: T frames, F feature bins, K rows of scores, P pdfs.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np

from speech3.data import DataDir, audio, is_datadir
from speech3.decode.beam_search import NOT_NUMBERS
from speech3.decode.lattice_directory import Kept, WantedResults, decode_latticed
from speech3.decode.output import UtteranceParts, cut_long_utterances, write_decoding
from speech3.decode.search import Hypothesis, without_words
from speech3.decode.speaker_passes import (
    PASS,
    SPK2UTT,
    TRANSFORMS,
    Known,
    OtherWords,
    SpeakerModel,
    before_last_pass,
    forget_passes,
    keep_speakers,
    known_transforms,
    last_transforms,
    network_speakers,
    read_speakers,
    speaker_model,
    with_known,
    write_speakers,
)
from speech3.decode.trained_model import SAT, MeanScorer, TrainedModel, warn_of_rate
from speech3.errors import MOST_BAD, MismatchError, SettingError, Speech3Error, check_bad, listed
from speech3.features import extract, silent_in
from speech3.hmm import DataWaves, Gmm, Projected, ProjectedGmm, Segment, output_difference, read_ctm, read_spk2utt
from speech3.io import A_MODEL, ArkReader, write_ark
from speech3.runtime import check_output, progress, say, write_text

_SHOWN = 10
Model = TypeVar("Model", bound=TrainedModel)


class SideBySide(Mapping[str, np.ndarray]):
    """Several features of the same utterances, (T, D); read when they are needed."""

    def __init__(self, parts: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.parts = parts
        self.keys_ = [key for key in parts[0] if all(key in part for part in parts[1:])]

    def __getitem__(self, utterance: str) -> np.ndarray:
        feats = [part[utterance] for part in self.parts]
        if len({len(feats_TF) for feats_TF in feats}) > 1:
            raise MismatchError(
                f"{utterance}: has {' and '.join(str(len(feats_TF)) for feats_TF in feats)} frames in the features of"
                " the models; only models whose features have the same number of frames can score together"
            )
        return np.concatenate(feats, 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_)

    def __len__(self) -> int:
        return len(self.keys_)


def features_for(
    recognizer: TrainedModel,
    data: DataDir,
    jobs: int,
    out: Path,
    most_bad: float = MOST_BAD,
    known: Known | None = None,
) -> tuple[Mapping[str, np.ndarray], dict[str, str]]:
    """Extract the features that the model needs into ``out/feats``; also return why utterances have none.

    Recordings at another sampling rate are resampled. Channels may be different speakers, so a recording of a data
    directory that has several is refused unless the model's own features.yaml mixes them; in a folder they are mixed.
    For features adapted to speakers, the GMMs beside the network recognise all utterances first, unless `known` has
    the speakers' transforms or what another model recognised; ``out/sat`` then has the transforms, and
    ``out/sat/feats`` the features of the GMMs if the network has others, too.

    Raises
    ------
    Speech3Error
        More than `most_bad` of the utterances are bad; given features do not match those that the model was trained on;
        `known` for a network whose adapted features are given.
    """
    model = network_speakers(recognizer)
    if model and known and not data.recordings:
        given = f"--words {known.path}" if isinstance(known, OtherWords) else f"--transforms {known}"
        raise SettingError(
            f"{given}: {data.path} has no recordings, so its features are taken as they are; remove the option, or pass"
            " a directory with recordings"
        )
    if model and data.recordings:
        check_output(out / SAT, not_in=[A_MODEL], written=[TRANSFORMS])
        alone = recognizer.features.kind == "given"
        place = out if alone else out / SAT
        seen, skipped = features_for(model.recognizer, data, jobs, place, most_bad)
        speaker_of = {key: utterance.speaker for key, utterance in data.utterances.items()}
        adapted = _adapted(model, seen, speaker_of, silent_in(place / "feats"), jobs, known)
        write_speakers(out / SAT, adapted.transforms, speaker_of)
        if alone:
            return adapted, skipped
        feats, bad = features_for(recognizer.without_adapted, data, jobs, out, most_bad)
        return SideBySide([feats, adapted]), {**skipped, **bad}
    mixed = recognizer.features.mix_channels or not is_datadir(data.path)
    config = recognizer.features.model_copy(update={"resample": True, "mix_channels": mixed})
    if config.kind != "given":
        _warn_of_rates(data, config.sample_frequency or 0)
    report = extract(data, out / "feats", config, jobs, most_bad=most_bad)
    feats = ArkReader(out / "feats" / "feats.scp")
    if config.kind == "given":
        try:
            recognizer.scorer.loglikes(next(iter(feats.values()))[:1])
        except Speech3Error as error:
            raise error.restated(f"{data.path / 'feats.scp'}: {error}") from error
    return feats, report.skipped


def decoded_features(recognizer: TrainedModel, directory: Path) -> Mapping[str, np.ndarray]:
    """The features in a directory that `features_for` wrote, with the transforms that it estimated or was given."""
    feats, model, given = ArkReader(directory / "feats" / "feats.scp"), network_speakers(recognizer), directory / SAT
    if model is None or not (given / SPK2UTT).exists():
        return feats
    alone = recognizer.features.kind == "given"
    seen = feats if alone else ArkReader(given / "feats" / "feats.scp")
    transforms = read_speakers(given, model.projection.dim)
    adapted = Projected(seen, read_spk2utt(given / SPK2UTT), model.projection, transforms)
    return adapted if alone else SideBySide([feats, adapted])


def _adapted(
    model: SpeakerModel,
    feats: Mapping[str, np.ndarray],
    speaker_of: Mapping[str, str],
    silent: Set[str],
    jobs: int,
    known: Known | None,
) -> Projected:
    """Features adapted to the speakers, with what is known or by the words of all passes but the last."""
    if known:
        transforms = known_transforms(model, feats, speaker_of, known, jobs)
    else:
        say(f"adapting to speakers, with {model.recognizer.directory}")
        transforms = last_transforms(model, feats, speaker_of, jobs, silent)
    return Projected(feats, speaker_of, model.projection, transforms)


def _warn_of_rates(data: DataDir, model_hz: int) -> None:
    """Name the recordings whose rate is below the model's; of those that commands write only the first is looked at."""
    files = [value for value in data.recordings.values() if not value.rstrip().endswith("|")]
    lower: dict[int, list[str]] = {}
    for recording in progress(files or list(data.recordings.values())[:1], len(files) or 1, "sample rates"):
        try:
            rate_hz = audio.info(recording, directory=data.path).sample_rate_hz
        except Speech3Error:
            continue  # reading the recording will report the error
        if rate_hz < model_hz:
            lower.setdefault(rate_hz, []).append(recording)
    for rate_hz, recordings in sorted(lower.items()):
        warn_of_rate(listed(recordings, 1), rate_hz, model_hz)


def say_skipped(bad: Mapping[str, str], what: str) -> None:
    """Print which utterances were left out, and why; at most ten of them."""
    for utterance, reason in list(bad.items())[:_SHOWN]:
        say(f"{what}: {utterance}: {reason}")
    if len(bad) > _SHOWN:
        say(f"{what}: {len(bad) - _SHOWN} more")


def write_loglikes(recognizer: TrainedModel, feats: Mapping[str, np.ndarray], out: Path, bad: dict[str, str]) -> int:
    """Write ``loglikes.ark``, ``loglikes.scp`` and, if utterances are bad, ``bad.txt``; return the number of matrices.

    The matrices are float32 (K, P), with a row for every `Scorer.subsampling` frames; one is in memory at a time.
    Utterances whose scores are not finite are added to `bad`; more than 5 % of them are an error.
    """
    total = len(feats) + len(bad)

    def scores() -> Iterator[tuple[str, np.ndarray]]:
        for utterance, loglikes_TP in progress(recognizer.scores(feats), len(feats), "forward"):
            if not np.isfinite(loglikes_TP).all():
                bad[utterance] = NOT_NUMBERS
                check_bad(bad, total, str(out), "so far have no scores")
                continue
            yield utterance, np.asarray(loglikes_TP, np.float32)

    written = write_ark(out / "loglikes.ark", scores(), out / "loglikes.scp")
    if bad:
        write_text(out / "bad.txt", "".join(f"{utterance} {reason}\n" for utterance, reason in sorted(bad.items())))
    else:
        (out / "bad.txt").unlink(missing_ok=True)
    return written


def with_mean_scores(recognizer: Model, others: Sequence[TrainedModel], dims: Sequence[int] = ()) -> Model:
    """The first recogniser with the mean scores of all; its graph and its settings are used.

    `dims`: number of features of each model, which then lie side by side (`SideBySide`); empty: all have the same
    features.

    Raises `Speech3Error`: the senones, their tree, the frame rate or the kind of scores differ, or a model consists of
    GMMs.
    """
    for other in others:
        _check_together(recognizer, other)
    scorers = (recognizer.scorer, *(other.scorer for other in others))
    ends = np.cumsum([0, *dims]).tolist()
    columns = tuple(slice(*each) for each in pairwise(ends)) if dims else (slice(None),) * len(scorers)
    return replace(recognizer, scorer=MeanScorer(scorers, columns))


def features_of_all(
    recognizer: Model,
    others: Sequence[TrainedModel],
    data: DataDir,
    jobs: int,
    out: Path,
    known: Known | None = None,
) -> tuple[Model, Mapping[str, np.ndarray], dict[str, str]]:
    """The recogniser of all models, the features of all of them, and the reason for each utterance without features.

    Features are extracted into ``out/feats``, those of others that differ into ``out/with2/feats`` and so on. Raises
    what `with_mean_scores` and `features_for` raise.
    """
    for other in others:
        _check_together(recognizer, other)
    feats, skipped = features_for(recognizer, data, jobs, out, known=known)
    if all(same_features(recognizer, other) for other in others):
        return (with_mean_scores(recognizer, others) if others else recognizer), feats, skipped
    parts: list[Mapping[str, np.ndarray]] = [feats]
    for number, other in enumerate(others, 2):
        if same_features(recognizer, other):
            parts.append(feats)
            continue
        found, bad = features_for(other, data, jobs, out / f"with{number}", known=known)
        parts.append(found)
        skipped = {**bad, **skipped}
    dims = [next(iter(part.values())).shape[1] for part in parts]
    return with_mean_scores(recognizer, others, dims), SideBySide(parts), skipped


def same_features(recognizer: TrainedModel, other: TrainedModel) -> bool:
    return recognizer.features.of_values() == other.features.of_values()


def _check_together(one: TrainedModel, other: TrainedModel) -> None:
    names = f"{one.directory} and {other.directory} cannot score together"
    for each in (one, other):
        if isinstance(each.scorer, Gmm | ProjectedGmm):
            raise MismatchError(f"{names}: {each.directory} consists of GMMs; pass networks")
    rates = [each.features.frame_shift * each.scorer.subsampling for each in (one, other)]
    if rates[0] != rates[1]:
        raise MismatchError(
            f"{names}: one has scores every {rates[0]:g} ms, the other every {rates[1]:g} ms; pass models "
            f"with the same frame rate"
        )
    if fault := output_difference(one.outputs, other.outputs):
        raise MismatchError(f"{names}: {fault}; pass models trained on the senones of one model directory")
    if one.scorer.pseudo_likelihoods != other.scorer.pseudo_likelihoods:
        raise MismatchError(f"{names}: only one of them was trained with LF-MMI; their scores have different scales")


@dataclass(frozen=True, eq=False)
class DecodedData:
    """What was recognised: a hypothesis for each utterance, and the lattices that were made."""

    hypotheses: tuple[Hypothesis, ...]
    lattices: Kept


def decode_datadir(
    recognizer: TrainedModel,
    others: Sequence[TrainedModel],
    data: DataDir,
    out: Path,
    wanted: WantedResults,
    jobs: int,
    known: Path | OtherWords | None = None,
) -> DecodedData:
    """Recognise every utterance, and write the files listed in the help of `speech3 decode`.

    Parameters
    ----------
    others
        Models whose scores are averaged with the recogniser's.
    known
        Transforms of the speakers, or what another model recognised, in place of the passes before the last.

    Raises
    ------
    Speech3Error
        `known` for a model that does not adapt to speakers; also what `features_of_all`, `with_known` and
        `decode_latticed` raise.
    """
    given = not all(each.features.from_audio for each in (recognizer, *others))
    data, parts = (data, UtteranceParts()) if given else cut_long_utterances(data)
    # What speakers are adapted to, if it is known; checked before hours of audio are read.
    models = [each.sat or each for each in (recognizer, *others) if each.sat or each.adapted]
    if known and not models:
        option = f"--words {known.path}" if isinstance(known, OtherWords) else f"--transforms {known}"
        raise SettingError(f"{option}: {recognizer.path} does not adapt to speakers; remove the option")
    if isinstance(known, OtherWords):
        times = _times_beside(known.path) if parts.begins_s else {}
        known = replace(known, by_utterance=parts.divided(known.by_utterance, times))
        known.check(data.utterances, models[0].hmm.lexicon)
    forget_passes(out)
    together, feats, skipped = features_of_all(recognizer, others, data, jobs, out, known)
    # All passes but the last, if the model adapts to speakers.
    last, searched = together, feats
    speaker_of = {key: utterance.speaker for key, utterance in data.utterances.items()}
    adapting = speaker_model(together) if not others else None
    silent = silent_in(out / "feats")
    if adapting and known:
        last, searched = with_known(adapting, feats, speaker_of, known, jobs)
    elif adapting:
        last, searched = before_last_pass(adapting, feats, speaker_of, lambda n: out / f"{PASS}{n}", jobs, silent)
    keep_speakers(out, searched)
    # The last pass.
    decoding, kept = decode_latticed(last, searched, out, wanted, jobs)
    decoding = without_words(decoding, silent)
    waves = DataWaves(data, recognizer.features.sample_frequency)
    written = write_decoding(out, last, searched, decoding, jobs, parts, waves)
    say_skipped({**skipped, **decoding.failed}, "not decoded")
    say_skipped(kept.without, "no lattice")
    return DecodedData(written.hypotheses, kept)


def _times_beside(words: Path) -> Mapping[str, Sequence[Segment]]:
    """The CTM that decoding writes beside its hyp.txt, if it is there."""
    ctm = words.with_suffix(".ctm")
    if ctm.exists():
        return read_ctm(ctm)
    say(f"{ctm}: no such file, so the words of utterances that were cut cannot be divided among their parts")
    return {}
