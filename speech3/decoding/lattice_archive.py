"""Kaldi's lattice archives, text and binary, as its lattice tools read and write them (kaldi-lattice.cc).

A `Lattice` is Kaldi's Lattice (OpenFst's arc type ``lattice4``), a `WordLattice` its CompactLattice
(``compactlattice44``). Acoustic costs are unscaled in both. In place of Kaldi's transition-ids, lattices written here
have pdfs + 1; tools that ask a model what its transition-ids are (lattice-align-words and the like) cannot be used.

Axes: S states, A arcs.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np

from speech3.decoding.lattice import Lattice
from speech3.decoding.word_lattice import WordLattice, topological
from speech3.errors import Speech3Error
from speech3.io.ark import index_line
from speech3.io.atomic import atomic_path, write_text

_MAGIC = struct.pack("<i", 2125659606)  # OpenFst's
_HEADER = struct.Struct("<iiQqqq")  # version, flags, properties, start, states, arcs
_VERSION, _EXPANDED_AND_MUTABLE = 2, 3  # of OpenFst's vector-fst.h; properties.h
_TYPES = {b"lattice4": Lattice, b"compactlattice44": WordLattice}


@dataclass(eq=False)
class _Raw:
    """States and arcs in any order; labels are what the arcs of a compact lattice read."""

    compact: bool
    start: int = -1
    arcs: list[tuple[int, int, int, int]] = field(default_factory=list)  # source, target, ilabel, olabel
    weights: list[tuple[float, float, tuple[int, ...]]] = field(default_factory=list)  # graph, acoustic, labels
    finals: dict[int, tuple[float, float, tuple[int, ...]]] = field(default_factory=dict)


def write_lattices(
    path: Path | str,
    items: Iterable[tuple[str, Lattice | WordLattice]],
    scp: Path | str | None = None,
    *,
    binary: bool = True,
) -> int:
    """Write ``(utterance, lattice)`` pairs as an archive; return their number. It appears once all were written.

    `scp` gets the archive's index: ``utterance /absolute/path.ark:offset`` lines, sorted.
    """
    index: list[str] = []
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        for utterance, lattice in items:
            stream.write(utterance.encode() + b" ")
            index.append(index_line(utterance, path, stream.tell()))
            raw = _taken_apart(lattice)
            if binary:
                _write_binary(stream, raw, len(lattice.frame_S))
            else:
                stream.write("\n".join(["", *_text(raw), "", ""]).encode())
    if scp is not None:
        write_text(scp, "".join(sorted(index)))
    return len(index)


def read_lattices(path: Path | str) -> Iterator[tuple[str, Lattice | WordLattice]]:
    """Read an archive, one lattice at a time.

    Raises
    ------
    Speech3Error
        The file is missing, cut short or no archive of lattices, or a lattice is not one: it goes round in a circle, or
        its paths to a state read different numbers of frames.
    """
    try:
        stream = Path(path).open("rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise Speech3Error(f"{path}: {error.strerror}") from error
    with stream:
        while key := _key(stream, path):
            where = f"{path}: {key}"
            try:
                raw = _read_text(stream) if _is_text(stream) else _read_binary(stream)
            except (struct.error, ValueError, IndexError) as error:
                raise Speech3Error(f"{where}: cut short, or no lattice ({error})") from error
            yield key, _put_together(raw, where)


def _taken_apart(lattice: Lattice | WordLattice) -> _Raw:
    ends = (lattice.source_A.tolist(), lattice.target_A.tolist())
    if isinstance(lattice, Lattice):
        raw = _Raw(False, 0, list(zip(*ends, lattice.ilabel_A.tolist(), lattice.olabel_A.tolist(), strict=True)))
        costs = zip(lattice.graph_A.tolist(), lattice.acoustic_A.tolist(), strict=True)
        raw.weights = [(graph, acoustic, ()) for graph, acoustic in costs]
        last = np.flatnonzero(np.isfinite(lattice.final_S)).tolist()
        raw.finals = {state: (float(lattice.final_S[state]), 0.0, ()) for state in last}
        return raw
    words = lattice.word_A.tolist()
    raw = _Raw(True, 0, list(zip(*ends, words, words, strict=True)))
    begins, labels = lattice.begin_A1.tolist(), (lattice.pdfs_K + 1).tolist()
    raw.weights = [
        (graph, acoustic, tuple(labels[begins[arc] : begins[arc + 1]]))
        for arc, (graph, acoustic) in enumerate(zip(lattice.graph_A.tolist(), lattice.acoustic_A.tolist(), strict=True))
    ]
    for state in np.flatnonzero(np.isfinite(lattice.final_graph_S)).tolist():
        graph, acoustic = float(lattice.final_graph_S[state]), float(lattice.final_acoustic_S[state])
        raw.finals[state] = graph, acoustic, tuple((lattice.final_pdfs_S[state] + 1).tolist())
    return raw


def _text(raw: _Raw) -> Iterator[str]:
    for (source, target, ilabel, olabel), weight in zip(raw.arcs, raw.weights, strict=True):
        labels = f"{olabel}" if raw.compact else f"{ilabel}\t{olabel}"
        yield f"{source}\t{target}\t{labels}\t{_weight(weight, raw.compact)}"
    for state, weight in raw.finals.items():
        yield f"{state}\t{_weight(weight, raw.compact)}"


def _weight(weight: tuple[float, float, tuple[int, ...]], compact: bool) -> str:
    labels = "," + "_".join(map(str, weight[2])) if compact else ""
    return f"{weight[0]:.9g},{weight[1]:.9g}{labels}"


def _write_binary(stream: IO[bytes], raw: _Raw, states: int) -> None:
    kind = b"compactlattice44" if raw.compact else b"lattice4"
    stream.write(_MAGIC + b"".join(struct.pack("<i", len(name)) + name for name in (b"vector", kind)))
    stream.write(_HEADER.pack(_VERSION, 0, _EXPANDED_AND_MUTABLE, raw.start, states, len(raw.arcs)))
    leaving: list[list[int]] = [[] for _ in range(states)]
    for number, (source, *_) in enumerate(raw.arcs):
        leaving[source].append(number)

    def weight(values: tuple[float, float, tuple[int, ...]]) -> bytes:
        labels = struct.pack(f"<i{len(values[2])}i", len(values[2]), *values[2]) if raw.compact else b""
        return struct.pack("<ff", *values[:2]) + labels

    for state in range(states):
        stream.write(weight(raw.finals.get(state, (np.inf, np.inf, ()))) + struct.pack("<q", len(leaving[state])))
        for number in leaving[state]:
            _, target, ilabel, olabel = raw.arcs[number]
            stream.write(struct.pack("<ii", ilabel, olabel) + weight(raw.weights[number]) + struct.pack("<i", target))


def _key(stream: IO[bytes], path: Path | str) -> str:
    key = b""
    while (byte := stream.read(1)) not in (b" ", b"\t", b""):
        key += byte
    key = key.lstrip(b"\n")
    if byte == b"" and key.strip():
        raise Speech3Error(f"{path}: ends within the name of an utterance, or is no archive of lattices")
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise Speech3Error(f"{path}: no archive of lattices") from error


def _is_text(stream: IO[bytes]) -> bool:
    """A text lattice begins on the line after the key; what is read to know that is put back."""
    place = stream.tell()
    begins = stream.read(4)
    if begins == _MAGIC:
        return False
    if not begins[:1].isspace():
        raise ValueError("it begins neither as a text nor as OpenFst's files do")
    stream.seek(place)
    stream.readline()
    return True


def _read_text(stream: IO[bytes]) -> _Raw:
    raw: _Raw | None = None
    while fields := stream.readline().decode().split():
        if len(fields) > 2:
            compact = len(fields) == 3 or (len(fields) == 4 and "," in fields[3])
            raw = raw or _Raw(compact, int(fields[0]))
            labels = [int(name) for name in (fields[2:3] * 2 if raw.compact else fields[2:4])]
            rest = fields[3:] if raw.compact else fields[4:]
            raw.arcs.append((int(fields[0]), int(fields[1]), labels[0], labels[1]))
            raw.weights.append(_parsed(rest[0]) if rest else (0.0, 0.0, ()))
        else:
            weight = _parsed(fields[1]) if len(fields) > 1 else (0.0, 0.0, ())
            raw = raw or _Raw(len(fields) > 1 and fields[1].count(",") == 2, int(fields[0]))
            raw.finals[int(fields[0])] = weight
    return raw or _Raw(True)


def _parsed(text: str) -> tuple[float, float, tuple[int, ...]]:
    graph, acoustic, *labels = text.split(",")
    return float(graph), float(acoustic), tuple(int(label) for label in labels[0].split("_") if label) if labels else ()


def _read_binary(stream: IO[bytes]) -> _Raw:
    def take(form: str) -> tuple[int | float, ...]:
        return struct.unpack("<" + form, stream.read(struct.calcsize("<" + form)))

    def name() -> bytes:
        return stream.read(min(int(take("i")[0]), 64))

    kinds = name(), name()
    if kinds[0] != b"vector" or kinds[1] not in _TYPES:
        raise ValueError(f"of OpenFst's type {kinds[0]!r} with arcs {kinds[1]!r}")
    raw = _Raw(kinds[1] == b"compactlattice44")
    _, flags, _, start, states, _ = _HEADER.unpack(stream.read(_HEADER.size))
    if flags:
        raise ValueError("with symbol tables")
    raw.start = start

    def weight() -> tuple[float, float, tuple[int, ...]]:
        graph, acoustic = take("ff")
        labels: tuple[int, ...] = ()
        if raw.compact:
            labels = tuple(np.frombuffer(stream.read(4 * int(take("i")[0])), "<i4").tolist())
        return float(graph), float(acoustic), labels

    for state in range(states):
        final = weight()
        if np.isfinite(final[0]):
            raw.finals[state] = final
        for _ in range(int(take("q")[0])):
            ilabel, olabel = take("ii")
            raw.weights.append(weight())
            raw.arcs.append((state, int(take("i")[0]), int(ilabel), int(olabel)))
    return raw


def _put_together(raw: _Raw, where: str) -> Lattice | WordLattice:
    """The arrays, states sorted and those that the start does not lead to left out."""
    arcs_A4 = np.array(raw.arcs, np.int64).reshape(-1, 4)
    states = int(max(arcs_A4[:, :2].max(initial=-1), max(raw.finals, default=-1), raw.start)) + 1
    if raw.start < 0 or arcs_A4.min(initial=0) < 0:
        raise Speech3Error(f"{where}: the lattice is empty, or has negative numbers")
    order_S = topological(arcs_A4[:, 0], arcs_A4[:, 1], states)
    if len(order_S) < states:
        raise Speech3Error(f"{where}: no lattice: its arcs go round in a circle")
    frames = [len(weight[2]) for weight in raw.weights] if raw.compact else (arcs_A4[:, 2] > 0).astype(int).tolist()
    number_S = np.full(states, -1, np.int64)
    number_S[order_S] = np.arange(states)
    by_source = np.lexsort((arcs_A4[:, 3], number_S[arcs_A4[:, 1]], number_S[arcs_A4[:, 0]]))
    frame = {raw.start: 0}
    kept = []
    for arc in by_source.tolist():
        source, target = int(arcs_A4[arc, 0]), int(arcs_A4[arc, 1])
        if source in frame:
            kept.append(arc)
            if frame.setdefault(target, frame[source] + frames[arc]) != frame[source] + frames[arc]:
                raise Speech3Error(f"{where}: no lattice: paths to state {target} read different numbers of frames")
    used = [state for state in order_S.tolist() if state in frame]
    number_S[used] = np.arange(len(used))
    arcs_A4, weights = arcs_A4[kept], [raw.weights[arc] for arc in kept]
    finals = [raw.finals.get(state, (np.inf, np.inf, ())) for state in used]
    frame_S = np.array([frame[state] for state in used], np.int32)
    source_A, target_A = (number_S[arcs_A4[:, column]].astype(np.int32) for column in (0, 1))
    olabel_A, graph_A, acoustic_A = arcs_A4[:, 3].astype(np.int32), *(
        np.array([weight[part] for weight in weights], np.float64) for part in (0, 1)
    )  # fmt: skip
    if raw.compact:
        lengths = [len(weight[2]) for weight in weights]
        return WordLattice(
            source_A, target_A, olabel_A, graph_A, acoustic_A, np.array([final[0] for final in finals]),
            np.array([final[1] for final in finals]),
            np.array(list(chain.from_iterable(weight[2] for weight in weights)), np.int32) - 1,
            np.cumsum([0, *lengths]).astype(np.int32),
            tuple(np.array(final[2], np.int32) - 1 for final in finals), frame_S,
            max(int(frame_S[n]) + len(final[2]) for n, final in enumerate(finals)),
        )  # fmt: skip
    if any(np.isfinite(final[0]) and final[1] for final in finals):
        raise Speech3Error(f"{where}: has acoustic costs on final states; determinise it with Kaldi first")
    return Lattice(
        source_A, target_A, arcs_A4[:, 2].astype(np.int32), olabel_A, graph_A.astype(np.float32),
        acoustic_A.astype(np.float32), np.array([final[0] for final in finals], np.float32), frame_S, True,
    )  # fmt: skip
