"""Finite-state transducers as numpy arrays, and OpenFst's binary `const` format, which exchanges them with kaldifst.

From Python, kaldifst visits arcs one at a time, which is too slow for millions. A `const` file is two flat arrays
(states, then arcs), so everything that changes every arc (labels, penalties, self-loops) is done here, on columns.

Axes: S states, A arcs.
"""

import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from speech3.errors import FormatError
from speech3.runtime import atomic_path

ARC = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("weight", "<f4"), ("nextstate", "<i4")])
_STATE = np.dtype([("final", "<f4"), ("pos", "<u4"), ("arcs", "<u4"), ("iepsilons", "<u4"), ("oepsilons", "<u4")])
_MAGIC, _VERSION, _EXPANDED = 2125659606, 2, 1  # openfst: fst.cc kFstMagicNumber; const-fst.h; properties.h kExpanded
_HEADER = struct.Struct("<ii5si8siiQqqq")


@dataclass(frozen=True, eq=False)
class Fst:
    """A weighted transducer over the tropical semiring."""

    start: int  # number of the start state, -1 in an empty transducer
    final_S: np.ndarray  # float32 final costs; infinity where a state is not final
    source_A: np.ndarray  # int32 state that each arc leaves
    arcs_A: np.ndarray  # of dtype ARC


@dataclass
class FstBuilder:
    """Builds a transducer state by state and arc by arc; for small ones (L, G of grammars)."""

    arcs: list[tuple[int, int, float, int]] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    finals: list[float] = field(default_factory=list)

    def state(self, final: float = np.inf) -> int:
        """Add a state and return its number; the first one is the start."""
        self.finals.append(final)
        return len(self.finals) - 1

    def arc(self, source: int, target: int, ilabel: int, olabel: int, cost: float = 0.0) -> None:
        self.sources.append(source)
        self.arcs.append((ilabel, olabel, cost, target))

    def chain(self, source: int, target: int, ilabels: Iterable[int], olabel: int, cost: float) -> None:
        """Add a path with the input labels `ilabels`; its first arc has the output label `olabel` and all the cost."""
        *first, last = ilabels
        for label in first:
            middle = self.state()
            self.arc(source, middle, label, olabel, cost)
            source, olabel, cost = middle, 0, 0.0
        self.arc(source, target, last, olabel, cost)

    def fst(self) -> Fst:
        arcs = np.array(self.arcs, ARC) if self.arcs else np.zeros(0, ARC)
        return Fst(0 if self.finals else -1, np.array(self.finals, np.float32), np.array(self.sources, np.int32), arcs)


def write_fst(fst: Fst, path: Path | str) -> None:
    """Write OpenFst's `const` format, which Kaldi's and OpenFst's programs can also read."""
    states, arcs = len(fst.final_S), len(fst.arcs_A)
    order = np.argsort(fst.source_A, kind="stable")
    records = np.zeros(states, _STATE)
    records["final"] = fst.final_S
    records["arcs"] = np.bincount(fst.source_A, minlength=states)
    records["pos"] = np.cumsum(records["arcs"]) - records["arcs"]
    for side in ("ilabel", "olabel"):
        empty = fst.source_A[fst.arcs_A[side] == 0]
        records[f"{side[0]}epsilons"] = np.bincount(empty, minlength=states)
    header = _HEADER.pack(_MAGIC, 5, b"const", 8, b"standard", _VERSION, 0, _EXPANDED, fst.start, states, arcs)
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        stream.write(header)
        stream.write(records.tobytes())
        stream.write(fst.arcs_A[order].tobytes())


def read_fst(path: Path | str) -> Fst:
    """Read a `const` file and check that it is intact, because OpenFst would crash on a damaged one."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}; build the graph again") from error
    head = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else None
    if head is None or (head[0], head[2], head[4], head[5]) != (_MAGIC, b"const", b"standard", _VERSION):
        raise FormatError(f"{path}: not an OpenFst file of type const/standard, or cut short; build the graph again")
    start, states, arcs = head[8:]
    if states < 0 or arcs < 0 or len(data) != _HEADER.size + states * _STATE.itemsize + arcs * ARC.itemsize:
        raise FormatError(f"{path}: cut short ({len(data)} bytes); build the graph again")
    records = np.frombuffer(data, _STATE, states, _HEADER.size)
    arcs_A = np.frombuffer(data, ARC, arcs, _HEADER.size + states * _STATE.itemsize)
    counts = records["arcs"].astype(np.int64)
    consistent = counts.sum() == arcs and np.array_equal(records["pos"], np.cumsum(counts) - counts)
    next_A = arcs_A["nextstate"]
    if not consistent or not -1 <= start < states or (arcs and not (next_A.min() >= 0 and next_A.max() < states)):
        raise FormatError(f"{path}: damaged: an arc leads to a state that does not exist; build the graph again")
    return Fst(start, records["final"], np.repeat(np.arange(states, dtype=np.int32), counts), arcs_A)


@contextmanager
def temporary_fst(fst: Fst) -> Iterator[Path]:
    """Write `fst` to a temporary file that is deleted at the end of the `with` block."""
    with tempfile.TemporaryDirectory(prefix="speech3-") as directory:
        path = Path(directory) / "graph.fst"
        write_fst(fst, path)
        yield path


def to_kaldifst(fst: Fst) -> Any:
    import kaldifst

    with temporary_fst(fst) as path:
        return kaldifst.StdVectorFst(kaldifst.StdConstFst.read(str(path)))


def from_kaldifst(fst: Any) -> Fst:
    import kaldifst

    with tempfile.TemporaryDirectory(prefix="speech3-") as directory:
        path = Path(directory) / "graph.fst"
        kaldifst.StdConstFst(fst).write(str(path))
        return read_fst(path)
