"""Kaldi's lattice archives (kaldi-lattice.cc): written as binary files, read as binary or text files.

A `Lattice` is Kaldi's Lattice (OpenFst's arc type ``lattice4``), a `WordLattice` its CompactLattice
(``compactlattice44``). Acoustic costs are unscaled in both. Lattices written here have pdfs + 1 in place of Kaldi's
transition-ids, so tools that look up transition-ids in a model (such as lattice-align-words) cannot be used on them.

In a binary lattice (OpenFst's vector-fst.h, Kaldi's lattice-weight.h), a state is its final weight, the number of its
arcs (8 bytes), and the arcs: input and output label, weight, next state. A weight is two float32 costs; in a compact
lattice, the number of its labels and the labels follow.

Axes: N bytes, S states, S1 one more, A arcs, A1 one more, K labels of all arcs, L labels of all final weights.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from speech3.decode.beam_search import Lattice, topological
from speech3.decode.word_lattice import WordLattice, joined_ranges
from speech3.errors import FormatError
from speech3.io import index_line
from speech3.runtime import atomic_path, jit, write_text

_MAGIC = struct.pack("<i", 2125659606)  # OpenFst's
_HEADER = struct.Struct("<iiQqqq")  # version, flags, properties, start, states, arcs
_VERSION, _EXPANDED_AND_MUTABLE = 2, 3  # of OpenFst's vector-fst.h; properties.h
_Weight = tuple[float, float, tuple[int, ...]]  # graph cost, acoustic cost, labels
_FREE: _Weight = (0.0, 0.0, ())
_TYPES = (b"lattice4", b"compactlattice44")


class LatticeBody(NamedTuple):
    """The states and arcs returned by `read_body`."""

    arcs_A4: np.ndarray  # int64: source, target, input label, output label
    # costs_A2, final_costs_S2: float32: graph and acoustic cost
    costs_A2: np.ndarray
    # labels_K, begin_A1, final_labels_L, final_begin_S1: int32 labels, and int64 offsets where the labels of each arc
    # and of each final weight begin
    labels_K: np.ndarray
    begin_A1: np.ndarray
    final_costs_S2: np.ndarray
    final_labels_L: np.ndarray
    final_begin_S1: np.ndarray


def read_body(data_N: np.ndarray, at: int, states: int, compact: bool) -> tuple[LatticeBody, int]:
    """Parse the states from byte `at` on; return them and the offset of the byte after them.

    A ValueError says that the bytes end before the states do, or contain an impossible number.
    """
    if not 0 <= states <= len(data_N) // 16:
        raise ValueError(f"{states} states")
    arcs, costs, labels_K, begin_A1, final_costs, final_labels_L, final_begin_S1, end = _read_states(
        data_N, at, states, compact
    )
    if end < 0:
        raise ValueError("the file ends within it")
    costs_A2, final_costs_S2 = (each.view(np.float32).reshape(-1, 2) for each in (costs, final_costs))
    arcs_A4 = arcs.reshape(-1, 4)
    body = LatticeBody(arcs_A4, costs_A2, labels_K, begin_A1, final_costs_S2, final_labels_L, final_begin_S1)
    return body, int(end)


@jit
def _int32(data, at):  # type: ignore[no-untyped-def]
    number = np.uint32(0)
    for place in range(4):
        number |= np.uint32(data[at + place]) << np.uint32(8 * place)
    return np.int32(number)


@jit
def _int64(data, at):  # type: ignore[no-untyped-def]
    number = np.uint64(0)
    for place in range(8):
        number |= np.uint64(data[at + place]) << np.uint64(8 * place)
    return np.int64(number)


@jit
def _read_states(data, at, states, compact):  # type: ignore[no-untyped-def]
    """The columns of a `LatticeBody`, costs as raw bits, and the end; -1 if the bytes end before that."""
    arcs = [np.int64(0)]
    costs, labels, begin = [np.int32(0)], [np.int32(0)], [0]
    final_costs, final_labels, final_begin = [np.int32(0)], [np.int32(0)], [0]
    arcs.clear()
    for each in (costs, labels, final_costs, final_labels):
        each.clear()
    # OpenFst's layout: for each state its final weight, the number of its arcs, and the arcs.
    for s in range(states):
        at = _read_weight(data, at, compact, final_costs, final_labels, final_begin)
        leaving = _int64(data, at) if 0 <= at <= len(data) - 8 else -1
        at = at + 8 if leaving >= 0 else -1
        for _ in range(leaving):
            if not 0 <= at <= len(data) - 8:
                at = -1
                break
            # An arc: both labels, its weight, the state that it enters.
            ilabel, olabel = _int32(data, at), _int32(data, at + 4)
            at = _read_weight(data, at + 8, compact, costs, labels, begin)
            if not 0 <= at <= len(data) - 4:
                at = -1
                break
            for number in (np.int64(s), np.int64(_int32(data, at)), np.int64(ilabel), np.int64(olabel)):
                arcs.append(number)
            at += 4
        if at < 0:
            break
    # The numbers of arcs were not known before, so these were lists.
    of_arcs = np.array(costs), np.array(labels), np.array(begin)
    of_states = np.array(final_costs), np.array(final_labels), np.array(final_begin)
    return np.array(arcs), *of_arcs, *of_states, at


@jit
def _read_weight(data, at, compact, costs, labels, begin):  # type: ignore[no-untyped-def]
    """Append a weight's costs and labels, and where the labels of the next begin; return its end, -1 if cut short."""
    size = 12 if compact else 8
    if at + size > len(data):
        return -1
    number = _int32(data, at + 8) if compact else 0
    if number < 0 or at + size + 4 * number > len(data):
        return -1
    costs.append(_int32(data, at))
    costs.append(_int32(data, at + 4))
    for place in range(number):
        labels.append(_int32(data, at + 12 + 4 * place))
    begin.append(len(labels))
    return at + size + 4 * number


