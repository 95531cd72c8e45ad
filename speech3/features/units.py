"""Units of work: the features of a few utterances of a data directory, such as those that CMVN normalises together.

Features of the kind `given` are read from the directory's ``feats.scp``, perhaps normalised by its ``cmvn.scp`` (as
Kaldi's apply-cmvn does); all others are computed from its audio.

Axes: S samples, T frames, F features, 2 sums and sums of squares, G features and the frame count.
"""

import contextlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.data import Augmenter, DataDir, audio, seed_of
from speech3.errors import DataError, FormatError, MismatchError, MissingError, Speech3Error
from speech3.features.cmvn import apply_cmvn, cmvn_stats
from speech3.features.compute import finish_features, static_features
from speech3.features.sound import repeated_frames, silent_frames
from speech3.features.spectrum import SAMPLE_SCALE
from speech3.io import not_finite, read_matrix

_SAMPLE = 21  # utterances
_AGAIN = {True: "compute the features again", False: "the audio has samples that are not numbers; record it again"}
_HANDFUL = 16  # utterances sent to a process at once where they are normalised one by one


@dataclass
class Unit:
    """The features of one unit of work, float32 (T, F) each, before CMVN or after all steps."""

    features: dict[str, Tensor] = field(default_factory=dict)
    uncounted: dict[str, Tensor] = field(default_factory=dict)  # frames that are digital silence, bool (T,)
    skipped: dict[str, str] = field(default_factory=dict)  # utterance -> reason
    silent: list[str] = field(default_factory=list)  # every sample is the same
    channels: dict[str, str] = field(default_factory=dict)  # utterances not all of whose channels are used, and why
    stats_2G: Tensor | None = None  # CMVN statistics of all that count, float64, if normalised by utterance or speaker


def normalised_by_directory(data: DataDir, config: FeatureConfig) -> bool:
    """Whether given features are normalised with the statistics of the directory (``cmvn.scp``)."""
    return config.kind == "given" and config.cmvn == "speaker" and bool(data.cmvn)


