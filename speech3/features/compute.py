"""Waveforms to static features, and static features to what a model reads: static -> CMVN -> deltas.

Axes: N utterances, S samples, T frames, F features.
"""

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.cmvn import apply_cmvn, cmvn_stats
from speech3.features.deltas import add_deltas
from speech3.features.fbank import fbank
from speech3.features.mfcc import mfcc
from speech3.features.spectrum import power_spectra
from speech3.features.window import framing, mirror_edges

_KINDS = {"fbank": fbank, "mfcc": mfcc}


def static_dim(config: FeatureConfig) -> int:
    """Values per frame before deltas."""
    return config.num_ceps if config.kind == "mfcc" else config.num_mel_bins + config.use_energy


def static_features(
    waves_NS: Tensor, lengths_N: Tensor, config: FeatureConfig, sample_rate_hz: int
) -> tuple[Tensor, Tensor]:
    """Filterbank or MFCC of a batch, without CMVN and deltas; equal to Kaldi's compute-*-feats without dither.

    Parameters
    ----------
    waves_NS
        float32 in [-1, 1), on any device. What lies beyond an utterance's length is not looked at.
    lengths_N
        Samples of each utterance, integers.
    config
        Its `dither` is left to the caller, who knows how to seed it.

    Returns
    -------
    feats_NTF
        float32, on the device of `waves_NS`; zeros beyond an utterance's frames.
    frames_N
        int64 on the CPU; 0 for an utterance shorter than one frame.

    Raises
    ------
    Speech3Error
        The config does not fit the sample rate.
    """
    sizes = framing(config, sample_rate_hz)
    frames = [sizes.frames(samples) for samples in lengths_N.tolist()]
    longest = max(frames, default=0)
    feats_NTF = waves_NS.new_zeros(len(frames), longest, static_dim(config))
    if longest > 0:
        if not config.snip_edges:
            waves_NS = mirror_edges(waves_NS, lengths_N, sizes, longest)
        for chunk in power_spectra(waves_NS, frames, config, sample_rate_hz):
            energy_R = None if chunk.log_energy_NT is None else chunk.log_energy_NT.flatten()
            feats_RF = _KINDS[config.kind](chunk.power_NTB.flatten(0, 1), energy_R, config, sample_rate_hz)
            n, t = chunk.power_NTB.shape[:2]
            place_NTF = feats_NTF[chunk.first : chunk.first + n, chunk.start : chunk.start + t]
            place_NTF.copy_(feats_RF.view(n, t, -1))
    frames_N = torch.tensor(frames, dtype=torch.int64)
    if min(frames, default=0) < longest:
        beyond_NT = torch.arange(longest)[None, :] >= frames_N[:, None]
        feats_NTF.masked_fill_(beyond_NT[..., None].to(feats_NTF.device), 0.0)
    return feats_NTF, frames_N


def finish(statics: list[Tensor], config: FeatureConfig) -> list[Tensor]:
    """CMVN, then deltas, of the utterances of one CMVN unit: one utterance, or all utterances of one speaker.

    Parameters
    ----------
    statics
        float32 (T, F) each.

    Returns
    -------
    list of Tensor
        float32 (T, F * (deltas + 1)) each, as Kaldi's ``apply-cmvn | add-deltas``.
    """
    if config.cmvn != "none":
        stats_2F = torch.stack([cmvn_stats(static_TF) for static_TF in statics]).sum(0)
        statics = [apply_cmvn(stats_2F, static_TF, config.norm_means, config.norm_vars) for static_TF in statics]
    return [add_deltas(static_TF, config.deltas, config.delta_window) for static_TF in statics]
