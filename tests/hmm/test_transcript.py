"""The HMM of a transcript against all its paths, spelled out by hand."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from speech3.errors import Speech3Error
from speech3.hmm.model import CENTRE, LEFT, RIGHT, THREE_STATES, Hmm, Tree
from speech3.hmm.transcript import NO_WORD, TranscriptGraph, transcript_graph
from speech3.language.lexicon import Lexicon, Silences

STATES = THREE_STATES.states


def phone_paths(lexicon: Lexicon, words: list[str]) -> dict[tuple[tuple[int, int], ...], float]:
    """Every sequence of (phone, word) with its probability, by enumeration."""
    sil, p = (lexicon.silence, NO_WORD), lexicon.silence_prob
    paths = {}
    for variants in itertools.product(*(lexicon.by_word[word] for word in words)):
        for silences in itertools.product([False, True], repeat=len(words) + 1):
            path = [sil] if silences[0] else []
            probability = math.prod(v.prob for v in variants) * math.prod(p if s else 1 - p for s in silences)
            for index, (variant, silence) in enumerate(zip(variants, silences[1:], strict=True)):
                path += [(lexicon.phone_ids[phone], index) for phone in variant.phones]
                path += [sil] if silence else []
            paths[tuple(path)] = paths.get(tuple(path), 0.0) + probability
    return paths


def graph_paths(graph: TranscriptGraph) -> dict[tuple[tuple[int, int], ...], tuple[float, list[int]]]:
    """Every path through the graph, entered once a state: (phone, word) sequence to probability and states."""
    successors: dict[int, list[tuple[int, float]]] = {}
    for s in range(len(graph.pdf)):
        for a in range(graph.pred_ptr[s], graph.pred_ptr[s + 1]):
            successors.setdefault(int(graph.pred_src[a]), []).append((s, float(graph.pred_logp[a])))
    found = {}
    stack = [([int(s)], float(graph.entry_logp[s])) for s in np.flatnonzero(np.isfinite(graph.entry_logp))]
    while stack:
        states, logp = stack.pop()
        if np.isfinite(graph.final_logp[states[-1]]):
            key = tuple((int(graph.phone[s]), int(graph.word[s])) for s in states[::STATES])
            assert key not in found, "two paths spell the same phones"
            found[key] = (math.exp(logp + float(graph.final_logp[states[-1]])), states)
        for target, arc in successors.get(states[-1], []):
            assert target > states[-1], "arcs must lead forward"
            stack.append(([*states, target], logp + arc))
    return found


def test_paths_and_probabilities_are_those_of_the_lexicon(hmm: Hmm) -> None:
    words = ["ab", "ca", "cc"]
    expected, found = phone_paths(hmm.lexicon, words), graph_paths(transcript_graph(hmm, words))
    assert set(found) == set(expected)
    for path, probability in expected.items():
        assert found[path][0] == pytest.approx(probability, rel=1e-5)


def test_silences_of_a_words_own_are_on_every_path(hmm: Hmm) -> None:
    first, *others = hmm.lexicon.pronunciations
    own = dataclasses.replace(first, silences=Silences(0.9, 2.0, 0.25))
    lexicon = dataclasses.replace(hmm.lexicon, pronunciations=(own, *others), end=Silences(0.5, 3.0, 0.5))
    graph = transcript_graph(dataclasses.replace(hmm, lexicon=lexicon), [first.word])
    sil, said = (lexicon.silence, NO_WORD), [(lexicon.phone_ids[phone], 0) for phone in first.phones]
    p, found = lexicon.silence_prob, graph_paths(graph)
    assert found[(*said,)][0] == pytest.approx((1 - p) * first.prob * 0.25 * 0.1 * 0.5)
    assert found[(sil, *said)][0] == pytest.approx(p * first.prob * 2.0 * 0.1 * 0.5)
    assert found[(sil, *said, sil)][0] == pytest.approx(p * first.prob * 2.0 * 0.9 * 3.0)


def test_every_path_has_the_pdfs_of_its_own_contexts(lexicon: Lexicon) -> None:
    # A tree in which every (left, phone, right) has its own answer to three questions.
    phones = len(lexicon.phones)
    member = np.zeros((7, phones + 1), bool)
    member[0, [0, 1, 2]] = member[1, [2, 4]] = member[2, [3]] = True
    tree = Tree(
        root=np.zeros((phones + 1, STATES), np.int32),
        side=np.array([LEFT, RIGHT, CENTRE, -1, -1, -1, -1], np.int8),
        member=member,
        yes=np.array([1, 3, 5, 0, 1, 2, 3], np.int32),
        no=np.array([2, 4, 6, 0, 1, 2, 3], np.int32),
    )
    hmm = Hmm(lexicon, tree, np.full(4, 0.5))
    graph = transcript_graph(hmm, ["ca", "ab"])
    for path, (_, states) in graph_paths(graph).items():
        spelled = [0, *(phone for phone, _ in path), 0]
        for i, (left, phone, right) in enumerate(zip(spelled[:-2], spelled[1:-1], spelled[2:], strict=True)):
            if phone in lexicon.context_free:
                continue
            expected = [tree.pdf(left, phone, right, state) for state in range(STATES)]
            assert graph.pdf[states[i * STATES : (i + 1) * STATES]].tolist() == expected


def test_shortest_path(hmm: Hmm) -> None:
    assert transcript_graph(hmm, ["ab", "ca"]).min_frames == 4 * STATES


def test_no_words_is_an_error(hmm: Hmm) -> None:
    with pytest.raises(Speech3Error, match="no words"):
        transcript_graph(hmm, [])
