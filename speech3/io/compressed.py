"""Kaldi's compressed matrices, read and written (Kaldi matrix/compressed-matrix.{h,cc}).

`CM`, for features: one byte per value, with four percentiles for each column, between which the 256 levels are spaced
evenly (64 steps below the first quartile, 128 between the quartiles, 63 above). `CM2` and `CM3`: two bytes or one byte
per value, spaced evenly from the smallest value of the matrix to the largest.

Axes: T frames, F feature bins, 4 percentiles (0, 25, 75, 100).
"""

import struct
from typing import IO

import numpy as np

TOKENS = (b"CM ", b"CM2 ", b"CM3 ")
_HEADER = struct.Struct("<ffii")  # smallest value, range, rows, columns
_FEW_ROWS = 8  # up to this number Kaldi writes CM2: the headers of the columns would cost more than they save
_LEVELS_16 = np.float32(1 / 65535)


def read_compressed(token: bytes, stream: IO[bytes]) -> np.ndarray:
    """Read the matrix after its token (one of `TOKENS`), float32 (T, F).

    Raises
    ------
    EOFError
        The stream ends within the matrix.
    ValueError
        The header is not valid.
    """
    smallest, width, rows, columns = _HEADER.unpack(_take(stream, _HEADER.size))
    if rows < 0 or columns < 0 or not np.isfinite([smallest, width]).all():
        raise ValueError(f"a compressed matrix of {rows} by {columns} values")
    smallest, width = np.float32(smallest), np.float32(width)
    if token == b"CM2 ":
        levels_TF = np.frombuffer(_take(stream, 2 * rows * columns), "<u2").reshape(rows, columns)
        return smallest + levels_TF.astype(np.float32) * np.float32(width / 65535)
    if token == b"CM3 ":
        levels_TF = np.frombuffer(_take(stream, rows * columns), np.uint8).reshape(rows, columns)
        return smallest + levels_TF.astype(np.float32) * np.float32(width / 255)
    heads_F4 = np.frombuffer(_take(stream, 8 * columns), "<u2").reshape(columns, 4)
    levels_FT = np.frombuffer(_take(stream, rows * columns), np.uint8).reshape(columns, rows)
    table_FL = _table(_to_float(heads_F4, smallest, width))
    return np.ascontiguousarray(np.take_along_axis(table_FL, levels_FT.astype(np.intp), axis=1).T)


def write_compressed(stream: IO[bytes], feats_TF: np.ndarray) -> None:
    """Write a matrix as Kaldi's ``copy-feats --compress=true`` does: `CM`, or `CM2` if it has at most 8 rows.

    Raises
    ------
    ValueError
        A value is not a finite number.
    """
    feats_TF = np.asarray(feats_TF, np.float32)
    rows, columns = feats_TF.shape
    if feats_TF.size == 0:
        stream.write(TOKENS[0] + _HEADER.pack(0, 0, 0, 0))
        return
    smallest, largest = feats_TF.min(), feats_TF.max()
    if not np.isfinite([smallest, largest]).all():
        raise ValueError("values that are not finite numbers cannot be compressed")
    if largest == smallest:
        largest = np.float32(smallest + 1 + abs(smallest))
    width = np.float32(largest - smallest)
    header = _HEADER.pack(smallest, width, rows, columns)
    if rows <= _FEW_ROWS:
        stream.write(TOKENS[1] + header + _to_levels(feats_TF, smallest, width).tobytes())
        return
    heads_F4 = _heads(feats_TF, smallest, width)
    levels_TF = _nearest(feats_TF, _to_float(heads_F4, smallest, width))
    stream.write(TOKENS[0] + header + heads_F4.tobytes() + np.ascontiguousarray(levels_TF.T).tobytes())


def _take(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError
    return data


def _to_float(levels: np.ndarray, smallest: np.float32, width: np.float32) -> np.ndarray:
    return smallest + width * _LEVELS_16 * levels.astype(np.float32)


def _to_levels(values: np.ndarray, smallest: np.float32, width: np.float32) -> np.ndarray:
    share = np.clip((values - smallest) / width, 0, 1)
    return ((share * np.float32(65535)).astype(np.float64) + 0.499).astype("<u2")  # 0.499 is Kaldi's


def _table(percentiles_F4: np.ndarray) -> np.ndarray:
    """(F, 256) float32: the value of each byte in each column."""
    p0, p25, p75, p100 = percentiles_F4.T[..., None]
    byte_L = np.arange(256, dtype=np.float32)

    def between(low: np.ndarray, high: np.ndarray, first: int, steps: float) -> np.ndarray:
        return low + ((high - low) * (byte_L - first)).astype(np.float64) * (1 / steps)  # rounded where Kaldi rounds

    upper = np.where(byte_L <= 192, between(p25, p75, 64, 128), between(p75, p100, 192, 63))
    return np.where(byte_L <= 64, between(p0, p25, 0, 64), upper).astype(np.float32)


def _heads(feats_TF: np.ndarray, smallest: np.float32, width: np.float32) -> np.ndarray:
    """Levels (F, 4) of the percentiles, each at least one above the previous one; needs at least nine rows."""
    rows = len(feats_TF)
    places = [0, rows // 4, 3 * (rows // 4), rows - 1]
    found_4F = _to_levels(np.partition(feats_TF, places, axis=0)[places], smallest, width).astype(np.int32)
    found_4F[0] = np.minimum(found_4F[0], 65532)
    for place, most in ((1, 65533), (2, 65534), (3, 65535)):
        found_4F[place] = np.minimum(np.maximum(found_4F[place], found_4F[place - 1] + 1), most)
    return np.ascontiguousarray(found_4F.T.astype("<u2"))


def _nearest(feats_TF: np.ndarray, percentiles_F4: np.ndarray) -> np.ndarray:
    """The level nearest to each value, (T, F) uint8."""
    p0, p25, p75, p100 = percentiles_F4.T

    def level(low: np.ndarray, high: np.ndarray, steps: int) -> np.ndarray:
        share = ((feats_TF - low) / (high - low) * np.float32(steps)).astype(np.float64)
        return np.clip(np.trunc(share + 0.5), 0, steps)

    upper = np.where(feats_TF < p75, 64 + level(p25, p75, 128), 192 + level(p75, p100, 63))
    return np.where(feats_TF < p25, level(p0, p25, 64), upper).astype(np.uint8)
