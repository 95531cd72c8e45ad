"""A check of the waveforms that are passed to feature extraction.

Axes: N utterances, S samples.
"""

from typing import Any

import torch
from torch import Tensor

from speech3.corpus.samples import checked_rate
from speech3.errors import Speech3Error

_REMEDY = "give float32 from -1 to 1, one row for each utterance, and the number of samples of each"


def check_waves(waves_NS: Any, lengths_N: Any, sample_rate_hz: Any) -> None:
    """Refuse arguments from which features would be wrong, or an error come much later.

    Raises
    ------
    Speech3Error
        The message names the argument.
    """
    checked_rate(sample_rate_hz, "sample_rate_hz")
    # Samples that are no numbers are no error here: they may be padding, and harm only their own recording.
    check_wave(waves_NS, "waves_NS", 2, finite=False)
    if not isinstance(lengths_N, Tensor) or lengths_N.dim() != 1 or lengths_N.is_floating_point():
        raise Speech3Error(f"lengths_N: is {_kind(lengths_N)}, not a tensor (N,) of integers; {_REMEDY}")
    if len(lengths_N) != len(waves_NS):
        raise Speech3Error(f"lengths_N: {len(lengths_N)} lengths of {len(waves_NS)} waveforms; {_REMEDY}")
    if len(lengths_N) and not 0 <= int(lengths_N.min()) <= int(lengths_N.max()) <= waves_NS.shape[1]:
        raise Speech3Error(f"lengths_N: must be from 0 to {waves_NS.shape[1]}, the samples of waves_NS; {_REMEDY}")


def check_wave(wave: Any, name: str, axes: int, *, finite: bool = True) -> None:
    """Refuse what is no tensor of (finite) float samples with that many axes; the message names the argument.

    Raises
    ------
    Speech3Error
    """
    if not isinstance(wave, Tensor) or wave.dim() != axes or not wave.is_floating_point():
        raise Speech3Error(f"{name}: is {_kind(wave)}, not a float tensor of {axes} axes; {_REMEDY}")
    if finite and wave.device.type == "cpu" and not torch.isfinite(wave).all():  # on a GPU, the check would wait for it
        raise Speech3Error(f"{name}: has samples that are not finite numbers; {_REMEDY}")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"
