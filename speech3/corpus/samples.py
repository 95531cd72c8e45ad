"""Checks of samples and sample rates that a program passes to functions of speech3.

Axes: S samples.
"""

import numbers
import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from speech3.errors import Speech3Error

_LEAST_HZ, _MOST_HZ = 1000, 768_000  # below are rates in kHz, above only mistakes
_MOST = 16.0  # floats have full scale 1; some decoders exceed it a little


def checked_rate(rate_hz: Any, name: str = "rate") -> int:
    """Return a sample rate as an int.

    Parameters
    ----------
    name
        The argument's, for the message.

    Raises
    ------
    Speech3Error
        It is not a whole number of samples per second from 1,000 to 768,000.
    """
    number = float(rate_hz) if isinstance(rate_hz, numbers.Real) and not isinstance(rate_hz, bool | np.bool_) else 0.0
    if 0 < number < _LEAST_HZ:
        guess = f" ({round(1000 * number)} for {number:g} kHz)" if number >= 4 else ""
        raise Speech3Error(
            f"{name}={rate_hz!r}: not a sample rate; give samples per second, such as 16000{guess}, and at least"
            f" {_LEAST_HZ:,}"
        )
    if not (0 < number <= _MOST_HZ and number.is_integer()):
        raise Speech3Error(f"{name}={rate_hz!r}: not a sample rate; give samples per second, such as 16000")
    return int(number)


def checked_samples(samples: ArrayLike) -> np.ndarray:
    """Samples as float32 (S,) in [-1, 1).

    Parameters
    ----------
    samples
        One channel, anything that numpy can convert to an array: floats from -1 to 1, or integers of 8 bits (unsigned),
        16, 24 (in 32) or 32 bits over their whole range, as sound libraries return them.

    Raises
    ------
    Speech3Error
        There are several channels, the samples have another type or scale, or values are not finite.
    """
    if isinstance(samples, str | bytes | os.PathLike):
        raise Speech3Error(
            f"samples={samples!r}: give samples, not a file or its bytes; read it, for instance with soundfile.read"
        )
    try:
        array = np.asarray(samples)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors of a GPU or with a gradient
        raise Speech3Error(f"samples: cannot be made an array of numbers ({error})") from error
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise Speech3Error(
            f"samples of shape {array.shape}, but one channel is expected, (samples,); average the channels, or"
            " recognise them one at a time"
        )
    if not array.size:
        return np.zeros(0, np.float32)
    if array.dtype == np.uint8:
        return (array.astype(np.float32) - 128) / 128
    if array.dtype in (np.int16, np.int32):
        return (array / -float(np.iinfo(array.dtype).min)).astype(np.float32)
    if array.dtype.kind != "f":
        raise Speech3Error(
            f"samples of type {array.dtype}; give float from -1 to 1, or int16 (or int32, uint8) over its whole range"
        )
    if not np.isfinite(array).all():
        place = int(np.flatnonzero(~np.isfinite(array))[0])
        raise Speech3Error(f"samples: sample {place} is not a finite number; remove it, or read the recording again")
    if (largest := float(np.abs(array).max())) > _MOST:
        raise Speech3Error(
            f"samples: floats up to {largest:g}, but full scale is 1; divide samples of 16 bits by 32768, or give int16"
        )
    return array.astype(np.float32)
