"""Which channels of a recording to use, where several become one: an average can cancel the speech.

Axes: S samples, C channels, W windows of 20 ms.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

_WINDOW_S = 0.02
_SILENT_DB = 40.0  # a channel that is quieter than the loudest by more than this has no sound of its own
_ALIKE = (
    0.75  # the average's share of the channels' mean energy: 1 if they are equal, 0.5 if independent, 0 if opposite
)
_SAME_SOURCE = 0.6  # correlation of the levels, in dB, of two channels that hear the same speech
_SPEECH_DB = 12.0  # from the quietest to the loudest tenth: noise alone varies less
_EQUAL_DB = 1.0  # of two channels that differ by less, the first is taken
_FLOOR = 1e-12


@dataclass(frozen=True)
class Mix:
    """The channels to average, counted from 0, and why not all; empty if all and if nothing is remarkable."""

    channels: tuple[int, ...]
    why: str = ""

    def mono(self, samples_SC: np.ndarray) -> np.ndarray:
        """One channel, float32 (S,)."""
        if len(self.channels) == 1:
            return np.ascontiguousarray(samples_SC[:, self.channels[0]])
        chosen_SC = samples_SC if len(self.channels) == samples_SC.shape[1] else samples_SC[:, self.channels]
        return np.ascontiguousarray(chosen_SC.mean(axis=1, dtype=np.float32))


@dataclass
class Listener:
    """Measures the channels of a recording block by block, and then chooses."""

    rate_hz: int
    _levels_WC: list[np.ndarray] = field(default_factory=list)
    _joint: np.ndarray | None = None  # (C, C): the sums of products, without the means
    _sums: np.ndarray | None = None
    _count: int = 0

    def hear(self, samples_SC: np.ndarray) -> None:
        """Take the next samples."""
        size = max(1, round(_WINDOW_S * self.rate_hz))
        whole = len(samples_SC) - len(samples_SC) % size
        if whole:
            windows_WSC = samples_SC[:whole].reshape(-1, size, samples_SC.shape[1])
            self._levels_WC.append(windows_WSC.var(axis=1, dtype=np.float64))
        exact_SC = samples_SC.astype(np.float64)
        joint, sums = exact_SC.T @ exact_SC, exact_SC.sum(0)
        self._joint = joint if self._joint is None else self._joint + joint
        self._sums = sums if self._sums is None else self._sums + sums
        self._count += len(samples_SC)

    def choose(self) -> Mix:
        """The channels to average."""
        if self._joint is None or self._sums is None:
            return Mix((0,))
        everything = tuple(range(len(self._sums)))
        mean = self._sums / self._count
        covariance_CC = self._joint / self._count - np.outer(mean, mean)
        energy_C = covariance_CC.diagonal().clip(0)
        if not energy_C.max() > _FLOOR:
            return Mix(everything)  # all are silent
        loud = tuple(np.flatnonzero(energy_C > energy_C.max() * 10 ** (-_SILENT_DB / 10)).tolist())
        if len(loud) == 1:
            silent = [channel for channel in everything if channel != loud[0]]
            are = "is silent" if len(silent) == 1 else "are silent"
            return Mix(loud, f"channel {loud[0] + 1} is used: {_named(silent)} {are}")
        among_CC = covariance_CC[np.ix_(loud, loud)]
        if among_CC.mean() >= _ALIKE * among_CC.diagonal().mean():
            if len(loud) == len(everything):
                return Mix(everything)
            silent = [channel for channel in everything if channel not in loud]
            are = "is silent" if len(silent) == 1 else "are silent"
            return Mix(loud, f"channels {_counted(loud)} are averaged: {_named(silent)} {are}")
        return self._differing(loud, energy_C, among_CC)

    def _differing(self, loud: tuple[int, ...], energy_C: np.ndarray, among_CC: np.ndarray) -> Mix:
        """Choose among channels whose average loses a part of the sound."""
        levels_CW = 10 * np.log10(np.concatenate(self._levels_WC).T + _FLOOR) if self._levels_WC else np.zeros((0, 0))
        if levels_CW.shape[-1] < 2:
            best = max(loud, key=lambda channel: energy_C[channel])
            return Mix((best,), f"channel {best + 1} is used, the loudest: the channels cancel each other")
        range_C = np.percentile(levels_CW, 90, axis=1) - np.percentile(levels_CW, 10, axis=1)
        spoken = [channel for channel in loud if range_C[channel] >= _SPEECH_DB] or list(loud)
        level = [levels_CW[channel] for channel in spoken]
        varies = all(each.std() > 0 for each in level)
        alike = np.corrcoef(level).min() if varies and len(spoken) > 1 else 1.0
        if len(spoken) > 1 and alike < _SAME_SOURCE:
            return Mix(
                tuple(spoken),
                f"channels {_counted(spoken)} are averaged although they differ, as those of several speakers do;"
                " recognise each by itself for better results",
            )
        widest = max(range_C[channel] for channel in spoken)
        good = [channel for channel in spoken if range_C[channel] > widest - _EQUAL_DB]
        loudest = max(energy_C[channel] for channel in good)
        best = next(channel for channel in good if energy_C[channel] > loudest * 10 ** (-_EQUAL_DB / 10))
        correlation = among_CC / np.sqrt(np.outer(among_CC.diagonal(), among_CC.diagonal()))
        why = "have opposite polarity" if correlation.min() < -_ALIKE else "differ, so that their average loses a part"
        return Mix((best,), f"channel {best + 1} is used, the better one: the channels {why}")


def _named(channels: Iterable[int]) -> str:
    numbers = [str(channel + 1) for channel in channels]
    return f"channel {numbers[0]}" if len(numbers) == 1 else f"channels {', '.join(numbers)}"


def _counted(channels: Iterable[int]) -> str:
    return ", ".join(str(channel + 1) for channel in channels)


def mix_of(samples_SC: np.ndarray, rate_hz: int) -> Mix:
    """The channels of samples (S, C) to average."""
    if samples_SC.shape[1] == 1:
        return Mix((0,))
    listener = Listener(rate_hz)
    listener.hear(samples_SC)
    return listener.choose()
