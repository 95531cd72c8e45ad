"""Apply a recogniser to users' data: data directories and audio files.

The JSON output of `speech3 transcribe --json`.

Several models that score together: their scores are averaged, frame by frame and senone by senone.

Log likelihoods are averaged (log posteriors minus log priors, or the outputs of LF-MMI), which corresponds to the
geometric mean of posteriors: as in Kaldi's ``decode_score_fusion.sh`` and in Swietojanski, Ghoshal and Renals 2013,
"Revisiting hybrid and GMM-HMM system combination techniques". Unlike the arithmetic mean of posteriors it also exists
for the outputs of LF-MMI, which are not normalised. The models must have the same senones and frame rate; their
networks and features may differ.

Axes: T frames, D features of all models side by side, K rows of scores, P pdfs.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from speech3.data import DataDir, OnlineResampler, audio, checked_rate, checked_samples
from speech3.decode.beam_search import NOT_NUMBERS
from speech3.decode.output import LONG_S, Cut, cut_at_pauses, word_times
from speech3.decode.recognizer import Recognizer, Result, Word, result_of, warn_of_rate, words_of_segments
from speech3.errors import MOST_BAD, Speech3Error, check_bad
from speech3.features import extract, finish_features, silent_frames, static_features
from speech3.hmm import Gmm, Hmm, ProjectedGmm, Scorer, Segment, output_difference
from speech3.io import ArkReader, write_ark
from speech3.runtime import progress, say, write_text

_SHOWN = 10
_BLOCK_S = 10.0  # how much of a long recording is read at once


def features_for(
    recognizer: Recognizer, data: DataDir, jobs: int, out: Path, most_bad: float = MOST_BAD
) -> tuple[ArkReader, dict[str, str]]:
    """Extract the features that the model needs into ``out/feats``.

    Recordings at another sampling rate are resampled. Channels may be different speakers, so a recording with several
    is refused unless the model's own features.yaml mixes them.

    Returns
    -------
    The features, and for each utterance that has none the reason.

    Raises
    ------
    Speech3Error
        More than `most_bad` of the utterances are bad; given features do not match those that the model was trained on.
    """
    config = recognizer.features.model_copy(update={"resample": True})
    if data.recordings and config.kind != "given":
        _warn_of_first(recognizer, data)
    report = extract(data, out / "feats", config, jobs, most_bad=most_bad)
    feats = ArkReader(out / "feats" / "feats.scp")
    if config.kind == "given":
        try:
            recognizer.scorer.loglikes(next(iter(feats.values()))[:1])
        except Speech3Error as error:
            raise Speech3Error(f"{data.path / 'feats.scp'}: {error}") from error
    return feats, report.skipped


def _warn_of_first(recognizer: Recognizer, data: DataDir) -> None:
    recording = next(iter(data.recordings.values()))
    try:
        rate_hz = audio.info(recording, directory=data.path).sample_rate_hz
    except Speech3Error:
        return  # reading the recording will report the error
    warn_of_rate(recording, rate_hz, recognizer.features.sample_frequency or 0)


def say_skipped(bad: Mapping[str, str], what: str) -> None:
    """Print which utterances were left out, and why; at most ten of them."""
    for utterance, reason in list(bad.items())[:_SHOWN]:
        say(f"{what}: {utterance}: {reason}")
    if len(bad) > _SHOWN:
        say(f"{what}: {len(bad) - _SHOWN} more")


def write_loglikes(recognizer: Recognizer, feats: ArkReader, out: Path, bad: dict[str, str]) -> int:
    """Write ``loglikes.ark``, ``loglikes.scp`` and, if utterances are bad, ``bad.txt``; return the number of matrices.

    Utterances whose scores are not finite are added to `bad`.

    The matrices are float32 (K, P), with a row for every `Scorer.subsampling` frames. One utterance at a time is in
    memory.

    Raises
    ------
    Speech3Error
        More than 5 % of the utterances are bad.
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


@dataclass(frozen=True)
class Transcription:
    """The words recognised in a file, with their times if those were requested."""

    name: str
    text: str
    words: Sequence[Segment]
    duration_s: float


