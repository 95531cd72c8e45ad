"""Processes that each keep a share of the utterances, so that a pass over the data sends models, not features.

A pass is a function that is called as ``function(share, *arguments)`` in each process; the results are collected in a
list. A share keeps its alignments from pass to pass, in a file if they are many (memory then holds only a file offset
for each utterance), and as many of its transcripts' HMMs as fit into `_GRAPHS_BYTES`.
"""

import functools
import multiprocessing
import operator
import os
import pickle
import struct
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar, cast

import numpy as np

from speech3.errors import MachineError, Speech3Error
from speech3.hmm.model import Hmm, Tree
from speech3.hmm.transcript import Alignment, TranscriptGraph, transcript_graph
from speech3.io import ComputedMapping
from speech3.runtime import (
    explained_disk_errors,
    out_of_memory,
    processes_work,
    progress,
    starting_workers,
    without_shared_memory,
    worker_pool,
)

R = TypeVar("R")
T = TypeVar("T")
_GRAPHS_BYTES = 256 << 20  # of the HMMs that a share keeps; others are made again in each pass
_IN_MEMORY = 64 << 20  # bytes of alignments; beyond that, they go to a temporary file
_HEAD = struct.Struct("<iid?")  # of a stored alignment: phone segments, frames, score, whether there are edges
_share: "WorkerShare | None" = None


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


def merged_alignments(stores: Iterable[StoredAlignments]) -> Mapping[str, Alignment]:
    """The alignments of several stores, sorted by utterance; their files may be deleted."""
    store_of: dict[str, StoredAlignments] = {}
    for store in stores:
        store.opened()
        store_of.update(dict.fromkeys(store, store))
    return ComputedMapping(dict.fromkeys(sorted(store_of)), lambda utterance: store_of[utterance][utterance])


@dataclass
class WorkerShare:
    """The utterances of one process."""

    words: Mapping[str, list[str]]  # transcripts, all words in the lexicon
    feats: Mapping[str, np.ndarray]  # matrices (T, D) float32, read on access
    # `number`, `parts`: index of the share, and the number of shares
    number: int = 0
    parts: int = 1
    alignments: StoredAlignments = field(default_factory=StoredAlignments)
    _graphs: dict[str, TranscriptGraph] = field(default_factory=dict)
    _bytes: int = 0
    _tree: Tree | None = None

    def shown(self, label: str) -> Iterable[str]:
        """The utterances; if there is a label, the first share shows its progress: all shares cost about the same."""
        return self.shown_of(self.words, label)

    def shown_of(self, items: Collection[T], label: str) -> Iterable[T]:
        """The same of any items, such as speakers."""
        of_all = f" (one of {self.parts} processes)" if self.parts > 1 else ""
        return progress(items, len(items), f"{label}{of_all}") if label and not self.number else items

    def graph(self, utterance: str, hmm: Hmm) -> TranscriptGraph:
        """The HMM of a transcript; the first ones are kept until another tree is used."""
        if self._tree is not hmm.tree:  # a worker process gets a new copy with every pass
            if self._tree is None or not self._tree.same_as(hmm.tree):
                self._graphs, self._bytes = {}, 0
            self._tree = hmm.tree
        if utterance in self._graphs:
            return self._graphs[utterance]
        graph = transcript_graph(hmm, self.words[utterance])
        if self._bytes < _GRAPHS_BYTES:
            self._graphs[utterance] = graph
            self._bytes += graph.nbytes
        return graph


def _start(share: bytes) -> None:
    global _share
    _share = pickle.loads(share)


def _call(work: bytes) -> bytes:
    assert _share is not None
    function, arguments = pickle.loads(work)
    return without_shared_memory(function(_share, *arguments))


def _shares(names: list[str], jobs: int, group_of: Mapping[str, str] | None) -> list[list[str]]:
    """Every jobs-th utterance: neighbours are alike in length and speaker, so the shares cost about the same.

    Groups go, the largest first, to the share that has the fewest utterances so far.
    """
    if group_of is None:
        return [names[job::jobs] for job in range(jobs)]
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(group_of[name], []).append(name)
    shares: list[list[str]] = [[] for _ in range(jobs)]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return shares


class Workers:
    """`jobs` processes with equal shares; a context manager. With one job, everything runs in this process.

    `group_of`: utterances with the same value, such as their speaker, are in the same share; None: each may be in any.
    """

    def __init__(
        self,
        words: Mapping[str, list[str]],
        feats: Mapping[str, np.ndarray],
        jobs: int,
        group_of: Mapping[str, str] | None = None,
    ) -> None:
        names = list(words)
        parts = len(names) if group_of is None else len({group_of[name] for name in names})
        self.jobs = max(1, min(jobs, parts))
        if self.jobs > 1 and not processes_work("alignment"):
            self.jobs = 1
        shares = [
            WorkerShare(WordLists((n, words[n]) for n in share), feats, job, self.jobs)
            for job, share in enumerate(_shares(names, self.jobs, group_of))
        ]
        self._local = shares[0] if self.jobs == 1 else None
        self._pools: list[ProcessPoolExecutor] = []
        if self._local is None:
            with starting_workers():
                for share in shares:
                    self._pools.append(worker_pool(1, _start, without_shared_memory(share)))
                    self._pools[-1].submit(os.getpid)  # starts the process

    def run(self, function: Callable[..., R], *arguments: Any) -> list[R]:
        """Call ``function(share, *arguments)`` in every process.

        Raises Speech3Error: `function` raised it, or a process died.
        """
        if self._local is not None:
            return [function(self._local, *arguments)]
        try:
            work = without_shared_memory((function, arguments))
            futures = [pool.submit(_call, work) for pool in self._pools]
            return [pickle.loads(future.result()) for future in futures]
        except BrokenProcessPool as error:
            raise MachineError(
                f"a worker process of the HMM stage died, {out_of_memory()}; run again with jobs=1"
            ) from error

    def total(self, function: Callable[..., R], *arguments: Any) -> R:
        """The sum (``+=``) of what ``function(share, *arguments)`` returns in every process; raises as `run`."""
        return functools.reduce(operator.iadd, self.run(function, *arguments))

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._pools:  # such as Ctrl-C: a pass may take long, so do not wait for it
            for process in multiprocessing.active_children():
                process.terminate()
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
