"""Waveforms to static features, and static features to a model's input: static -> CMVN -> deltas -> splicing.

Axes: N utterances, S samples, T frames, F features.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.config import FeatureConfig, PitchConfig
from speech3.features.blocks import mel_blocks
from speech3.features.cmvn import normalise
from speech3.features.deltas import add_deltas
from speech3.features.fbank import fbank
from speech3.features.mfcc import mfcc
from speech3.features.plp import plp
from speech3.features.splice import splice
from speech3.features.waves import check_waves
from speech3.features.window import framing, mirror_edges

_KINDS = {"fbank": fbank, "mfcc": mfcc, "plp": plp}


def static_dim(config: FeatureConfig) -> int:
    """Values per frame before deltas, including pitch."""
    return _spectral_dim(config) + (config.pitch.dim if config.pitch else 0)


def _spectral_dim(config: FeatureConfig) -> int:
    return config.num_mel_bins + config.use_energy if config.kind == "fbank" else config.num_ceps


def static_features(
    waves_NS: Tensor,
    lengths_N: Tensor,
    config: FeatureConfig,
    sample_rate_hz: int,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Filterbank, MFCC or PLP of a batch, with pitch appended if the config asks for it, before CMVN and deltas.

    Equal to Kaldi's compute-*-feats without dither, combined by paste-feats with process-kaldi-pitch-feats.

    Parameters
    ----------
    waves_NS
        float32 in [-1, 1), on any device. Samples beyond an utterance's length are ignored.
    lengths_N
        Samples of each utterance, integers.
    config
        Its `dither` is ignored: the caller adds dither, which has to be seeded.
    generator
        For the noise in delta pitch (`delta_pitch_noise_stddev`), on the CPU; without it no noise is added.

    Returns
    -------
    feats_NTF
        float32, on the device of `waves_NS`; zeros beyond an utterance's frames.
    frames_N
        int64 on the CPU; 0 for an utterance shorter than one frame. With pitch, the smaller of the two frame counts.

    Raises
    ------
    Speech3Error
        The config does not fit the sample rate; `check_waves` says which argument is wrong.
    """
    check_waves(waves_NS, lengths_N, sample_rate_hz)
    sizes = framing(config, sample_rate_hz)
    frames_N = torch.tensor([sizes.frames(samples) for samples in lengths_N.tolist()], dtype=torch.int64)
    pitch_NTP: Tensor | None = None
    if config.pitch and frames_N.any():
        pitch_NTP, pitch_N = _pitch(waves_NS, lengths_N, config, sample_rate_hz, generator)
        frames_N = torch.minimum(frames_N, pitch_N)
    frames = frames_N.tolist()
    longest, spectral = max(frames, default=0), _spectral_dim(config)
    feats_NTF = waves_NS.new_empty(len(frames), longest, static_dim(config))
    if longest > 0:
        if not config.snip_edges:
            waves_NS = mirror_edges(waves_NS, lengths_N, sizes, longest)
        for block in mel_blocks(waves_NS, frames, config, sample_rate_hz):
            feats_RF = _KINDS[config.kind](block.energies_RM, block.log_energy_R, config, sample_rate_hz)
            block.put(feats_RF, feats_NTF[..., :spectral])
    if pitch_NTP is not None:
        feats_NTF[..., spectral:] = pitch_NTP[:, :longest]
    if min(frames, default=0) < longest:
        beyond_NT = torch.arange(longest)[None, :] >= frames_N[:, None]
        feats_NTF.masked_fill_(beyond_NT[..., None].to(feats_NTF.device), 0.0)
    return feats_NTF, frames_N


def _pitch(
    waves_NS: Tensor,
    lengths_N: Tensor,
    config: FeatureConfig,
    sample_rate_hz: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Pitch features (N, T, P) at the times of the other features' frames, and their number for each utterance."""
    from speech3.features.pitch import process, track  # imports numba, which takes a second to load

    assert config.pitch is not None
    raw_NT2, frames_N = track(waves_NS, lengths_N, config, sample_rate_hz)
    noise_NT = None
    if config.pitch.delta_pitch_noise_stddev and generator is not None:
        noise_NT = torch.randn(raw_NT2.shape[:2], generator=generator).to(raw_NT2.device)
    feats_NTP = process(raw_NT2, frames_N, config.pitch, noise_NT)
    ratio = pitch_ratio(config, sample_rate_hz)
    if ratio == 1:
        return feats_NTP, frames_N
    nearest_T = (torch.arange(int(raw_NT2.shape[1] / ratio) + 1, dtype=torch.float64) * ratio).round().long()
    counts_N = torch.searchsorted(nearest_T, frames_N)
    nearest_T = nearest_T[: int(counts_N.max())]
    return feats_NTP[:, nearest_T.to(feats_NTP.device)], counts_N


def pitch_ratio(config: FeatureConfig, sample_rate_hz: int) -> float:
    """The other features' frame shift divided by that of pitch: their frame t lies at frame t * ratio of the pitch.

    The shifts are truncated to whole samples, one at the rate of the audio, the other at the rate at which pitch is
    tracked. If they differ as a result, as at 11,025 Hz, the nearest frame in time is taken. Otherwise the ratio is 1.
    """
    from speech3.features.pitch_nccf import pitch_sizes

    pitch = config.pitch or PitchConfig()
    samples = framing(config, sample_rate_hz).shift * int(pitch.resample_freq)
    return samples / (sample_rate_hz * pitch_sizes(config, sample_rate_hz).shift)


def finish(statics: list[Tensor], config: FeatureConfig, silent: Sequence[Tensor] | None = None) -> list[Tensor]:
    """CMVN, then deltas, then splicing for the utterances of one CMVN unit: one utterance, or all of one speaker.

    Parameters
    ----------
    statics
        float32 (T, F) each.
    silent
        For each, which frames are digital silence (`speech3.features.silence`); None: none.

    Returns
    -------
    list of Tensor
        float32 (T, F * (deltas + 1) * (left_context + 1 + right_context)) each, as Kaldi's
        ``apply-cmvn | add-deltas | splice-feats``.

    Raises
    ------
    Speech3Error
        Global statistics are missing or do not fit the features.
    """
    normal = normalise(statics, config, silent)
    derived = [add_deltas(feats_TF, config.deltas, config.delta_window) for feats_TF in normal]
    return [splice(feats_TF, config.left_context, config.right_context) for feats_TF in derived]
