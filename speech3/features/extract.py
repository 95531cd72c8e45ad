"""From a data directory to features on disk (`extract`), or to features in this process (`features_of`).

Of the kind `given` they are the directory's own (`features.given`), otherwise they are computed from its audio.

The unit of work is the unit of CMVN: all utterances of a speaker, else a handful of utterances.

Axes: S samples, T frames, F features.
"""

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import yaml

from speech3.config import FeatureConfig
from speech3.corpus import audio
from speech3.corpus.datadir import DataDir
from speech3.errors import Speech3Error, check_bad
from speech3.features.compute import finish, static_features
from speech3.features.given import given_features
from speech3.features.spectrum import SAMPLE_SCALE
from speech3.io.ark import write_ark
from speech3.io.atomic import write_text
from speech3.io.parallel import available_jobs, parallel_map

_HANDFUL = 16  # utterances sent to a process at once where they are normalised one by one


@dataclass
class ExtractReport:
    """What was extracted, and what was not."""

    sample_rate_hz: int | None  # None: the features were given
    values: int = 0  # per frame
    utterances: int = 0
    frames: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # utterance -> reason
    silent: list[str] = field(default_factory=list)  # extracted, but every sample is the same


@dataclass
class _Unit:
    """The features of one unit of work."""

    features: list[tuple[str, np.ndarray]]
    skipped: dict[str, str]
    silent: list[str]


def extract(data: DataDir, out: Path, config: FeatureConfig, jobs: int = 0, *, compress: bool = False) -> ExtractReport:
    """Write ``feats.ark``, ``feats.scp``, ``features.yaml`` and, if there is anything to list, ``skipped.txt``.

    Parameters
    ----------
    out
        Directory, made if there is none. ``features.yaml`` gets the config with the sample rate that was found.
    jobs
        Processes; 0: one per core.
    compress
        Write a byte a value, not exactly (Kaldi's ``--compress``).

    Notes
    -----
    The ark holds the units in the order of their first utterances, so it is sorted by utterance wherever ids begin with
    the speaker, as Kaldi wants them; the scp always is. Memory holds a speaker at a time, never all features.

    Raises
    ------
    Speech3Error
        There is no utterance; more than 5 % of them, or all, cannot be used (the message lists them); the disk is full.
    """
    units = _units(data, config)
    config = _with_rate(data, config)
    report = ExtractReport(config.sample_frequency)
    work = functools.partial(_unit_features, config=config)
    results = parallel_map(work, [_part(data, ids) for ids in units], jobs or available_jobs(), "features")

    def features() -> Iterator[tuple[str, np.ndarray]]:
        for unit in results:
            report.skipped.update(unit.skipped)
            report.silent += unit.silent
            _check(data, config, report.skipped, complete=False)
            for utterance, feats_TF in unit.features:
                report.utterances += 1
                report.frames += len(feats_TF)
                report.values = feats_TF.shape[1]
                yield utterance, feats_TF
        _check(data, config, report.skipped, complete=True)

    write_ark(out / "feats.ark", features(), out / "feats.scp", compress=compress)
    write_text(out / "features.yaml", yaml.safe_dump(config.model_dump(), sort_keys=False))
    if report.skipped:
        write_text(out / "skipped.txt", _listing(report.skipped))
    else:
        (out / "skipped.txt").unlink(missing_ok=True)
    return report