@jit
def frames_read(source, target, frames, start, states):  # type: ignore[no-untyped-def]
    """(S,) int64 number of frames read up to each state, -1 if unreachable; and a state with two such numbers, or -1.

    Arcs are ordered such that all arcs into a state come before all arcs out of it.
    """
    frame = np.full(states, -1, np.int64)
    frame[start] = 0
    for a in range(len(source)):
        if frame[source[a]] >= 0:
            there = frame[source[a]] + frames[a]
            if frame[target[a]] >= 0 and frame[target[a]] != there:
                return frame, target[a]
            frame[target[a]] = there
    return frame, np.int64(-1)


def write_lattices(
    path: Path | str, items: Iterable[tuple[str, Lattice | WordLattice]], scp: Path | str | None = None
) -> int:
    """Write lattices as an archive, which appears once all are written; return their number.

    `scp` gets the archive's index: ``utterance /absolute/path.ark:offset`` lines, sorted.
    """
    index: list[str] = []
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        for utterance, lattice in items:
            stream.write(utterance.encode() + b" ")
            index.append(index_line(utterance, path, stream.tell()))
            _write(stream, lattice)
    if scp is not None:
        write_text(scp, "".join(sorted(index)))
    return len(index)


def read_lattices(path: Path | str) -> Iterator[tuple[str, Lattice | WordLattice]]:
    """Read an archive, one lattice at a time.

    Raises `Speech3Error`: the file is missing, cut short or not a lattice archive; a lattice has a cycle, or its paths
    to a state read different numbers of frames.
    """
    try:
        stream = Path(path).open("rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from error
    data_N: np.ndarray | None = None
    with stream:
        while key := _key(stream, path):
            where = f"{path}: {key}"
            try:
                if _is_text(stream):
                    body, start, compact = _read_text(stream)
                else:
                    data_N = np.asarray(np.memmap(path, np.uint8, "r")) if data_N is None else data_N
                    body, start, compact = _read_binary(stream, data_N)
            except (struct.error, ValueError, IndexError, OverflowError) as error:
                raise FormatError(f"{where}: cut short, or not a lattice ({error})") from error
            yield key, _put_together(body, start, compact, where)


def _write(stream: IO[bytes], lattice: Lattice | WordLattice) -> None:
    # A weight is two costs and, in a compact lattice, its labels.
    if isinstance(lattice, Lattice):
        kind, labels = b"lattice4", (lattice.ilabel_A, lattice.olabel_A)
        finals = [struct.pack("<ff", cost, 0.0 if np.isfinite(cost) else cost) for cost in lattice.final_S.tolist()]
        costs = zip(lattice.graph_A.tolist(), lattice.acoustic_A.tolist(), strict=True)
        weights = [struct.pack("<ff", *each) for each in costs]
    else:
        kind, labels = b"compactlattice44", (lattice.word_A, lattice.word_A)
        ends = zip(lattice.final_graph_S.tolist(), lattice.final_acoustic_S.tolist(), lattice.final_pdfs_S, strict=True)
        finals = [_compact_weight(*each) for each in ends]
        pdfs_A = np.split(lattice.pdfs_K, lattice.begin_A1[1:-1])
        arcs = zip(lattice.graph_A.tolist(), lattice.acoustic_A.tolist(), pdfs_A, strict=False)
        weights = [_compact_weight(*each) for each in arcs]
    stream.write(_MAGIC + b"".join(struct.pack("<i", len(name)) + name for name in (b"vector", kind)))
    stream.write(_HEADER.pack(_VERSION, 0, _EXPANDED_AND_MUTABLE, 0, len(finals), len(weights)))
    columns = np.stack([*labels, lattice.target_A], axis=1).tolist()
    begins = np.searchsorted(lattice.source_A, np.arange(len(finals) + 1)).tolist()
    for final, (begin, end) in zip(finals, pairwise(begins), strict=True):
        stream.write(final + struct.pack("<q", end - begin))
        for (ilabel, olabel, target), weight in zip(columns[begin:end], weights[begin:end], strict=True):
            stream.write(struct.pack("<ii", ilabel, olabel) + weight + struct.pack("<i", target))


def _compact_weight(graph: float, acoustic: float, pdfs: np.ndarray) -> bytes:
    return struct.pack("<ffi", graph, acoustic, len(pdfs)) + (pdfs + 1).astype("<i4").tobytes()


def _key(stream: IO[bytes], path: Path | str) -> str:
    key = b""
    while (byte := stream.read(1)) not in (b" ", b"\t", b""):
        key += byte
    key = key.lstrip(b"\n")
    if byte == b"" and key.strip():
        raise FormatError(f"{path}: ends within the name of an utterance, or is not a lattice archive")
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a lattice archive") from error


def _is_text(stream: IO[bytes]) -> bool:
    """Whether the lattice is text, which begins on the line after the key; leaves the stream where the body begins."""
    place = stream.tell()
    begins = stream.read(4)
    if begins == _MAGIC:
        return False
    if not begins[:1].isspace():
        raise ValueError("it begins neither as text nor as an OpenFst file")
    stream.seek(place)
    stream.readline()
    return True


def _read_text(stream: IO[bytes]) -> tuple[LatticeBody, int, bool]:
    """The lattice's body, its start state and whether it is compact; its states and arcs may have any order."""
    arcs: list[tuple[int, int, int, int]] = []  # source, target, input label, output label
    weights: list[_Weight] = []
    finals: dict[int, _Weight] = {}
    start, compact = -1, True
    while fields := stream.readline().decode().split():
        if start < 0:
            start = int(fields[0])
            if len(fields) > 2:
                compact = len(fields) == 3 or (len(fields) == 4 and "," in fields[3])
            else:
                compact = len(fields) > 1 and fields[1].count(",") == 2
        if len(fields) > 2:
            labels = [int(name) for name in (fields[2:3] * 2 if compact else fields[2:4])]
            rest = fields[3:] if compact else fields[4:]
            arcs.append((int(fields[0]), int(fields[1]), labels[0], labels[1]))
            weights.append(_parsed(rest[0]) if rest else _FREE)
        else:
            finals[int(fields[0])] = _parsed(fields[1]) if len(fields) > 1 else _FREE
    states = max([start, *finals, *(state for arc in arcs for state in arc[:2])]) + 1
    if states > 2 * len(arcs) + len(finals) + 1:  # each is the end of an arc or final
        raise ValueError(f"it has a state {states - 1}, but only {len(arcs)} arcs")
    columns: list[np.ndarray] = []
    for each in (weights, [finals.get(state, (np.inf, np.inf, ())) for state in range(states)]):
        columns += [
            np.array([weight[:2] for weight in each], np.float32).reshape(-1, 2),
            np.array(list(chain.from_iterable(weight[2] for weight in each)), np.int32),
            np.cumsum([0, *(len(weight[2]) for weight in each)]).astype(np.int64),
        ]
    return LatticeBody(np.array(arcs, np.int64).reshape(-1, 4), *columns), start, compact


def _parsed(text: str) -> _Weight:
    graph, acoustic, *labels = text.split(",")
    return float(graph), float(acoustic), tuple(int(label) for label in labels[0].split("_") if label) if labels else ()


def _read_binary(stream: IO[bytes], data_N: np.ndarray) -> tuple[LatticeBody, int, bool]:
    """The lattice's body, its start state and whether it is compact; `data_N` has the bytes of the stream's file."""

    def name() -> bytes:
        (length,) = struct.unpack("<i", stream.read(4))
        return stream.read(min(length, 64))

    kinds = name(), name()
    if kinds[0] != b"vector" or kinds[1] not in _TYPES:
        raise ValueError(f"of OpenFst's type {kinds[0]!r} with arcs {kinds[1]!r}")
    _, flags, _, start, states, _ = _HEADER.unpack(stream.read(_HEADER.size))
    if flags:
        raise ValueError("with symbol tables")
    compact = kinds[1] == b"compactlattice44"
    body, end = read_body(data_N, stream.tell(), states, compact)
    stream.seek(end)
    return body, start, compact


def _put_together(body: LatticeBody, start: int, compact: bool, where: str) -> Lattice | WordLattice:
    """Build the lattice, with states sorted topologically and unreachable states left out."""
    arcs_A4, states = body.arcs_A4, len(body.final_costs_S2)
    if not 0 <= start < states or arcs_A4.min(initial=0) < 0 or arcs_A4[:, :2].max(initial=0) >= states:
        raise FormatError(f"{where}: the lattice is empty, or has state or label numbers out of range")
    # Sort the states topologically, and the arcs by source, target and word.
    order_S = topological(arcs_A4[:, 0], arcs_A4[:, 1], states)
    if len(order_S) < states:
        raise FormatError(f"{where}: not a lattice: its arcs form a cycle")
    number_S = np.full(states, -1, np.int64)
    number_S[order_S] = np.arange(states)
    by_source = np.lexsort((arcs_A4[:, 3], number_S[arcs_A4[:, 1]], number_S[arcs_A4[:, 0]]))
    # Count the frames read up to each state; a state without a count is unreachable and is left out.
    frames_A = np.diff(body.begin_A1) if compact else (arcs_A4[:, 2] > 0).astype(np.int64)
    source_A, target_A = (np.ascontiguousarray(arcs_A4[by_source, column]) for column in (0, 1))
    frame_S, odd = frames_read(source_A, target_A, frames_A[by_source], start, states)
    if odd >= 0:
        raise FormatError(f"{where}: not a lattice: paths to state {odd} read different numbers of frames")
    # Renumber what is reachable from the start.
    used, kept = order_S[frame_S[order_S] >= 0], by_source[frame_S[source_A] >= 0]
    number_S[used] = np.arange(len(used))
    source_A, target_A = (number_S[arcs_A4[kept, column]].astype(np.int32) for column in (0, 1))
    olabel_A, costs_A2 = arcs_A4[kept, 3].astype(np.int32), body.costs_A2[kept]
    final_S2 = np.where(np.isfinite(body.final_costs_S2[used, :1]), body.final_costs_S2[used], np.float32(np.inf))
    frame_S = frame_S[used].astype(np.int32)
    (graph_A, acoustic_A), (graph_S, acoustic_S) = costs_A2.T.copy(), final_S2.T.copy()
    if not compact:
        if (np.isfinite(graph_S) & (acoustic_S != 0)).any():
            raise FormatError(f"{where}: has acoustic costs on final states; determinise it with Kaldi first")
        ilabel_A = arcs_A4[kept, 2].astype(np.int32)
        return Lattice(source_A, target_A, ilabel_A, olabel_A, graph_A, acoustic_A, graph_S, frame_S, True)
    # The pdfs of a compact lattice's arcs, in the new order of the arcs.
    picked_K, begin_A1 = joined_ranges(body.begin_A1[kept], np.diff(body.begin_A1)[kept])
    pdfs_K, begins = body.labels_K[picked_K] - np.int32(1), body.final_begin_S1.tolist()
    final_pdfs_S = tuple(
        body.final_labels_L[begins[state] : begins[state + 1] if ends else begins[state]] - np.int32(1)
        for state, ends in zip(used.tolist(), np.isfinite(graph_S).tolist(), strict=True)
    )
    return WordLattice(
        source_A,
        target_A,
        olabel_A,
        graph_A.astype(np.float64),
        acoustic_A.astype(np.float64),
        graph_S.astype(np.float64),
        acoustic_S.astype(np.float64),
        pdfs_K,
        begin_A1,
        final_pdfs_S,
        frame_S,
        frames=int((frame_S + [len(pdfs) for pdfs in final_pdfs_S]).max()),
    )
