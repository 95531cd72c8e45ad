"""What large corpora do not keep in memory: alignments, lists of words, the HMMs of all transcripts, statistics."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from speech3.hmm import train, workers
from speech3.hmm.clustering import ContextStats, merge_stats, merged_stats
from speech3.hmm.transcript import Alignment
from speech3.hmm.workers import StoredAlignments, WordLists, WorkerShare, merged_alignments


def alignment(segments: int) -> Alignment:
    starts = np.arange(segments + 1, dtype=np.int32) * 3
    words = np.arange(segments, dtype=np.int32) - 1
    states = np.tile(np.arange(3, dtype=np.int8), segments)
    return Alignment(np.arange(1, segments + 1, dtype=np.int32), words, starts, states, -segments / 7)


def equal(one: Alignment, other: Alignment) -> bool:
    return one.score == other.score and all(
        getattr(one, name).dtype == getattr(other, name).dtype
        and getattr(one, name).tolist() == getattr(other, name).tolist()
        for name in ("phones", "words", "starts", "states")
    )


@pytest.mark.parametrize("in_memory", [0, 64 << 20])
def test_alignments_come_back_as_they_were(in_memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_IN_MEMORY", in_memory)
    for store in (StoredAlignments(), StoredAlignments(tmp_path / "a.ali")):
        for size in (5, 1, 9):
            store[f"u{size}"] = alignment(size)
        assert list(store) == ["u5", "u1", "u9"] and all(
            equal(store[f"u{size}"], alignment(size)) for size in (9, 5, 1)
        )
        store["u5"] = alignment(4)
        del store["u1"]
        assert equal(store["u5"], alignment(4)) and list(store) == ["u5", "u9"]
        store.clear()
        assert not store and "u9" not in store


def test_files_of_other_processes_are_merged_and_outlive_their_names(tmp_path: Path) -> None:
    stores = []
    for number in (0, 1):
        store = StoredAlignments(tmp_path / f"{number}.ali")
        store[f"u{1 - number}"] = alignment(number + 2)
        stores.append(pickle.loads(pickle.dumps(store)))
    found = merged_alignments(stores)
    for path in tmp_path.iterdir():
        path.unlink()
    assert list(found) == ["u0", "u1"] and equal(found["u0"], alignment(3)) and equal(found["u1"], alignment(2))
    with pytest.raises(TypeError, match="cannot be sent"):
        pickle.dumps(_filled())


def _filled() -> StoredAlignments:
    store = StoredAlignments()
    store["u"] = alignment(1)
    return store


def test_words_are_lists_again() -> None:
    words = WordLists([("u", ["A", "B"]), ("v", [])])
    words["w"] = ["C"]
    del words["v"]
    assert dict(words) == {"u": ["A", "B"], "w": ["C"]}


def test_hmms_beyond_the_limit_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []
    hmm: Any = SimpleNamespace(tree=object())

    def graph(_: Any, words: list[str]) -> Any:
        made.append(words)
        return SimpleNamespace(nbytes=100)

    monkeypatch.setattr(workers, "transcript_graph", graph)
    monkeypatch.setattr(workers, "_GRAPHS_BYTES", 150)
    share = WorkerShare({name: [name] for name in "abc"}, {})
    for _ in range(2):
        for name in "abc":
            share.graph(name, hmm)
    assert made == [["a"], ["b"], ["c"], ["c"]]


def test_statistics_are_the_same_however_they_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    parts = [
        ContextStats(rng.integers(0, 4, (rows, 4)).astype(np.int32), rng.normal(size=(rows, 3)))
        for rows in rng.integers(1, 40, 30)
    ]
    monkeypatch.setattr("speech3.hmm.clustering._MIN_ROWS", 10)
    (found,) = merged_stats(iter(parts))
    whole = merge_stats(parts)
    np.testing.assert_array_equal(found.context, whole.context)
    np.testing.assert_array_equal(found.stats, whole.stats)
    assert merged_stats([]) == [] and train.context_stats(WorkerShare({}, {})) == []
