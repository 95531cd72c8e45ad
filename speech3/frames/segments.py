"""Segments (phones, words) as labels of frames: twice the number of the segment, plus one in its first frame.

Thus two consecutive segments with the same number remain separate.

Axes: N segments, T frames.
"""

import numpy as np


def segment_labels(numbers_N: np.ndarray, starts_N1: np.ndarray) -> np.ndarray:
    """Labels (T,) int32 of segments, from their numbers (N,), and their first frames and the end (N + 1,)."""
    labels_T = np.repeat(2 * np.asarray(numbers_N, np.int32), np.diff(starts_N1))
    labels_T[starts_N1[:-1]] += 1
    return labels_T


def segment_starts(labels_T: np.ndarray) -> np.ndarray:
    """The first frames (N,) int64 of the segments."""
    starts_N: np.ndarray = np.flatnonzero(labels_T & 1)
    return starts_N


def segment_numbers(labels_T: np.ndarray) -> np.ndarray:
    """The numbers (N,) of the segments."""
    numbers_N: np.ndarray = labels_T[segment_starts(labels_T)] >> 1
    return numbers_N
