"""Alignments: the phone and its state in each frame, independent of the model that made them.

Those of a large corpus are in a file: memory holds only a string, or a file offset, for each utterance.

Axes: P phone segments, T frames.
"""

import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, cast

import numpy as np

from speech3.errors import Speech3Error
from speech3.hmm.model import THREE_STATES, Hmm, Topology
from speech3.hmm.transcript import NO_WORD, TranscriptGraph
from speech3.io import ComputedMapping
from speech3.language import Lexicon
from speech3.runtime import explained_disk_errors

_IN_MEMORY = 64 << 20  # bytes of alignments; beyond that, they go to a temporary file
_HEAD = struct.Struct("<iid?")  # P, T, score, whether there are edges


@dataclass(frozen=True, eq=False)
class Alignment:
    """The alignment of one utterance (T frames, P phone segments)."""

    phones: np.ndarray  # (P,) int32, phone numbers
    words: np.ndarray  # (P,) int32: index of the word in the transcript, `NO_WORD` for silence
    starts: np.ndarray  # (P + 1,) int32: first frame of each segment, then T
    states: np.ndarray  # (T,) int8: state within the phone
    score: float  # log probability per frame, as returned by `speech3.hmm.transcript.best_path`
    # (P + 1,) float64, if known: boundaries of the segments in frames, not rounded to whole ones
    # (`speech3.hmm.alignment.boundaries`). The first is 0, the last T.
    edges: np.ndarray | None = None

    @property
    def num_frames(self) -> int:
        return len(self.states)

    @property
    def places(self) -> np.ndarray:
        """(P + 1,) float64 boundaries in frames: `edges`, or else `starts`."""
        return np.array(self.starts if self.edges is None else self.edges, np.float64)

    @cached_property
    def segment(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.phones), dtype=np.int32), np.diff(self.starts))

    def windows(self) -> np.ndarray:
        """(P, 3) int32: left phone, phone, right phone of each segment; 0 beyond the ends."""
        padded = np.concatenate([[0], self.phones, [0]]).astype(np.int32)
        return np.stack([padded[:-2], padded[1:-1], padded[2:]], axis=1)

    def pdfs(self, hmm: Hmm) -> np.ndarray:
        """(T,) int32: the senone of each frame under the tree of `hmm`."""
        table = np.array([hmm.pdfs(*window) for window in self.windows().tolist()], np.int32)
        return table[self.segment, self.states]


def from_path(graph: TranscriptGraph, path: np.ndarray, score: float) -> Alignment:
    """Convert a path through a transcript's HMM, (T,) states, to an alignment."""
    copy = graph.copy[path]
    first = np.flatnonzero(np.concatenate([[True], copy[1:] != copy[:-1]]))
    starts = np.concatenate([first, [len(path)]]).astype(np.int32)
    at = path[first]
    return Alignment(graph.phone[at], graph.word[at], starts, graph.state[path].astype(np.int8), score)


def evened_out(alignment: Alignment, topology: Topology = THREE_STATES) -> Alignment:
    lengths = np.diff(alignment.starts)
    place = np.arange(alignment.num_frames) - np.repeat(alignment.starts[:-1], lengths)
    part_T = alignment.segment * topology.min_frames + place * topology.min_frames // np.repeat(lengths, lengths)
    return replace(alignment, states=topology.states_of_parts(part_T))


def equal_alignment(
    lexicon: Lexicon, words: Sequence[str], num_frames: int, topology: Topology = THREE_STATES
) -> Alignment | None:
    """Divide the frames equally among silence, the first pronunciation of each word, and silence (a flat start).

    Returns None if there are fewer frames than these phones need.
    """
    phones, index = [lexicon.silence], [NO_WORD]
    for number, word in enumerate(words):
        spoken = lexicon.by_word[word][0].phones
        phones += [lexicon.phone_ids[phone] for phone in spoken]
        index += [number] * len(spoken)
    phones, index = [*phones, lexicon.silence], [*index, NO_WORD]
    parts = len(phones) * topology.min_frames
    if num_frames < parts:
        return None
    edges = np.linspace(0, num_frames, parts + 1).round().astype(np.int32)
    states = topology.states_of_parts(np.repeat(np.arange(parts), np.diff(edges)))
    starts = edges[:: topology.min_frames]
    return Alignment(np.array(phones, np.int32), np.array(index, np.int32), starts, states, 0.0)


