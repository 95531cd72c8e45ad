"""Phones of a first and a loop pdf: transcripts, search and alignments against the enumeration of all segmentations."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_language import asking
from test_transcript import graph_paths, phone_paths

from speech3.errors import DataError, MissingError
from speech3.hmm.model import FIRST_AND_LOOP, LEFT, RIGHT, THREE_STATES, Hmm, load_hmm, monophone_tree, num_outputs
from speech3.hmm.transcript import best_path, equal_alignment, evened_out, from_path, transcript_graph
from speech3.language.lexicon import Lexicon
from speech3.runtime.files import read_json, write_json


@pytest.fixture
def biphones(lexicon: Lexicon) -> Hmm:
    tree = asking(LEFT, len(lexicon.phones), 2, (0, 1, 3))
    return Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5), FIRST_AND_LOOP, 3)


def segmentations(phones: int, frames: int) -> list[tuple[int, ...]]:
    """Lengths of `phones` phones of at least one frame."""
    boundaries = itertools.combinations(range(1, frames), phones - 1)
    return [tuple(np.diff([0, *inner, frames]).tolist()) for inner in boundaries]


def every_path(hmm: Hmm, words: list[str], frames: int) -> list[tuple[float, tuple[int, ...], list[int]]]:
    """(log probability of the words' HMM, phones, pdf of each frame) of all paths."""
    found = []
    for path, probability in phone_paths(hmm.lexicon, words).items():
        phones = [phone for phone, _ in path]
        spelled = [0, *phones, 0]
        pdfs = [hmm.pdfs(*spelled[i : i + 3]) for i in range(len(phones))]
        for lengths in segmentations(len(phones), frames):
            pdf_T = [pair[min(t, 1)] for pair, length in zip(pdfs, lengths, strict=True) for t in range(length)]
            found.append((math.log(probability), tuple(phones), pdf_T))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_best_path_is_that_of_all_segmentations(biphones: Hmm, seed: int) -> None:
    frames, scale = 7, 0.7
    scores_TP = np.random.default_rng(seed).normal(0, 3, (frames, biphones.num_pdfs))
    graph = transcript_graph(biphones, ["ca", "ab"])
    found = best_path(graph, biphones, scores_TP, graph.pdf, beam=1e9, acoustic_scale=scale)
    assert found is not None
    paths = every_path(biphones, ["ca", "ab"], frames)
    totals = [logp + scale * scores_TP[np.arange(frames), pdf_T].sum() for logp, _, pdf_T in paths]
    best = int(np.argmax(totals))
    alignment = from_path(graph, *found)
    assert found[1] * frames == pytest.approx(totals[best], abs=1e-4)
    assert tuple(alignment.phones.tolist()) == paths[best][1]
    assert alignment.pdfs(biphones).tolist() == paths[best][2]


def test_every_segmentation_can_be_the_best(biphones: Hmm) -> None:
    """Each is a path of the graph: it wins where the scores say so."""
    graph, frames = transcript_graph(biphones, ["cc"]), 5
    phones = tuple(biphones.lexicon.phone_ids[phone] for phone in ("c", "c"))
    for _, path, pdf_T in every_path(biphones, ["cc"], frames):
        scores_TP = np.zeros((frames, biphones.num_pdfs))
        scores_TP[np.arange(frames), pdf_T] = 10.0
        found = best_path(graph, biphones, scores_TP, graph.pdf, beam=1e9, acoustic_scale=1.0)
        assert found is not None and from_path(graph, *found).pdfs(biphones).tolist() == pdf_T
        assert phones == path or len(path) > 2


def test_a_phone_takes_at_least_one_output(biphones: Hmm) -> None:
    graph = transcript_graph(biphones, ["ab", "ca"])
    assert graph.min_frames == 4
    scores_TP = np.zeros((4, biphones.num_pdfs))
    assert best_path(graph, biphones, scores_TP, graph.pdf, beam=1e6) is not None
    assert best_path(graph, biphones, scores_TP[1:], graph.pdf, beam=1e6) is None


@pytest.mark.parametrize("topology", [THREE_STATES, FIRST_AND_LOOP], ids=lambda topology: topology.name)
def test_copies_are_made_only_for_neighbours_that_are_asked_about(lexicon: Lexicon, topology) -> None:
    phones, words = len(lexicon.phones), ["ca", "ab", "cc", "ba"]
    sizes = {}
    for name, tree in (
        ("none", monophone_tree(np.arange(phones), topology.states)),
        ("left", asking(LEFT, phones, topology.states, (0, 1, 3))),
        ("right", asking(RIGHT, phones, topology.states, (0, 1, 3))),
    ):
        hmm = Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5), topology)
        graph = transcript_graph(hmm, words)
        sizes[name] = len(graph.pdf) // topology.states
        assert (graph.pred_src < np.repeat(np.arange(len(graph.pdf)), np.diff(graph.pred_ptr))).all(), "arcs lead on"
        if topology is THREE_STATES:
            expected, found = phone_paths(lexicon, words), graph_paths(graph)
            assert {path: probability for path, (probability, _) in found.items()} == pytest.approx(expected, rel=1e-5)
    spoken = sum(len(pron.phones) for word in words for pron in lexicon.by_word[word])
    assert sizes["none"] == spoken + len(words) + 1
    assert sizes["left"] > sizes["none"] < sizes["right"]