def transcribe(recognizer: Recognizer, files: Sequence[Path], *, times: bool = False) -> Iterator[Transcription]:
    """Recognise audio files, each as one utterance of a separate speaker; long files are cut at pauses.

    A recording longer than `long_recordings.LONG_S` is read in parts; a part that cannot be recognised is reported and
    left out.

    Raises
    ------
    Speech3Error
        A file is missing, unreadable, shorter than a frame, or could not be decoded; the message names it.
    """
    if isinstance(files, str | Path):
        raise Speech3Error(f"files={files!r}: pass a list of paths, even of one")
    if times:
        _ = recognizer.hmm  # raises its error before anything is recognised
    for path in files:
        name = str(path)
        _refuse_given(recognizer, name)
        about = audio.info(path)
        warn_of_rate(name, about.sample_rate_hz, recognizer.features.sample_frequency or 0)
        if about.claim:
            say(f"{name}: {about.claim}; the audio in the file is recognised")
        if about.channels > 1 and (why := audio.channel_mix(path).why):
            say(f"{name}: has {about.channels} channels: {why}")
        if about.duration_s <= LONG_S:
            wanted_hz = recognizer.features.sample_frequency
            sound = audio.read_file(path, sample_rate_hz=wanted_hz, resample=True, mix_channels=True)
            words, segments = _recognised(recognizer, name, *sound, times)
        else:
            blocks = audio.read_blocks(path, _BLOCK_S)
            parts, rate_hz = _parts(recognizer, blocks, about.sample_rate_hz)
            shown = progress(parts, int(about.duration_s), name, place=lambda cut: (int(cut.begin_s), ""))
            words, segments = _long(recognizer, name, shown, rate_hz, times)
        yield Transcription(name, " ".join(words), segments, about.duration_s)


def transcribe_samples(recognizer: Recognizer, samples: ArrayLike, rate_hz: Any) -> Result:
    """Recognise a recording in memory as `transcribe` does, with the time and confidence of each word.

    Parameters
    ----------
    samples
        One channel, as floats from -1 to 1 or as integers; see `speech3.data.resampling.checked_samples`.
    rate_hz
        Samples per second; the samples are resampled if this differs from the model's rate.

    Raises
    ------
    Speech3Error
        The samples are shorter than one frame; the samples or the rate are invalid; nothing could be decoded.
    """
    name, wave_S, rate_hz = "samples", checked_samples(samples), checked_rate(rate_hz)
    _refuse_given(recognizer, name)
    if not len(wave_S):
        raise Speech3Error("there are no samples: an empty recording cannot be recognised")
    times = isinstance(recognizer.outputs, Hmm)
    if len(wave_S) > LONG_S * rate_hz:
        found = _long(recognizer, name, *_parts(recognizer, [wave_S], rate_hz), times)
    else:
        found = _recognised(recognizer, name, *_at_its_rate(recognizer, wave_S, rate_hz), times)
    words, segments = found
    return result_of(words_of_segments(segments) or [Word(word, None, None, None) for word in words])


def _at_its_rate(recognizer: Recognizer, wave_S: np.ndarray, rate_hz: int) -> tuple[np.ndarray, int]:
    wanted_hz = recognizer.features.sample_frequency or rate_hz
    resampler = OnlineResampler(rate_hz, wanted_hz)
    return np.concatenate([resampler.accept(wave_S), resampler.finish()]), wanted_hz


def features_of_samples(
    recognizer: Recognizer, samples: ArrayLike, rate: int
) -> tuple[np.ndarray, tuple[np.ndarray, int]]:
    """Features (T, F) of a recording in memory, and its waveform (S,) at the model's rate with that rate.

    Raises
    ------
    Speech3Error
        The samples are shorter than one frame or silent; the samples or the rate are invalid.
    """
    wave_S, rate_hz = checked_samples(samples), checked_rate(rate)
    _refuse_given(recognizer, "samples")
    if not len(wave_S) or audio.is_silent(wave_S):
        raise Speech3Error("samples: are digital silence (all are equal); pass a recording with speech")
    wave_S, rate_hz = _at_its_rate(recognizer, wave_S, rate_hz)
    return _features_of(recognizer, "samples", wave_S, rate_hz), (wave_S, rate_hz)


_Found = tuple[tuple[str, ...], list[Segment]]  # the words, and their times if requested


def _parts(recognizer: Recognizer, blocks: Iterable[np.ndarray], rate_hz: int) -> tuple[Iterator[Cut], int]:
    """The parts of a recording, resampled to the model's rate, and that rate."""
    wanted_hz = recognizer.features.sample_frequency or rate_hz
    resampler = OnlineResampler(rate_hz, wanted_hz)

    def resampled() -> Iterator[np.ndarray]:
        yield from (resampler.accept(block_S) for block_S in blocks)
        yield resampler.finish()

    return cut_at_pauses(resampled(), wanted_hz), wanted_hz