def features_of(
    data: DataDir, config: FeatureConfig, skipped: dict[str, str] | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each utterance's features, float32 (T, F), computed in this process; speakers one after the other.

    Parameters
    ----------
    skipped
        Gets the reason for each utterance that cannot be used. Without it the first such utterance is an error.

    Raises
    ------
    Speech3Error
        As `extract`.
    """
    units = _units(data, config)
    config = _with_rate(data, config)
    reasons = {} if skipped is None else skipped
    for ids in units:
        unit = _unit_features(_part(data, ids), config)
        reasons.update(unit.skipped)
        if skipped is None and reasons:
            raise Speech3Error("\n".join(f"{data.path}: {reason}" for reason in reasons.values()))
        _check(data, config, reasons, complete=False)
        yield from unit.features
    _check(data, config, reasons, complete=True)


def _units(data: DataDir, config: FeatureConfig) -> list[list[str]]:
    if not data.utterances:
        raise Speech3Error(f"{data.path}: holds no utterance, so there is nothing to extract")
    if config.cmvn == "speaker":
        return sorted(data.speakers().values())
    ids = sorted(data.utterances)
    return [ids[i : i + _HANDFUL] for i in range(0, len(ids), _HANDFUL)]


def _part(data: DataDir, ids: list[str]) -> DataDir:
    # Not data.subset, which goes through the whole directory: here it would do so once for every speaker.
    utterances = {key: data.utterances[key] for key in ids}
    used = {utt.recording: data.recordings[utt.recording] for utt in utterances.values() if data.recordings}
    feats = {key: data.feats[key] for key in ids if key in data.feats}
    # A speaker whom cmvn.scp lacks stays one: no statistics at all would mean that there is no cmvn.scp.
    cmvn = {utt.speaker: data.cmvn.get(utt.speaker, "") for utt in utterances.values()} if data.cmvn else {}
    return DataDir(data.path, used, utterances, feats, cmvn)


def _with_rate(data: DataDir, config: FeatureConfig) -> FeatureConfig:
    """The config with the rate of the first recording that can be read, unless it says a rate itself."""
    if config.kind == "given":
        if not data.feats:
            raise Speech3Error(
                f"{data.path}: has no feats.scp, and features are to be those that it brings along;"
                " add them, or choose a preset that computes features"
            )
        return config
    if config.sample_frequency is not None:
        return config
    if not data.recordings:
        raise Speech3Error(f"{data.path}: no audio to extract from: the directory has feats.scp and no wav.scp")
    first = ""
    for location in data.recordings.values():
        try:
            rate = audio.info(location, directory=data.path).sample_rate_hz
        except Speech3Error as error:
            first = first or str(error)
            continue
        return config.model_copy(update={"sample_frequency": rate})
    raise Speech3Error(f"{data.path}: none of {len(data.recordings)} recordings can be read; the first: {first}")


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    # The tensors of an utterance are too small to share out: on two busy cores, two threads took ten times as long.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_thread()
def _unit_features(data: DataDir, config: FeatureConfig) -> _Unit:
    if config.kind == "given":
        return _Unit(*given_features(data, config), [])
    unit = _Unit([], {}, [])
    ids, statics = [], []
    rate_hz = config.sample_frequency or 0
    for utterance in sorted(data.utterances):
        try:
            wave_S, _ = audio.load(
                data,
                utterance,
                sample_rate_hz=rate_hz,
                resample=config.resample,
                mix_channels=config.mix_channels,
            )
        except Speech3Error as error:
            unit.skipped[utterance] = str(error)
            continue
        lengths_N = torch.tensor([len(wave_S)])
        waves_NS = torch.from_numpy(_dithered(wave_S, utterance, config.dither))[None]
        feats_NTF, frames_N = static_features(waves_NS, lengths_N, config, rate_hz)
        if frames_N[0] == 0:
            unit.skipped[utterance] = (
                f"{utterance}: shorter than one frame ({len(wave_S)} samples at {rate_hz} Hz, "
                f"a frame is {config.frame_length:g} ms); remove the utterance"
            )
            continue
        if np.ptp(wave_S) == 0:
            unit.silent.append(utterance)
        ids.append(utterance)
        statics.append(feats_NTF[0])
    groups = [statics] if config.cmvn == "speaker" else [[static_TF] for static_TF in statics]
    finished = [feats_TF.numpy() for group in groups if group for feats_TF in finish(group, config)]
    unit.features = list(zip(ids, finished, strict=True))
    return unit


def _dithered(wave_S: np.ndarray, utterance: str, dither: float) -> np.ndarray:
    """Add Gaussian noise that depends on the utterance's name alone, so that every run gives the same features."""
    if dither == 0:
        return wave_S
    seed = int.from_bytes(hashlib.blake2b(utterance.encode("utf-8"), digest_size=8).digest(), "little")
    noise_S = np.random.default_rng(seed).standard_normal(len(wave_S), dtype=np.float32)
    return wave_S + np.float32(dither / SAMPLE_SCALE) * noise_S


def _check(data: DataDir, config: FeatureConfig, skipped: dict[str, str], complete: bool) -> None:
    problem = "cannot be used" if complete else "so far cannot be used"
    remedy = f"`speech3 fix {data.path} OUT` writes a copy without those whose audio is at fault"
    if config.kind == "given":
        remedy = f"make the features again, or take these out with `speech3 subset {data.path} OUT`"
    check_bad(skipped, len(data.utterances), str(data.path), problem, remedy)


def _listing(skipped: dict[str, str]) -> str:
    return "".join(f"{utterance} {' '.join(reason.split())}\n" for utterance, reason in sorted(skipped.items()))
