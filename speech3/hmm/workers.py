"""Processes that each keep a share of the utterances, so that a pass over the data sends models, not features.

Each pass of GMM training is a function that is called as ``function(share, *arguments)`` in each process; the results
are collected in a list. A share keeps its alignments from pass to pass, in a file if they are many, and as many of its
transcripts' HMMs as fit into `_GRAPHS_BYTES`.
"""

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from speech3.errors import Speech3Error
from speech3.hmm.model import Hmm
from speech3.hmm.stored import StoredAlignments, WordLists
from speech3.hmm.transcript import TranscriptGraph, transcript_graph
from speech3.hmm.tree import Tree
from speech3.io.limits import out_of_memory
from speech3.io.parallel import end_with_parent, packed, processes_work, starting_workers
from speech3.io.progress import progress

R = TypeVar("R")
_GRAPHS_BYTES = 256 << 20  # of the HMMs that a share keeps; others are made again in each pass


@dataclass
class Share:
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
        of_all = f" (one of {self.parts} processes)" if self.parts > 1 else ""
        return self.words if self.number else progress(self.words, len(self.words), f"{label}{of_all}")

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


_share: Share | None = None


def _start(share: bytes) -> None:
    global _share
    _share = pickle.loads(share)
    end_with_parent()


def _call(work: bytes) -> bytes:
    assert _share is not None
    function, arguments = pickle.loads(work)
    return packed(function(_share, *arguments))


class Workers:
    """`jobs` processes with equal shares; a context manager. With one job, everything runs in this process."""

    def __init__(self, words: Mapping[str, list[str]], feats: Mapping[str, np.ndarray], jobs: int) -> None:
        names = list(words)
        self.jobs = max(1, min(jobs, len(names)))
        if self.jobs > 1 and not processes_work("alignment"):
            self.jobs = 1
        # Every jobs-th utterance: neighbours are alike in length and speaker, so the shares cost about the same.
        shares = [
            Share(WordLists((n, words[n]) for n in names[job :: self.jobs]), feats, job, self.jobs)
            for job in range(self.jobs)
        ]
        self._local = shares[0] if self.jobs == 1 else None
        self._pools: list[ProcessPoolExecutor] = []
        if self._local is None:
            context = multiprocessing.get_context("spawn")
            with starting_workers():
                for share in shares:
                    self._pools.append(ProcessPoolExecutor(1, context, initializer=_start, initargs=(packed(share),)))
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
            work = packed((function, arguments))
            futures = [pool.submit(_call, work) for pool in self._pools]
            return [pickle.loads(future.result()) for future in futures]
        except BrokenProcessPool as error:
            raise Speech3Error(
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