def _long(recognizer: Recognizer, name: str, parts: Iterable[Cut], rate_hz: int, times: bool) -> _Found:
    """Recognise the parts of a recording; times are relative to the start of the recording.

    Raises
    ------
    Speech3Error
        There were parts, but none could be recognised.
    """
    words: list[str] = []
    segments: list[Segment] = []
    recognised, failed = 0, ""
    for cut in parts:
        place = f"{name}, {cut.begin_s:.2f} to {cut.begin_s + len(cut.wave_S) / rate_hz:.2f} s"
        try:
            said, when = _recognised(recognizer, place, cut.wave_S, rate_hz, times)
        except Speech3Error as error:
            failed = failed or str(error)
            say(f"left out: {error}")
            continue
        recognised += 1
        words += said
        segments += [replace(s, start_s=s.start_s + cut.begin_s, end_s=s.end_s + cut.begin_s) for s in when]
    if not failed and not recognised:
        say(f"{name}: no speech in it: it is silent, or equally loud throughout; there are no words")
    if failed and not recognised:
        raise Speech3Error(f"{name}: no part of it could be recognised; the first reason: {failed}")
    return tuple(words), segments


def _recognised(recognizer: Recognizer, name: str, wave_S: np.ndarray, rate_hz: int, times: bool) -> _Found:
    feats = {name: _features_of(recognizer, name, wave_S, rate_hz)}
    if audio.is_silent(wave_S):
        say(f"{name}: is silent (all its samples are equal), so there are no words")
        return (), []
    decoding = recognizer.decode(feats, confidences=times)
    waves = {name: (wave_S, rate_hz)}
    found = word_times(recognizer, feats, decoding, waves=waves).get(name, []) if times else []
    return decoding.hypotheses[0].words, found


def features_of_file(recognizer: Recognizer, path: Path) -> np.ndarray:
    """Features (T, F) of one audio file, resampled and mixed as the model needs."""
    _refuse_given(recognizer, str(path))
    wanted_hz = recognizer.features.sample_frequency
    sound = audio.read_file(path, sample_rate_hz=wanted_hz, resample=True, mix_channels=True)
    return _features_of(recognizer, str(path), *sound)


def _refuse_given(recognizer: Recognizer, name: str) -> None:
    if recognizer.features.kind == "given":
        raise Speech3Error(
            f"{name}: this model takes its features from a file (feats.scp) and does not compute them from audio; make"
            " a data directory with the recording's features and use speech3 decode"
        )


def _features_of(recognizer: Recognizer, name: str, wave_S: np.ndarray, rate_hz: int) -> np.ndarray:
    config = recognizer.features
    samples_S = torch.from_numpy(wave_S)
    feats_1TF, frames_1 = static_features(samples_S[None], torch.tensor([len(wave_S)]), config, rate_hz)
    if not frames_1[0]:
        raise Speech3Error(f"{name}: shorter than one frame ({config.frame_length:g} ms); nothing to recognise")
    silent_T = silent_frames(samples_S, len(feats_1TF[0]), config, rate_hz)
    return finish_features([feats_1TF[0]], config, [silent_T])[0].numpy()


def transcription_json(result: Transcription) -> str:
    """A JSON line: file, duration and text of a recording, and its words with start, end and confidence.

    Times are in seconds; confidences are probabilities, left out where they are unknown.
    """
    words = [word_of(word.label, word.start_s, word.end_s, word.confidence) for word in result.words]
    about = {"file": result.name, "duration": round(result.duration_s, 3), "text": result.text, "words": words}
    return json.dumps(about, ensure_ascii=False)


def word_of(word: str, start_s: float | None, end_s: float | None, confidence: float | None) -> dict[str, Any]:
    """A word as a JSON object; unknown values are left out."""
    about = {"start": start_s, "end": end_s, "confidence": confidence}
    return {"word": word, **{key: round(value, 4) for key, value in about.items() if value is not None}}


@dataclass(frozen=True)
class MeanScorer:
    """The mean of the scores of several models.

    Attributes
    ----------
    columns
        For each of `scorers`, its columns of the features (T, D).
    """

    scorers: tuple[Scorer, ...]
    columns: tuple[slice, ...]

    @property
    def subsampling(self) -> int:
        """Frames per row of scores."""
        return self.scorers[0].subsampling

    @property
    def pseudo_likelihoods(self) -> bool:
        """As in `speech3.decode.recognizer.NetworkScorer`."""
        return self.scorers[0].pseudo_likelihoods

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        """(K, P) float32, or only the columns of `pdfs`."""
        parts = zip(self.scorers, self.columns, strict=True)
        scores = [scorer.loglikes(feats_TD[:, columns], pdfs) for scorer, columns in parts]
        mean_KP: np.ndarray = np.stack(scores).mean(0, dtype=np.float32)
        return mean_KP