class WordLists(MutableMapping[str, list[str]]):
    """The words of each utterance. Lists of strings would take ten times the memory of the text."""

    def __init__(self, words: Iterable[tuple[str, list[str]]] = ()) -> None:
        self._texts = {utterance: " ".join(each) for utterance, each in words}

    def __getitem__(self, utterance: str) -> list[str]:
        return self._texts[utterance].split()

    def __setitem__(self, utterance: str, words: list[str]) -> None:
        self._texts[utterance] = " ".join(words)

    def __delitem__(self, utterance: str) -> None:
        del self._texts[utterance]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


class StoredAlignments(MutableMapping[str, Alignment]):
    """Alignments in a file; those of a small corpus stay in memory.

    `path`: the file. Without it, a temporary one is used, and the object can be pickled only while it is empty.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._places: dict[str, int] = {}
        self._stream: IO[bytes] | None = None

    def opened(self) -> IO[bytes]:
        """The file, which stays open even if it is deleted."""
        if self._stream is None:
            if self.path:
                self._stream = self.path.open("r+b" if self._places else "w+b")
            else:
                spooled = tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="speech3-ali-")  # noqa: SIM115  # `clear`
                self._stream = cast(IO[bytes], spooled)
        return self._stream

    def __getitem__(self, utterance: str) -> Alignment:
        stream, place = self.opened(), self._places[utterance]
        stream.seek(place)
        segments, frames, score, has_edges = _HEAD.unpack(stream.read(_HEAD.size))
        content = stream.read(4 * (3 * segments + 1) + frames + (8 * (segments + 1) if has_edges else 0))
        numbers = np.frombuffer(content, np.int32, 3 * segments + 1)
        phones, words, starts = np.split(numbers, [segments, 2 * segments])
        states = np.frombuffer(content, np.int8, frames, numbers.nbytes)
        edges = np.frombuffer(content, np.float64, offset=numbers.nbytes + frames) if has_edges else None
        return Alignment(phones, words, starts, states, score, edges)

    def __setitem__(self, utterance: str, found: Alignment) -> None:
        stream = self.opened()
        numbers = np.concatenate([found.phones, found.words, found.starts]).astype(np.int32, copy=False)
        head = _HEAD.pack(len(found.phones), found.num_frames, found.score, found.edges is not None)
        tail = b"" if found.edges is None else found.edges.astype(np.float64, copy=False).tobytes()
        try:
            with explained_disk_errors(self.path or tempfile.gettempdir()):
                self._places[utterance] = stream.seek(0, 2)
                stream.write(head + numbers.tobytes() + found.states.astype(np.int8, copy=False).tobytes() + tail)
        except Speech3Error as error:
            raise error.restated(f"{error}; or set TMPDIR to a directory with more space") from error

    def __delitem__(self, utterance: str) -> None:
        del self._places[utterance]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def clear(self) -> None:
        self._places = {}
        if self._stream is not None:
            self._stream.seek(0)
            self._stream.truncate()

    def __getstate__(self) -> dict[str, object]:
        if self._stream is not None:
            if self.path is None and self._places:
                raise TypeError("alignments in a temporary file cannot be sent to another process")
            self._stream.flush()
        return {**self.__dict__, "_stream": None}


def merged(stores: Iterable[StoredAlignments]) -> Mapping[str, Alignment]:
    """The alignments of several stores, sorted by utterance; their files may be deleted."""
    store_of: dict[str, StoredAlignments] = {}
    for store in stores:
        store.opened()
        store_of.update(dict.fromkeys(store, store))
    return ComputedMapping(dict.fromkeys(sorted(store_of)), lambda utterance: store_of[utterance][utterance])
