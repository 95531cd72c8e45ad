"""Features that exist in a data directory (`feats.scp`), normalised by its `cmvn.scp` (Kaldi's apply-cmvn).

Axes: T frames, F features, 2 sums and sums of squares, G features and the frame count.
"""

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.corpus.datadir import DataDir
from speech3.errors import Speech3Error
from speech3.features.cmvn import apply_cmvn
from speech3.features.silence import repeated_frames
from speech3.io.ark import read_matrix


def normalised_by_directory(data: DataDir, config: FeatureConfig) -> bool:
    """Whether `given_statics` normalises the features with the statistics of the directory (``cmvn.scp``)."""
    return config.kind == "given" and config.cmvn == "speaker" and bool(data.cmvn)


def given_statics(data: DataDir, config: FeatureConfig) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Features of all utterances of `data`, float32 (T, F), and the reason for each utterance without features.

    If `config` normalises by speaker and the directory has a ``cmvn.scp``, the features are normalised with that.
    Otherwise they are not normalised, and the caller computes the statistics.
    """
    statics: dict[str, Tensor] = {}
    bad: dict[str, str] = {}
    for utterance in sorted(data.utterances):
        try:
            static_TF = torch.from_numpy(_read(data, data.feats.get(utterance), "feats.scp"))
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
    rows, columns = stats_2G.shape
    if columns != feats_TF.shape[1] + 1 or rows < 1 + config.norm_vars or stats_2G[0, -1] < 1:
        raise Speech3Error(
            f"{data.path / 'cmvn.scp'}: speaker {speaker}: statistics of {rows} by {columns} values over"
            f" {stats_2G[0, -1]:g} frames do not fit features of {feats_TF.shape[1]} values; compute them again"
        )
    stats, silent_T = torch.from_numpy(stats_2G), repeated_frames(feats_TF)
    return apply_cmvn(stats, feats_TF, config.norm_means, config.norm_vars, silent_T)