def values_of(data: DataDir) -> int | None:
    """How many values per frame most utterances have, by a sample of them; None if none of it can be read."""
    named = [location for key in sorted(data.utterances) if (location := data.feats.get(key))]
    counts = Counter[int]()
    for location in named[:: -(-len(named) // _SAMPLE) or 1]:
        with contextlib.suppress(Speech3Error):  # reported when all are read
            counts[_read(data, location, "feats.scp").shape[1]] += 1
    return counts.most_common(1)[0][0] if counts else None


def _read(data: DataDir, location: str | None, name: str) -> np.ndarray:
    if not location:
        raise MissingError(f"is not in {data.path / name}; add it, or remove the utterance")
    try:
        matrix = read_matrix(location, data.path)
    except Speech3Error as error:
        raise error.restated(f"{data.path / name}: {error}") from error
    if matrix.ndim != 2 or not matrix.size:
        raise FormatError(f"{data.path / name}: {location}: not a matrix, or an empty one; compute it again")
    return matrix.astype(np.float32) if name == "feats.scp" else matrix.astype(np.float64)


def _normalised(data: DataDir, utterance: str, feats_TF: Tensor, config: FeatureConfig) -> Tensor:
    speaker = data.utterances[utterance].speaker
    try:
        stats_2G = _read(data, data.cmvn.get(speaker), "cmvn.scp")
    except Speech3Error as error:
        raise error.restated(f"speaker {speaker}: {error}") from error
    if not np.isfinite(stats_2G).all():
        raise FormatError(
            f"{data.path / 'cmvn.scp'}: the statistics of speaker {speaker} are not finite numbers; compute them again"
        )
    rows, columns = stats_2G.shape
    if columns != feats_TF.shape[1] + 1 or rows < 1 + config.norm_vars or stats_2G[0, -1] < 1:
        raise MismatchError(
            f"{data.path / 'cmvn.scp'}: speaker {speaker}: statistics of {rows} by {columns} values over"
            f" {stats_2G[0, -1]:g} frames do not fit features of {feats_TF.shape[1]} values; compute them again"
        )
    if not config.norm_means:
        return feats_TF
    return apply_cmvn(torch.from_numpy(stats_2G), feats_TF, config.norm_vars, repeated_frames(feats_TF))


def units_of(data: DataDir, config: FeatureConfig) -> list[list[str]]:
    """Utterances by unit: all of a speaker if CMVN is by speaker, else a handful."""
    if not data.utterances:
        raise DataError(f"{data.path}: holds no utterance, so there is nothing to extract")
    if config.cmvn == "speaker":
        return sorted(data.speakers().values())
    ids = sorted(data.utterances)
    return [ids[i : i + _HANDFUL] for i in range(0, len(ids), _HANDFUL)]


def part_of(data: DataDir, ids: list[str]) -> DataDir:
    # data.subset would go through the whole directory once for every speaker.
    utterances = {key: data.utterances[key] for key in ids}
    used = {utt.recording: data.recordings[utt.recording] for utt in utterances.values() if data.recordings}
    feats = {key: data.feats[key] for key in ids if key in data.feats}
    # A speaker missing in cmvn.scp gets an empty entry: no entries at all would mean that there is no cmvn.scp.
    cmvn = {utt.speaker: data.cmvn.get(utt.speaker, "") for utt in utterances.values()} if data.cmvn else {}
    return DataDir(data.path, used, utterances, feats, cmvn)


def unit_features(
    data: DataDir, config: FeatureConfig, augmenter: Augmenter | None = None, values: int | None = None
) -> Unit:
    """The features of all utterances of a unit, as a model reads them; with an augmenter, of their augmented audio.

    Utterances whose features have another size than `values` (if given) or are not finite are skipped.
    """
    unit = _statics(data, config, augmenter, values)
    if normalised_by_directory(data, config):
        config = config.model_copy(update={"cmvn": "none"})
    pairs = [(static_TF, unit.uncounted[utterance]) for utterance, static_TF in unit.features.items()]
    # Models need the statistics of all as a prior where every utterance or speaker is normalised by itself.
    by_parts = config.cmvn in ("utterance", "speaker") and config.norm_means and config.kind != "given"
    if by_parts and pairs:
        unit.stats_2G = torch.stack([cmvn_stats(*pair) for pair in pairs]).sum(0)
    groups = [pairs] if config.cmvn == "speaker" else [[pair] for pair in pairs]
    finished = []
    for group in groups:
        statics, silent = [pair[0] for pair in group], [pair[1] for pair in group]
        finished += finish_features(statics, config, silent) if group else []
    unit.features, unit.uncounted = dict(zip(unit.features, finished, strict=True)), {}
    return unit


def unit_stats(
    data: DataDir, config: FeatureConfig, augmenter: Augmenter | None = None, values: int | None = None
) -> tuple[np.ndarray | None, dict[str, str]]:
    """CMVN statistics of a unit's frames that count, float64 (2, G) or None if there is none, and what was skipped."""
    unit = _statics(data, config, augmenter, values)
    found = [cmvn_stats(static_TF, unit.uncounted[utterance]) for utterance, static_TF in unit.features.items()]
    return torch.stack(found).sum(0).numpy() if found else None, unit.skipped


def _statics(data: DataDir, config: FeatureConfig, augmenter: Augmenter | None, values: int | None) -> Unit:
    given = config.kind == "given"
    unit = _given_statics(data, config, values) if given else _computed_statics(data, config, augmenter)
    for utterance, static_TF in list(unit.features.items()):
        if fault := not_finite(static_TF.numpy()):
            del unit.features[utterance], unit.uncounted[utterance]
            source = data.path / "feats.scp" if given else data.recording(data.utterances[utterance])
            unit.skipped[utterance] = f"{utterance}: {source}: {fault}; {_AGAIN[given]}"
    return unit


def _given_statics(data: DataDir, config: FeatureConfig, values: int | None) -> Unit:
    """Features of ``feats.scp``; normalised only with the statistics of the directory, if there are any to be used."""
    unit = Unit()
    for utterance in sorted(data.utterances):
        try:
            static_TF = torch.from_numpy(_read(data, data.feats.get(utterance), "feats.scp"))
            if values is not None and static_TF.shape[1] != values:
                raise MismatchError(
                    f"{data.path / 'feats.scp'}: {static_TF.shape[1]} values per frame, but most utterances have"
                    f" {values}; compute the features again"
                )
            if normalised_by_directory(data, config):
                static_TF = _normalised(data, utterance, static_TF, config)
        except Speech3Error as error:
            unit.skipped[utterance] = f"{utterance}: {error}"
            continue
        unit.features[utterance], unit.uncounted[utterance] = static_TF, repeated_frames(static_TF)
    return unit


def _computed_statics(data: DataDir, config: FeatureConfig, augmenter: Augmenter | None) -> Unit:
    unit, rate_hz = Unit(), config.sample_frequency or 0
    for utterance in sorted(data.utterances):
        try:
            wave_S, _ = audio.load(
                data,
                utterance,
                sample_rate_hz=rate_hz,
                resample=config.resample,
                mix_channels=config.mix_channels,
                note=lambda why, utterance=utterance: unit.channels.__setitem__(utterance, why),  # type: ignore[misc]
            )
        except Speech3Error as error:
            unit.skipped[utterance] = str(error)
            continue
        silent = audio.is_silent(wave_S)
        if augmenter:
            wave_S, _ = augmenter(wave_S, rate_hz, data.utterances[utterance])
        lengths_N = torch.tensor([len(wave_S)])
        waves_NS = torch.from_numpy(_dithered(wave_S, utterance, config.dither))[None]
        noise = torch.Generator().manual_seed(seed_of(utterance) >> 1)  # torch takes 63 bits
        feats_NTF, frames_N = static_features(waves_NS, lengths_N, config, rate_hz, noise)
        if frames_N[0] == 0:
            unit.skipped[utterance] = (
                f"{utterance}: shorter than one frame ({len(wave_S)} samples at {rate_hz} Hz, "
                f"a frame is {config.frame_length:g} ms); remove the utterance"
            )
            continue
        if silent:
            unit.silent.append(utterance)
        unit.features[utterance] = feats_NTF[0]
        unit.uncounted[utterance] = silent_frames(waves_NS[0], len(feats_NTF[0]), config, rate_hz)
    return unit


def _dithered(wave_S: np.ndarray, utterance: str, dither: float) -> np.ndarray:
    if dither == 0:
        return wave_S
    noise_S = np.random.default_rng(seed_of(utterance)).standard_normal(len(wave_S), dtype=np.float32)
    return wave_S + np.float32(dither / SAMPLE_SCALE) * noise_S
