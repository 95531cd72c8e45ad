"""Features that a data directory brings along (`feats.scp`): read, normalised (Kaldi's apply-cmvn), deltas appended.

Axes: T frames, F features, 2 sums and sums of squares, G features and the count of frames.
"""

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.corpus.datadir import DataDir
from speech3.errors import Speech3Error
from speech3.features.cmvn import apply_cmvn
from speech3.features.compute import finish
from speech3.features.deltas import add_deltas
from speech3.io.ark import read_matrix


def given_features(data: DataDir, config: FeatureConfig) -> tuple[list[tuple[str, np.ndarray]], dict[str, str]]:
    """Features of all utterances of `data`, float32 (T, F), and why some have none.

    Where `config` normalises by speaker and the directory has a ``cmvn.scp``, the statistics are those; else they are
    of the utterance, or of the speaker's utterances in `data`.
    """
    statics: dict[str, Tensor] = {}
    bad: dict[str, str] = {}
    for utterance in sorted(data.utterances):
        try:
            statics[utterance] = torch.from_numpy(_read(data, data.feats.get(utterance), "feats.scp"))
            if config.cmvn == "speaker" and data.cmvn:
                statics[utterance] = _normalised(data, utterance, statics[utterance], config)
        except Speech3Error as error:
            statics.pop(utterance, None)
            bad[utterance] = f"{utterance}: {error}"
    if config.cmvn == "speaker" and data.cmvn:
        finished = [add_deltas(static_TF, config.deltas, config.delta_window) for static_TF in statics.values()]
    else:
        together = list(statics.values())
        groups = [together] if config.cmvn == "speaker" else [[static_TF] for static_TF in together]
        finished = [feats_TF for group in groups if group for feats_TF in finish(group, config)]
    return list(zip(statics, [feats_TF.numpy() for feats_TF in finished], strict=True)), bad


def _read(data: DataDir, location: str | None, name: str) -> np.ndarray:
    if not location:
        raise Speech3Error(f"is not in {data.path / name}; add it, or remove the utterance")
    try:
        matrix = read_matrix(location, data.path)
    except Speech3Error as error:
        raise Speech3Error(f"{data.path / name}: {error}") from error
    if matrix.ndim != 2 or not matrix.size:
        raise Speech3Error(f"{data.path / name}: {location}: no matrix, or an empty one")
    return matrix.astype(np.float32) if name == "feats.scp" else matrix.astype(np.float64)


def _normalised(data: DataDir, utterance: str, feats_TF: Tensor, config: FeatureConfig) -> Tensor:
    speaker = data.utterances[utterance].speaker
    try:
        stats_2G = _read(data, data.cmvn.get(speaker), "cmvn.scp")
    except Speech3Error as error:
        raise Speech3Error(f"speaker {speaker}: {error}") from error
    rows, columns = stats_2G.shape
    if columns != feats_TF.shape[1] + 1 or rows < 1 + config.norm_vars or stats_2G[0, -1] < 1:
        raise Speech3Error(
            f"{data.path / 'cmvn.scp'}: speaker {speaker}: statistics of {rows} by {columns} values over"
            f" {stats_2G[0, -1]:g} frames do not fit features of {feats_TF.shape[1]} values; compute them again"
        )
    return apply_cmvn(torch.from_numpy(stats_2G), feats_TF, config.norm_means, config.norm_vars)
