"""Pitch features: Kaldi's process-kaldi-pitch-feats (feat/pitch-functions.cc, OnlineProcessPitch).

Axes: N utterances, T frames, 2 correlation and pitch, P values of a frame.
"""

import torch
from torch import Tensor

from speech3.config import PitchConfig
from speech3.features.deltas import delta_filters


def process(raw_NT2: Tensor, frames_N: Tensor, config: PitchConfig, noise_NT: Tensor | None = None) -> Tensor:
    """Voicing feature, normalised log pitch, delta pitch, raw log pitch, in this order; those that `config` asks for.

    Parameters
    ----------
    raw_NT2
        float32, from `pitch.track`; values beyond an utterance's frames are ignored.
    noise_NT
        Standard normal; added to delta pitch, scaled by `delta_pitch_noise_stddev`.

    Returns
    -------
    feats_NTP
        float32; zeros beyond an utterance's frames.
    """
    frames, device = raw_NT2.shape[1], raw_NT2.device
    if raw_NT2.shape[0] * frames == 0:
        return raw_NT2.new_zeros(*raw_NT2.shape[:2], config.dim)
    t_T, frames_N1 = torch.arange(frames, device=device), frames_N.to(device)[:, None]
    beyond_NT = t_T >= frames_N1
    nccf_NT = raw_NT2[..., 0].masked_fill(beyond_NT, 0.0)
    log_pitch_NT = raw_NT2[..., 1].masked_fill(beyond_NT, 1.0).log_()
    columns = []
    if config.add_pov_feature:
        columns.append(pov_feature(nccf_NT).mul_(config.pov_scale).add_(config.pov_offset))
    if config.add_normalized_log_pitch:
        columns.append(_normalised(log_pitch_NT, nccf_NT, beyond_NT, frames_N1, config).mul_(config.pitch_scale))
    if config.add_delta_pitch:
        delta_NT = _deltas(log_pitch_NT, frames_N1, config.delta_window)
        if noise_NT is not None:
            delta_NT.add_(noise_NT, alpha=config.delta_pitch_noise_stddev)
        columns.append(delta_NT.mul_(config.delta_pitch_scale))
    if config.add_raw_log_pitch:
        columns.append(log_pitch_NT)
    return torch.stack(columns, -1).masked_fill_(beyond_NT[..., None], 0.0)


def pov_feature(nccf_NT: Tensor) -> Tensor:
    """A voicing feature that is roughly Gaussian (Kaldi NccfToPovFeature)."""
    return (1.0001 - nccf_NT.clamp(-1, 1)).pow_(0.15).sub_(1.0)


def voicing(nccf_NT: Tensor) -> Tensor:
    """Probability of voicing (Kaldi NccfToPov)."""
    n_NT = nccf_NT.abs().clamp_(max=1.0)
    rise_NT = 5.4 * torch.exp(7.5 * (n_NT - 1)) + 4.2 * torch.exp(20 * (n_NT - 1))
    return torch.sigmoid_(rise_NT.add_(4.8 * n_NT).sub_(2 * torch.exp(-10 * n_NT)).sub_(5.2))


def _normalised(
    log_pitch_NT: Tensor, nccf_NT: Tensor, beyond_NT: Tensor, frames_N1: Tensor, config: PitchConfig
) -> Tensor:
    """Log pitch minus its mean over the surrounding frames, weighted by their probability of voicing."""
    voicing_NT = voicing(nccf_NT).double().masked_fill_(beyond_NT, 0.0)
    t_T = torch.arange(log_pitch_NT.shape[1], device=log_pitch_NT.device)
    first_T = (t_T - config.normalization_left_context).clamp_(min=0)
    last_NT = torch.minimum(t_T + config.normalization_right_context + 1, frames_N1)

    def around(values_NT: Tensor) -> Tensor:
        sums_NT = torch.nn.functional.pad(values_NT.cumsum(1), (1, 0))
        return sums_NT.gather(1, last_NT) - sums_NT[:, first_T]

    weight_NT = around(voicing_NT)
    mean_NT = around(voicing_NT * log_pitch_NT).div_(weight_NT.masked_fill_(beyond_NT, 1.0))
    return log_pitch_NT - mean_NT.float()


def _deltas(log_pitch_NT: Tensor, frames_N1: Tensor, window: int) -> Tensor:
    """First derivative, with the first and the last frame of each utterance repeated beyond the edges."""
    frames = log_pitch_NT.shape[1]
    t_T = torch.arange(-window, frames + window, device=log_pitch_NT.device)
    index_NT = torch.minimum(t_T, frames_N1 - 1).clamp_(min=0)
    padded_NT = log_pitch_NT.gather(1, index_NT)
    delta_NT = torch.zeros_like(log_pitch_NT)
    for j, tap in enumerate(delta_filters(1, window)[1].tolist()):
        delta_NT.add_(padded_NT[:, j : j + frames], alpha=tap)
    return delta_NT