class SideBySide(Mapping[str, np.ndarray]):
    """The features of several models for the same utterances, (T, D); read when they are needed."""

    def __init__(self, parts: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.parts = parts
        self.keys_ = [key for key in parts[0] if all(key in part for part in parts[1:])]

    def __getitem__(self, utterance: str) -> np.ndarray:
        feats = [part[utterance] for part in self.parts]
        if len({len(feats_TF) for feats_TF in feats}) > 1:
            raise Speech3Error(
                f"{utterance}: has {' and '.join(str(len(feats_TF)) for feats_TF in feats)} frames in the features of "
                f"the models; only models whose features have the same number of frames can score together"
            )
        return np.concatenate(feats, 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_)

    def __len__(self) -> int:
        return len(self.keys_)


def with_mean_scores(recognizer: Recognizer, others: Sequence[Recognizer], dims: Sequence[int] = ()) -> Recognizer:
    """The first recogniser with the mean scores of all; its graph and its settings are used.

    Parameters
    ----------
    dims
        Number of features of each model, which then lie side by side (`SideBySide`); empty: all have the same features.

    Raises
    ------
    Speech3Error
        The senones, their tree, the frame rate or the kind of scores differ, or a model consists of GMMs; the message
        names both models.
    """
    for other in others:
        _check(recognizer, other)
    scorers = (recognizer.scorer, *(other.scorer for other in others))
    ends = np.cumsum([0, *dims]).tolist()
    columns = (
        [slice(*ends[place : place + 2]) for place in range(len(scorers))] if dims else [slice(None)] * len(scorers)
    )
    return replace(recognizer, scorer=MeanScorer(scorers, tuple(columns)))


def features_of_all(
    recognizer: Recognizer, others: Sequence[Recognizer], data: DataDir, jobs: int, out: Path
) -> tuple[Recognizer, Mapping[str, np.ndarray], dict[str, str]]:
    """The recogniser of all models, the features of all of them, and the reason for each utterance without features.

    Features are extracted into ``out/feats``, those of others that differ into ``out/with2/feats`` and so on.

    Raises
    ------
    Speech3Error
        As for `together` and `features_for`.
    """
    for other in others:
        _check(recognizer, other)
    feats, skipped = features_for(recognizer, data, jobs, out)
    if all(same_features(recognizer, other) for other in others):
        return (with_mean_scores(recognizer, others) if others else recognizer), feats, skipped
    parts: list[Mapping[str, np.ndarray]] = [feats]
    for number, other in enumerate(others, 2):
        found, bad = (feats, {}) if same_features(recognizer, other) else features_for(
            other, data, jobs, out / f"with{number}"
        )  # fmt: skip
        parts.append(found)
        skipped = {**bad, **skipped}
    dims = [next(iter(part.values())).shape[1] for part in parts]
    return with_mean_scores(recognizer, others, dims), SideBySide(parts), skipped


def same_features(recognizer: Recognizer, other: Recognizer) -> bool:
    """Whether two models read the same features."""
    return recognizer.features.of_values() == other.features.of_values()


def _check(one: Recognizer, other: Recognizer) -> None:
    names = f"{one.directory} and {other.directory} cannot score together"
    for each in (one, other):
        if isinstance(each.scorer, Gmm | ProjectedGmm):
            raise Speech3Error(f"{names}: {each.directory} consists of GMMs; pass networks")
    rates = [each.features.frame_shift * each.scorer.subsampling for each in (one, other)]
    if rates[0] != rates[1]:
        raise Speech3Error(
            f"{names}: one has scores every {rates[0]:g} ms, the other every {rates[1]:g} ms; pass models "
            f"with the same frame rate"
        )
    if fault := output_difference(one.outputs, other.outputs):
        raise Speech3Error(f"{names}: {fault}; pass models trained on the senones of one model directory")
    if one.scorer.pseudo_likelihoods != other.scorer.pseudo_likelihoods:
        raise Speech3Error(f"{names}: only one of them was trained with LF-MMI; their scores have different scales")
