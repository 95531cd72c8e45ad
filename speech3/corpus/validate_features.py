"""Faults of feature archives: entries that cannot be read, are not numbers, or do not fit their recordings.

Axes: T frames, F features.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speech3.corpus.datadir import DataDir
from speech3.corpus.tables import Fault, read_table
from speech3.errors import Speech3Error
from speech3.io.ark import key_at, not_finite, read_matrix
from speech3.io.parallel import parallel_map

_SHIFTS_S = (0.005, 0.008, 0.01, 0.0125, 0.015, 0.016, 0.02, 0.03, 0.04)
_NEAR = 0.05  # of the usual shift: the median of the features is as near to one of these, or their shift is not known
_SLACK = 0.02, 10  # share of an utterance's frames, and number of frames, by which features may be longer or shorter


@dataclass(frozen=True)
class _Matrix:
    """What is known about one matrix; `problem` says why it cannot be used."""

    frames: int = 0
    values: int = 0
    problem: str = ""
    key: str | None = None  # the name that its archive gives it, if that can be told


def feature_faults(
    data: DataDir, lengths_s: Mapping[str, float], scp: Path | None = None, jobs: int = 1
) -> list[Fault]:
    """The faults of the features of `data`, from its ``feats.scp`` or another one, and of its ``cmvn.scp``.

    Parameters
    ----------
    lengths_s
        Seconds of the utterances whose recordings could be read.

    Raises
    ------
    Speech3Error
        `scp` cannot be read.
    """
    faults: list[Fault] = []
    path, locations, directory = data.path / "feats.scp", data.feats, data.path
    if scp is not None:
        table = read_table(scp, faults)
        if table is None:
            raise Speech3Error(f"{scp}: no such file")
        path, directory = scp, scp.parent
        locations = {key: entry.value for key, entry in table.entries.items() if entry.value}
        for key in sorted(data.utterances.keys() - locations.keys()):
            faults.append(Fault("no features", str(path), key, "has no features", "extract them", drop=(key,)))
        if unused := sorted(locations.keys() - data.utterances.keys()):
            problem = f"{len(unused)} entries are of no utterance of {data.path}"
            faults.append(Fault("unknown utterance", str(path), unused[0], problem, "they are ignored", warning=True))
    ids = [key for key in data.utterances if key in locations]
    look = functools.partial(_look, directory)
    found = dict(zip(ids, parallel_map(look, [locations[key] for key in ids], jobs, f"reading {path}"), strict=True))
    faults += _faults(data, path, found)
    faults += _lengths(path, found, lengths_s)
    faults += _statistics(data) if scp is None else ()
    return faults


def _look(directory: Path, location: str) -> _Matrix:
    try:
        matrix = read_matrix(location, directory)
    except Speech3Error as error:
        return _Matrix(problem=str(error))
    if matrix.ndim != 2 or not matrix.size:
        return _Matrix(problem=f"{location}: not a matrix, or an empty one")
    if problem := not_finite(matrix):
        return _Matrix(len(matrix), matrix.shape[1], problem)
    return _Matrix(len(matrix), matrix.shape[1], key=key_at(location, directory))


def _faults(data: DataDir, path: Path, found: Mapping[str, _Matrix]) -> Iterator[Fault]:
    sizes = Counter(matrix.values for matrix in found.values() if matrix.values)
    usual = max(sizes, key=lambda values: (sizes[values], values)) if sizes else 0
    again = "compute them again, or remove the utterance"
    for key, matrix in found.items():
        if matrix.problem:
            yield Fault("unusable features", str(path), key, matrix.problem, again, drop=(key,))
        elif matrix.values != usual:
            problem = f"has {matrix.values} values per frame, but {sizes[usual]} of the utterances have {usual}"
            yield Fault("other feature size", str(path), key, problem, again, drop=(key,))
        elif matrix.key not in (None, key) and matrix.key in data.utterances:
            problem = f"its offset leads to the features of {matrix.key}"
            yield Fault("wrong offset", str(path), key, problem, "write the scp again", drop=(key,))


def _lengths(path: Path, found: Mapping[str, _Matrix], lengths_s: Mapping[str, float]) -> Iterator[Fault]:
    """Features that are much longer or shorter than their recordings, at the frame shift that most of them have."""
    usable = {key: matrix.frames for key, matrix in found.items() if not matrix.problem and key in lengths_s}
    if not usable:
        return
    median_s = float(np.median([lengths_s[key] / frames for key, frames in usable.items()]))
    shift_s = min(_SHIFTS_S, key=lambda shift: abs(shift - median_s))
    if abs(shift_s - median_s) > _NEAR * shift_s:
        shift_s = median_s
    share, most = _SLACK
    for key, frames in usable.items():
        expected = lengths_s[key] / shift_s
        if abs(frames - expected) > max(share * expected, most):
            problem = (
                f"has {frames} frames of features, but its recording of {lengths_s[key]:.2f} s should have about"
                f" {expected:.0f} ({1000 * shift_s:g} ms each, as for most utterances)"
            )
            remedy = "compute them again, or correct `segments`"
            yield Fault("other length", str(path), key, problem, remedy, drop=(key,))


def _statistics(data: DataDir) -> Iterator[Fault]:
    path, speakers = data.path / "cmvn.scp", data.speakers()
    for speaker, location in data.cmvn.items():
        try:
            stats_2G = read_matrix(location, data.path)
            problem = "are not finite numbers" if not np.isfinite(stats_2G).all() else ""
            problem = problem or ("are over no frame" if stats_2G[0, -1] < 1 else "")
        except (Speech3Error, IndexError) as error:
            problem = f"cannot be read: {error}"
        if problem:
            remedy = "compute them again, or remove the speaker's utterances"
            yield Fault("unusable statistics", str(path), speaker, f"its statistics {problem}", remedy,
                        drop=tuple(speakers.get(speaker, ())))  # fmt: skip
