"""A recogniser applied to what users have: data directories and sound files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from speech3.corpus import audio
from speech3.corpus.datadir import DataDir
from speech3.decoding.output import word_times
from speech3.decoding.recognizer import Recognizer
from speech3.errors import Speech3Error
from speech3.features.compute import finish, static_features
from speech3.features.extract import extract
from speech3.hmm.times import Stretch
from speech3.io.ark import ArkReader, write_ark
from speech3.io.atomic import write_text
from speech3.io.progress import progress, say

_SHOWN = 10


def features_for(recognizer: Recognizer, data: DataDir, jobs: int, out: Path) -> tuple[ArkReader, dict[str, str]]:
    """Extract the features that the model wants into ``out/feats``; returns them, and why utterances have none.

    Recordings of another rate are resampled. Several channels may be several speakers: such an utterance is refused
    unless the model's own features.yaml mixes them.

    Raises
    ------
    Speech3Error
        More than 5 % of the utterances are bad; given features are not such as the model was trained on.
    """
    config = recognizer.features.model_copy(update={"resample": True})
    if data.recordings and config.kind != "given":
        _warn_of_rate(recognizer, next(iter(data.recordings.values())), data.path)
    report = extract(data, out / "feats", config, jobs)
    feats = ArkReader(out / "feats" / "feats.scp")
    if config.kind == "given":
        try:
            recognizer.scorer.loglikes(next(iter(feats.values()))[:1])
        except Speech3Error as error:
            raise Speech3Error(f"{data.path / 'feats.scp'}: {error}") from error
    return feats, report.skipped


def _warn_of_rate(recognizer: Recognizer, recording: str | Path, directory: Path | None) -> None:
    wanted_hz = recognizer.features.sample_frequency or 0
    try:
        rate_hz = audio.info(recording, directory=directory).sample_rate_hz
    except Speech3Error:
        return  # whoever reads it says what is wrong with it
    if rate_hz < wanted_hz:
        say(
            f"{recording}: {rate_hz} Hz, resampled to the model's {wanted_hz} Hz: the upper part of the spectrum is"
            " missing, expect more errors"
        )


def tell(bad: Mapping[str, str], what: str) -> None:
    """Say which utterances were left out, and why; the first few of many."""
    for utterance, reason in list(bad.items())[:_SHOWN]:
        say(f"{what}: {utterance}: {reason}")
    if len(bad) > _SHOWN:
        say(f"{what}: {len(bad) - _SHOWN} more")


def write_loglikes(recognizer: Recognizer, feats: ArkReader, out: Path, bad: Mapping[str, str]) -> int:
    """Write ``loglikes.ark``, ``loglikes.scp`` and, if there is anything to list, ``bad.txt``.

    The matrices are float32 (K, P), a row for each `Scorer.subsampling` frames. One utterance at a time is in memory.
    Returns their number.

    Raises
    ------
    Speech3Error
        Scores that are not finite numbers.
    """

    def scores() -> Iterator[tuple[str, np.ndarray]]:
        for utterance, loglikes_TP in progress(recognizer.scores(feats), len(feats), "forward"):
            if not np.isfinite(loglikes_TP).all():
                raise Speech3Error(f"{utterance}: the model's scores are NaN or infinite; its training diverged")
            yield utterance, np.asarray(loglikes_TP, np.float32)

    written = write_ark(out / "loglikes.ark", scores(), out / "loglikes.scp")
    if bad:
        write_text(out / "bad.txt", "".join(f"{utterance} {reason}\n" for utterance, reason in sorted(bad.items())))
    else:
        (out / "bad.txt").unlink(missing_ok=True)
    return written


@dataclass(frozen=True)
class Transcription:
    """What was said in a file, and when, if that was asked for."""

    name: str
    text: str
    words: Sequence[Stretch]


def transcribe(recognizer: Recognizer, files: Sequence[Path], *, times: bool = False) -> Iterator[Transcription]:
    """Recognise sound files, each as one utterance of a speaker of its own.

    Raises
    ------
    Speech3Error
        A file is missing, unreadable, shorter than a frame, or could not be decoded; it is named.
    """
    for path in files:
        name = str(path)
        _warn_of_rate(recognizer, path, None)
        feats = {name: features_of_file(recognizer, path)}
        decoding = recognizer.decode(feats, confidences=times)
        found = decoding.hypotheses[0]
        stretches = word_times(recognizer, feats, decoding).get(name, []) if times else []
        yield Transcription(name, " ".join(found.words), stretches)


def features_of_file(recognizer: Recognizer, path: Path) -> np.ndarray:
    """Features (T, F) of one sound file, resampled and mixed as the model wants it."""
    config = recognizer.features
    if config.kind == "given":
        raise Speech3Error(
            f"{path}: this model's features are given ones (feats.scp), not computed from a sound file; put it into a"
            " data directory with its features and use speech3 decode"
        )
    wave_S, rate_hz = audio.read_file(path, sample_rate_hz=config.sample_frequency, resample=True, mix_channels=True)
    feats_1TF, frames_1 = static_features(torch.from_numpy(wave_S)[None], torch.tensor([len(wave_S)]), config, rate_hz)
    if not frames_1[0]:
        raise Speech3Error(f"{path}: shorter than one frame ({config.frame_length:g} ms); nothing to recognise")
    return finish([feats_1TF[0]], config)[0].numpy()
