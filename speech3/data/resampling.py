"""Sample rates: resampling of a whole recording or of one in progress, and checks of samples and rates from programs.

Resampling is torchaudio's. Its wheel from PyPI is compiled against CUDA; with a CPU build of torch `import torchaudio`
raises OSError (libc10_cuda.so). The functions that speech3 uses are written in Python on top of torch, so it is enough
to replace `torchaudio._extension` by a module that declares the compiled part to be missing.

Axes: S samples, O samples of the new rate.
"""

import importlib
import math
import numbers
import os
import reprlib
import sys
import types
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from speech3.errors import DataError, MachineError, SettingError

_MIN_HZ, _MOST_HZ = 1000, 768_000  # below are rates in kHz, above only mistakes
LARGEST_FLOAT = 16.0  # floats have full scale 1; some decoders exceed it a little
_ZEROS, _ROLLOFF = 6, 0.99  # of torchaudio's filter: its zero crossings to each side, and its cut-off
_MOST_TAPS = 10_000_000  # of all phases of the filter: 40 MB


def torchaudio_functional() -> Any:
    """Return the module `torchaudio.functional`."""
    try:
        return importlib.import_module("torchaudio.functional")
    except (OSError, ImportError, RuntimeError, AttributeError):
        _forget()
    sys.modules["torchaudio._extension"] = _stand_in()
    try:
        return importlib.import_module("torchaudio.functional")
    except Exception as error:
        _forget()
        raise MachineError(
            f"torchaudio cannot be imported ({type(error).__name__}: {error});"
            " install the torchaudio that matches your torch: pip install --upgrade torch torchaudio"
        ) from error


def _forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchaudio"]:
        del sys.modules[name]


