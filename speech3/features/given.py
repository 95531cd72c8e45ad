"""Features that exist in a data directory (`feats.scp`), normalised by its `cmvn.scp` (Kaldi's apply-cmvn).

Axes: T frames, F features, 2 sums and sums of squares, G features and the frame count.
"""

import contextlib
from collections import Counter

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.corpus.datadir import DataDir
from speech3.errors import Speech3Error
from speech3.features.cmvn import apply_cmvn
from speech3.features.silence import repeated_frames
from speech3.io.ark import read_matrix

_SAMPLE = 21  # utterances


def normalised_by_directory(data: DataDir, config: FeatureConfig) -> bool:
    """Whether `given_statics` normalises the features with the statistics of the directory (``cmvn.scp``)."""
    return config.kind == "given" and config.cmvn == "speaker" and bool(data.cmvn)


def values_of(data: DataDir) -> int | None:
    """How many values per frame most utterances have, by a sample of them; None if none of it can be read."""
    named = [location for key in sorted(data.utterances) if (location := data.feats.get(key))]
    counts = Counter[int]()
    for location in named[:: -(-len(named) // _SAMPLE) or 1]:
        with contextlib.suppress(Speech3Error):  # reported when all are read
            counts[_read(data, location, "feats.scp").shape[1]] += 1
    return counts.most_common(1)[0][0] if counts else None


def given_statics(
    data: DataDir, config: FeatureConfig, values: int | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Features of all utterances of `data`, float32 (T, F), and the reason for each utterance without features.

    Features with another number of values per frame than `values`, if given, cannot be used.

    If `config` normalises by speaker and the directory has a ``cmvn.scp``, the features are normalised with that.
    Otherwise they are not normalised, and the caller computes the statistics.
    """
    statics: dict[str, Tensor] = {}
    bad: dict[str, str] = {}
    for utterance in sorted(data.utterances):
        try:
            static_TF = torch.from_numpy(_read(data, data.feats.get(utterance), "feats.scp"))
            if values is not None and static_TF.shape[1] != values:
                raise Speech3Error(
                    f"{data.path / 'feats.scp'}: {static_TF.shape[1]} values per frame, but most utterances have"
                    f" {values}; compute the features again"
                )
            if normalised_by_directory(data, config):
                static_TF = _normalised(data, utterance, static_TF, config)
            statics[utterance] = static_TF
        except Speech3Error as error:
            bad[utterance] = f"{utterance}: {error}"
    return statics, bad


def _read(data: DataDir, location: str | None, name: str) -> np.ndarray:
    if not location:
        raise Speech3Error(f"is not in {data.path / name}; add it, or remove the utterance")
    try:
        matrix = read_matrix(location, data.path)
    except Speech3Error as error:
        raise Speech3Error(f"{data.path / name}: {error}") from error
    if matrix.ndim != 2 or not matrix.size:
        raise Speech3Error(f"{data.path / name}: {location}: not a matrix, or an empty one; compute it again")
    return matrix.astype(np.float32) if name == "feats.scp" else matrix.astype(np.float64)


def _normalised(data: DataDir, utterance: str, feats_TF: Tensor, config: FeatureConfig) -> Tensor:
    speaker = data.utterances[utterance].speaker
    try:
        stats_2G = _read(data, data.cmvn.get(speaker), "cmvn.scp")
    except Speech3Error as error:
        raise Speech3Error(f"speaker {speaker}: {error}") from error
    if not np.isfinite(stats_2G).all():
        raise Speech3Error(
            f"{data.path / 'cmvn.scp'}: the statistics of speaker {speaker} are not finite numbers; compute them again"
        )
    rows, columns = stats_2G.shape
    if columns != feats_TF.shape[1] + 1 or rows < 1 + config.norm_vars or stats_2G[0, -1] < 1:
        raise Speech3Error(
            f"{data.path / 'cmvn.scp'}: speaker {speaker}: statistics of {rows} by {columns} values over"
            f" {stats_2G[0, -1]:g} frames do not fit features of {feats_TF.shape[1]} values; compute them again"
        )
    stats, silent_T = torch.from_numpy(stats_2G), repeated_frames(feats_TF)
    return apply_cmvn(stats, feats_TF, config.norm_means, config.norm_vars, silent_T)
