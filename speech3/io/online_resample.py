"""Resamples a recording in progress: `torchaudio_.resample`, piece by piece.

Axes: S samples, O samples of the new rate.
"""

import math

import numpy as np

from speech3.errors import Speech3Error
from speech3.io.torchaudio_ import resample

_ZEROS, _ROLLOFF = 6, 0.99  # of torchaudio's filter: its zero crossings to each side, and its cut-off
_MOST_TAPS = 10_000_000  # of all phases of the filter: 40 MB


class OnlineResampler:
    """Call `accept` with samples as they arrive, then `finish`: the result is that of the whole recording, to within
    rounding.

    Samples are returned in steps, once the later samples that the filter needs (about a millisecond) have arrived. A
    step is 1 / (greatest common divisor of the rates) seconds: 10 ms from 44,100 to 16,000 Hz.

    Raises
    ------
    Speech3Error
        The common divisor of the rates is too small, as for 44,101 and 16,000 Hz.
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
        """The new samples that belong to the next step and later ones."""
        return resample(wave_S, self._step, self._new)[self._lead // self._step * self._new :]


def can_resample(from_hz: int, to_hz: int) -> bool:
    """Whether the filter has a reasonable length: it is long if the rates have no large common divisor."""
    divisor = math.gcd(from_hz, to_hz)
    return from_hz // divisor * (to_hz // divisor) <= _MOST_TAPS


def check_rates(from_hz: int, to_hz: int) -> None:
    """Refuse rates between which the filter would be too long; errors as for `OnlineResampler`."""
    if not can_resample(from_hz, to_hz):
        raise Speech3Error(
            f"cannot resample {from_hz} Hz to {to_hz} Hz, which the model needs, with a filter of reasonable length; is"
            " it the right rate? Usual ones are 8000, 16000, 22050, 44100 and 48000"
        )