def _stand_in() -> types.ModuleType:
    def refuse(function: Any) -> Any:
        def refused(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(f"{function.__name__} needs torchaudio's compiled part, which cannot be loaded here")

        return refused

    module = types.ModuleType("torchaudio._extension")
    vars(module).update(_IS_TORCHAUDIO_EXT_AVAILABLE=False, _IS_ALIGN_AVAILABLE=False, fail_if_no_align=refuse)
    return module


def resample(samples: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """Change the sample rate of float32 samples by band-limited (windowed sinc) interpolation.

    Returns ceil(samples * to_hz / from_hz) samples; `samples` itself if the rates are equal.
    """
    if from_hz == to_hz:
        return samples
    import torch

    return np.asarray(torchaudio_functional().resample(torch.from_numpy(samples), from_hz, to_hz).numpy(), np.float32)


def is_rate(rate_hz: int) -> bool:
    """Whether speech is recorded at this rate; a rate in kHz or a damaged number is outside the limits."""
    return _MIN_HZ <= rate_hz <= _MOST_HZ


def checked_rate(rate_hz: Any, name: str = "rate") -> int:
    """Return a sample rate as an int; an error if it is not a whole number of samples per second from 1,000 to 768,000.

    `name` is that of the argument or option, for the message.
    """
    given = f"{name} {rate_hz}" if name.startswith("-") else f"{name}={rate_hz!r}"
    number = float(rate_hz) if isinstance(rate_hz, numbers.Real) and not isinstance(rate_hz, bool | np.bool_) else 0.0
    if 0 < number < _MIN_HZ:
        guess = f" ({round(1000 * number)} for {number:g} kHz)" if number >= 4 else ""
        raise SettingError(
            f"{given}: not a sample rate; use samples per second, such as 16000{guess}, and at least {_MIN_HZ:,}"
        )
    if not (0 < number <= _MOST_HZ and number.is_integer()):
        raise SettingError(f"{given}: not a sample rate; use samples per second, such as 16000")
    return int(number)


def checked_samples(samples: ArrayLike) -> np.ndarray:
    """Samples as float32 (S,) in [-1, 1).

    `samples` are one channel, anything that numpy can convert to an array: floats from -1 to 1, or integers of 8 bits
    (unsigned), 16, 24 (in 32) or 32 bits over their whole range, as sound libraries return them. Other types and
    scales, bytes, several channels, and values that are not finite are errors.
    """
    if isinstance(samples, str | os.PathLike):
        raise SettingError(
            f"samples={reprlib.repr(samples)}: pass samples, not a file; read it, for instance with soundfile.read"
        )
    if isinstance(samples, bytes | bytearray | mmap) or (isinstance(samples, memoryview) and samples.itemsize == 1):
        raise SettingError(
            f"samples: are bytes ({type(samples).__name__}), which do not say how long a sample is; for raw samples of"
            " 16 bits, pass np.frombuffer(samples, np.int16); of a sound file, what soundfile.read returns"
        )
    # One channel.
    try:
        array = np.asarray(samples)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors of a GPU or with a gradient
        raise SettingError(f"samples: cannot be made an array of numbers ({error})") from error
    if not array.ndim:
        what = "one number" if array.dtype.kind in "biufc" else f"of type {type(samples).__name__}"
        raise SettingError(
            f"samples={reprlib.repr(samples)}: {what}, not a sequence of samples; pass one channel as a NumPy array"
            " or a list of numbers"
        )
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.ndim != 1:
        raise SettingError(
            f"samples of shape {array.shape}, but one channel is expected, (samples,); average the channels, or"
            " recognise them one at a time"
        )
    if not array.size:
        return np.zeros(0, np.float32)
    # Integers over their whole range, or floats of full scale 1.
    if array.dtype == np.uint8:
        return (array.astype(np.float32) - 128) / 128
    if array.dtype in (np.int16, np.int32):
        return (array / -float(np.iinfo(array.dtype).min)).astype(np.float32)
    if array.dtype.kind != "f":
        raise SettingError(
            f"samples of type {array.dtype}; use float from -1 to 1, or int16 (or int32, uint8) over its whole range"
        )
    if not np.isfinite(array).all():
        place = int(np.flatnonzero(~np.isfinite(array))[0])
        raise DataError(f"samples: sample {place} is not a finite number; remove it, or read the recording again")
    if (largest := float(np.abs(array).max())) > LARGEST_FLOAT:
        raise SettingError(
            f"samples: floats up to {largest:g}, but full scale is 1; divide samples of 16 bits by 32768, or pass int16"
        )
    return array.astype(np.float32)


class OnlineResampler:
    """`resample` of a recording in progress, to within rounding: `accept` its samples as they arrive, then `finish`.

    Samples are returned in steps, once the later samples that the filter needs (about a millisecond) have arrived. A
    step is 1 / (greatest common divisor of the rates) seconds: 10 ms from 44,100 to 16,000 Hz. It is an error if the
    divisor is too small, as for 44,101 and 16,000 Hz.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        check_rates(from_hz, to_hz)
        divisor = math.gcd(from_hz, to_hz)
        self._step, self._new = from_hz // divisor, to_hz // divisor  # samples of a step, before and after
        width = math.ceil(_ZEROS * self._step / (min(self._step, self._new) * _ROLLOFF))
        self._after, self._before = width, -(-width // self._step) * self._step
        self._kept_S = np.zeros(0, np.float32)  # from `before` ahead of the next step on, or from the beginning
        self._lead = self._samples = self._given = 0  # kept before the next step; accepted; returned

    def accept(self, wave_S: np.ndarray) -> np.ndarray:
        """Take the next samples, float32; return those of the new rate that are final."""
        self._samples += len(wave_S)
        if self._step == self._new:
            return wave_S
        self._kept_S = np.concatenate([self._kept_S, wave_S])
        steps = (len(self._kept_S) - self._lead - self._after) // self._step
        if steps <= 0:
            return wave_S[:0]
        done = self._lead + steps * self._step
        new_O = self._resampled(self._kept_S[: done + self._after])[: steps * self._new]
        self._kept_S = self._kept_S[max(0, done - self._before) :]
        self._lead = min(done, self._before)
        self._given += len(new_O)
        return new_O

    def finish(self) -> np.ndarray:
        """Return the samples that were still waiting."""
        if self._step == self._new or not len(self._kept_S):
            return self._kept_S
        left = -(-self._samples * self._new // self._step) - self._given
        return self._resampled(self._kept_S)[:left]

    def _resampled(self, wave_S: np.ndarray) -> np.ndarray:
        return resample(wave_S, self._step, self._new)[self._lead // self._step * self._new :]


def can_resample(from_hz: int, to_hz: int) -> bool:
    """Whether the filter has a reasonable length: it is long if the rates have no large common divisor."""
    divisor = math.gcd(from_hz, to_hz)
    return from_hz // divisor * (to_hz // divisor) <= _MOST_TAPS


def check_rates(from_hz: int, to_hz: int) -> None:
    """Refuse rates between which the filter would be too long; errors as for `OnlineResampler`."""
    if not can_resample(from_hz, to_hz):
        raise DataError(
            f"cannot resample {from_hz} Hz to {to_hz} Hz, which the model needs, with a filter of reasonable length; is"
            " it the right rate? Usual ones are 8000, 16000, 22050, 44100 and 48000"
        )