def test_frames_shared_out(hmm: Hmm) -> None:
    alignment = equal_alignment(hmm.lexicon, ["ab"], 10, FIRST_AND_LOOP)
    assert alignment is not None
    first_T = np.isin(np.arange(10), alignment.starts)
    np.testing.assert_array_equal(alignment.states, ~first_T)
    assert set(np.diff(alignment.starts).tolist()) == {2, 3}
    np.testing.assert_array_equal(evened_out(alignment, FIRST_AND_LOOP).states, alignment.states)
    assert equal_alignment(hmm.lexicon, ["ab"], 4, FIRST_AND_LOOP) is not None
    assert equal_alignment(hmm.lexicon, ["ab"], 3, FIRST_AND_LOOP) is None
    assert [num_outputs(frames, 3) for frames in (0, 1, 3, 4)] == [0, 1, 1, 2]


def test_saved_and_loaded(biphones: Hmm, hmm: Hmm, tmp_path: Path) -> None:
    biphones.save(tmp_path / "new")
    back = load_hmm(tmp_path / "new")
    assert (back.topology, back.subsampling, back.tree.states) == (FIRST_AND_LOOP, 3, 2)
    hmm.save(tmp_path / "old")  # as models were before there were topologies
    about = {
        key: value
        for key, value in read_json(tmp_path / "old" / "hmm.json").items()
        if key not in ("topology", "subsampling")
    }
    write_json(tmp_path / "old" / "hmm.json", about)
    back = load_hmm(tmp_path / "old")
    assert (back.topology, back.subsampling) == (THREE_STATES, 1)
    write_json(tmp_path / "old" / "hmm.json", {**about, "topology": "first-and-loop"})
    with pytest.raises(DataError, match=r"old: hmm\.json says first-and-loop, but"):
        load_hmm(tmp_path / "old")
    write_json(tmp_path / "old" / "hmm.json", {**about, "topology": "ring"})
    with pytest.raises(MissingError, match=r"old.*hmm\.json"):
        load_hmm(tmp_path / "old")


def test_transitions(biphones: Hmm, hmm: Hmm) -> None:
    stay, leave = biphones.transitions(np.array([3, 5]), np.array([0, 1]), 0.7)
    assert stay.tolist() == [-np.inf, 0.0] and leave.tolist() == [0.0, 0.0]
    stay, leave = hmm.transitions(np.array([3, 5]), np.array([0, 2]), 0.7)
    np.testing.assert_allclose(np.exp(stay / 0.7) + np.exp(leave / 0.7), 1.0, rtol=1e-6)
    other = replace(hmm, topology=FIRST_AND_LOOP)
    assert other.transitions(np.array([3]), np.array([1]), 0.1)[0].tolist() == [0.0], "probabilities are not looked at"
