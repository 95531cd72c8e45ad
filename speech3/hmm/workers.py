"""Processes that each keep a share of the utterances, so that a pass over the data sends models, not features.

A pass is a function that is called as ``function(share, *arguments)`` in each process; the results are collected in a
list. A share keeps its alignments from pass to pass, in a file if they are many, and as many of its transcripts' HMMs
as fit into `_GRAPHS_BYTES`.
"""

import multiprocessing
import os
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from speech3.errors import MachineError
from speech3.hmm.alignments import (
    StoredAlignments,
    WordLists,
)
from speech3.hmm.model import (
    Hmm,
    Tree,
)
from speech3.hmm.transcript import TranscriptGraph, transcript_graph
from speech3.runtime import (
    out_of_memory,
    processes_work,
    progress,
    starting_workers,
    without_shared_memory,
    worker_pool,
)

R = TypeVar("R")
_GRAPHS_BYTES = 256 << 20  # of the HMMs that a share keeps; others are made again in each pass
_share: "WorkerShare | None" = None


@dataclass
class WorkerShare:
    """The utterances of one process.

    Attributes
    ----------
    words
        Transcripts, all words in the lexicon.
    feats
        Matrices (T, D) float32, read on access.
    number, parts
        Index of the share, and the number of shares.
    """

    words: Mapping[str, list[str]]
    feats: Mapping[str, np.ndarray]
    number: int = 0
    parts: int = 1
    alignments: StoredAlignments = field(default_factory=StoredAlignments)
    _graphs: dict[str, TranscriptGraph] = field(default_factory=dict)
    _bytes: int = 0
    _tree: Tree | None = None

    def shown(self, label: str) -> Iterable[str]:
        """The utterances; only the first share shows its progress, since all shares cost about the same."""
        return self.shown_of(self.words, label)

    def shown_of(self, items: Collection[str], label: str) -> Iterable[str]:
        """Any items, such as speakers, in the same way."""
        of_all = f" (one of {self.parts} processes)" if self.parts > 1 else ""
        return items if self.number else progress(items, len(items), f"{label}{of_all}")

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

    Parameters
    ----------
    group_of
        Utterances with the same value, such as their speaker, are in the same share; None: each may be in any.
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

        Raises
        ------
        Speech3Error
            `function` raised it, or a process died.
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
