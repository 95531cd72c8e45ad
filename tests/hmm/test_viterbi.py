"""Viterbi search against an exhaustive dynamic program in float64, and against the truth of drawn utterances."""

import numpy as np
import pytest
from drawn import draw

from speech3.hmm.gmm import Gmm
from speech3.hmm.model import THREE_STATES, Hmm
from speech3.hmm.transcript import Alignment, TranscriptGraph, best_path, equal_alignment, from_path, transcript_graph

STATES = THREE_STATES.states


def dense_score(graph: TranscriptGraph, hmm: Hmm, loglikes_TP: np.ndarray, scale: float) -> float:
    """Best log probability by a full matrix of transitions."""
    states = len(graph.pdf)
    arcs = np.full((states, states), -np.inf)
    stay = hmm.self_loop[graph.pdf]
    arcs[np.arange(states), np.arange(states)] = scale * np.log(stay)
    for s in range(states):
        for a in range(graph.pred_ptr[s], graph.pred_ptr[s + 1]):
            src = graph.pred_src[a]
            arcs[src, s] = max(arcs[src, s], scale * np.log(1 - stay[src]) + graph.pred_logp[a])
    score = graph.entry_logp + scale * loglikes_TP[0, graph.pdf]
    for row in loglikes_TP[1:]:
        score = (score[:, None] + arcs).max(0) + scale * row[graph.pdf]
    return float((score + scale * np.log(1 - stay) + graph.final_logp).max())


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_exhaustive_search(hmm: Hmm, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = transcript_graph(hmm, ["ca", "ab", "cc"])
    loglikes = rng.standard_normal((40, hmm.num_pdfs)) * 20
    found = best_path(graph, hmm, loglikes, graph.pdf, beam=1e9, acoustic_scale=0.3)
    assert found is not None
    assert found[1] * 40 == pytest.approx(dense_score(graph, hmm, loglikes, 0.3), rel=1e-4)


def test_path_scores_what_it_says(hmm: Hmm) -> None:
    rng = np.random.default_rng(0)
    graph = transcript_graph(hmm, ["ca"])
    loglikes = rng.standard_normal((30, hmm.num_pdfs)).astype(np.float32)
    found = best_path(graph, hmm, loglikes, graph.pdf, beam=1e9, acoustic_scale=1.0)
    assert found is not None
    path, score = found
    total = graph.entry_logp[path[0]] + graph.final_logp[path[-1]] + np.log(1 - hmm.self_loop[graph.pdf[path[-1]]])
    for t, s in enumerate(path):
        total += loglikes[t, graph.pdf[s]]
        if t and s == path[t - 1]:
            total += np.log(hmm.self_loop[graph.pdf[s]])
        elif t:
            arcs = slice(graph.pred_ptr[s], graph.pred_ptr[s + 1])
            arc = graph.pred_logp[arcs][graph.pred_src[arcs] == path[t - 1]].max()
            total += np.log(1 - hmm.self_loop[graph.pdf[path[t - 1]]]) + arc
    assert score * 30 == pytest.approx(total, rel=1e-4)


def test_narrow_beam_gives_up_and_wide_beam_succeeds(hmm: Hmm) -> None:
    # The recording is of other words: what looks best first does not reach the end.
    drawn = draw(hmm, 1, seed=3)
    gmm = Gmm(np.arange(hmm.num_pdfs + 1), np.ones(hmm.num_pdfs), drawn.means, np.ones_like(drawn.means))
    graph = transcript_graph(hmm, ["cc", "cc", "cc"])
    loglikes = gmm.loglikes(drawn.feats["u000"])[: graph.min_frames + 5]
    assert best_path(graph, hmm, loglikes, graph.pdf, beam=0.01) is None
    assert best_path(graph, hmm, loglikes, graph.pdf, beam=1e6) is not None


def test_too_few_frames_give_no_path(hmm: Hmm) -> None:
    graph = transcript_graph(hmm, ["ab"])
    loglikes = np.zeros((graph.min_frames - 1, hmm.num_pdfs))
    assert best_path(graph, hmm, loglikes, graph.pdf, beam=1e6) is None
    loglikes = np.zeros((graph.min_frames, hmm.num_pdfs))
    assert best_path(graph, hmm, loglikes, graph.pdf, beam=1e6) is not None


def test_drawn_utterances_are_aligned_as_drawn(hmm: Hmm) -> None:
    drawn = draw(hmm, 10, seed=1)
    gmm = Gmm(np.arange(hmm.num_pdfs + 1), np.ones(hmm.num_pdfs), drawn.means, np.ones_like(drawn.means))
    right = total = 0
    for name, feats in drawn.feats.items():
        graph = transcript_graph(hmm, drawn.words[name])
        found = best_path(graph, hmm, gmm.loglikes(feats), graph.pdf, beam=20.0)
        assert found is not None
        alignment = from_path(graph, *found)
        right += int((alignment.pdfs(hmm) == drawn.states[name]).sum())
        total += len(feats)
        assert alignment.starts[0] == 0 and alignment.starts[-1] == len(feats)
        spoken = [drawn.words[name][w] for w in dict.fromkeys(alignment.words.tolist()) if w >= 0]
        assert len(spoken) == len(drawn.words[name])
    assert right > 0.98 * total


def test_equal_alignment_shares_frames_out(hmm: Hmm) -> None:
    alignment = equal_alignment(hmm.lexicon, ["ab"], 25)
    assert isinstance(alignment, Alignment)
    counts = np.bincount(alignment.segment * STATES + alignment.states)
    assert counts.sum() == 25 and set(counts.tolist()) <= {2, 3}
    assert equal_alignment(hmm.lexicon, ["ab"], 4 * STATES) is not None
    assert equal_alignment(hmm.lexicon, ["ab"], 4 * STATES - 1) is None
