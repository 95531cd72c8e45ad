"""The loop of phones against enumeration of all paths, alignments that were laid out by hand, and a known language."""

import itertools

import jiwer
import numpy as np
import pytest
from drawn import draw

from speech3.hmm.model import Hmm, Tree, context_free_tree, monophone_tree
from speech3.hmm.phone_loop import LoopPhones, best_phones, loop_phones, phone_bigram
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.language.pronounce import edit_distance


def _made(repeats, ends, phones=2, seed=0):
    """Phones with random transitions, the first of them silence; states may repeat and end as told."""
    rng = np.random.default_rng(seed)
    states = len(repeats)
    stay, advance, leave = np.log(rng.uniform(0.1, 1, (3, phones, states))).astype(np.float32)
    stay[:, ~np.array(repeats)], leave[:, ~np.array(ends)], advance[:, -1] = -np.inf, -np.inf, -np.inf
    return LoopPhones(np.arange(phones) == 0, np.arange(phones * states), stay, advance, leave)


def _paths(loop, bigram, frames):
    """Every path of states through the loop, with its log probability and its phones."""
    phones, states = loop.stay_GS.shape
    for start in itertools.product(range(phones * states), repeat=frames):
        ways = [((), -np.inf)] if start[0] % states else [((start[0] // states,), bigram[phones, start[0] // states])]
        for (g, s), (h, z) in itertools.pairwise(divmod(x, states) for x in start):
            new = []
            for said, value in ways:
                if g == h and s == z:
                    new.append((said, value + loop.stay_GS[g, s]))
                if g == h and z == s + 1:
                    new.append((said, value + loop.advance_GS[g, s]))
                if z == 0:
                    new.append(((*said, h), value + loop.leave_GS[g, s] + bigram[g, h]))
            ways = new
        g, s = divmod(start[-1], states)
        for said, value in ways:
            yield start, said, value + loop.leave_GS[g, s] + bigram[g, phones]


@pytest.mark.parametrize(
    ("repeats", "ends"), [((True, True), (False, True)), ((False, True), (True, True)), ((True,), (True,))]
)
def test_the_best_of_all_paths_is_found(repeats, ends):
    rng = np.random.default_rng(1)
    loop = _made(repeats, ends)
    bigram = phone_bigram([np.array([0, 1, 0]), np.array([1, 1])], 2)
    for frames in (1, 2, 3, 5):
        paths = list(_paths(loop, bigram, frames))
        for _ in range(10):
            scores = rng.normal(0, 2, (frames, *loop.stay_GS.shape)).astype(np.float32)
            flat = scores.reshape(frames, -1)
            values = [value + flat[np.arange(frames), start].sum() for start, _, value in paths]
            best = paths[int(np.argmax(values))][1] if np.isfinite(max(values)) else ()
            assert best_phones(loop, bigram, scores, 1.0).tolist() == [g for g in best if g != 0]


def test_segments_of_phones_from_left_to_right():
    loop = _made((True, True, True), (False, False, True), phones=3)
    # Silence; phone 1 twice in a row; phone 2; each pdf is its phone and state.
    pdfs = [0, 0, 1, 2, 2, 3, 4, 4, 5, 3, 4, 5, 6, 7, 8]
    assert loop.segments(np.array(pdfs)).tolist() == [0, 1, 1, 2]
    assert loop.spoken(loop.segments(np.array(pdfs))).tolist() == [1, 1, 2]


def test_segments_of_phones_with_a_first_frame_and_a_loop():
    loop = _made((False, True), (True, True), phones=3)
    # A first frame is never repeated, so each is a new phone, and a phone may be that frame alone.
    assert loop.segments(np.array([0, 1, 1, 2, 2, 3, 2, 4, 5, 5])).tolist() == [0, 1, 1, 1, 2]


def _hmm(*spoken, **more):
    lexicon = Lexicon((Pronunciation("W", spoken),), **more)
    return lexicon, len(lexicon.phones)


def test_phones_are_folded_over_stress_and_place():
    lexicon, count = _hmm("AA0_B", "AA1_I", "T_E", "T_S", position_dependent=True)
    loop = loop_phones(Hmm(lexicon, monophone_tree(np.arange(count)), np.full(3 * count, 0.5)))
    assert loop.silence_G.tolist() == [True, False, False]
    assert loop.place_P.tolist() == [0, 1, 2, *[3, 4, 5] * 2, *[6, 7, 8] * 2]


def test_a_tree_that_asks_for_neighbours_and_stress_is_folded_too():
    lexicon, count = _hmm("A0", "A1")
    member = np.zeros((10, count + 1), bool)
    member[:, 1] = True
    # The roots are node 0 to 2 of silence, 3 to 5 of both As; node 4 asks who stands before, node 5 which A it is.
    side = np.array([-1, -1, -1, -1, 0, 1, -1, -1, -1, -1], np.int8)
    yes = np.array([0, 1, 2, 3, 6, 8, 4, 5, 6, 7], np.int32)
    no = np.array([0, 1, 2, 3, 7, 9, 4, 5, 6, 7], np.int32)
    tree = Tree(np.array([[0] * 3, [0, 1, 2], [3, 4, 5], [3, 4, 5]], np.int32), side, member, yes, no)
    loop = loop_phones(Hmm(lexicon, tree, np.array([0.5, 0.5, 0.5, 0.2, 0.4, 0.6, 0.1, 0.3])))
    assert loop.place_P.tolist() == [0, 1, 2, 3, 4, 4, 5, 5]


def test_pdfs_that_phones_or_states_share_tell_no_phone():
    lexicon, count = _hmm("a", "b")
    assert loop_phones(Hmm(lexicon, monophone_tree(np.array([0, 1, 1])), np.full(6, 0.5))) is None
    one_each = context_free_tree(np.repeat(np.arange(count)[:, None], 3, axis=1))
    assert loop_phones(Hmm(lexicon, one_each, np.full(count, 0.5))) is None


def test_transitions_are_the_means_of_a_states_pdfs():
    lexicon, count = _hmm("a0", "a1")
    self_loop = np.array([0.5, 0.6, 0.7, 0.2, 0.3, 0.4, 0.4, 0.5, 0.6])
    loop = loop_phones(Hmm(lexicon, monophone_tree(np.arange(count)), self_loop))
    np.testing.assert_allclose(np.exp(loop.stay_GS), [[0.5, 0.6, 0.7], [0.3, 0.4, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(np.exp(loop.advance_GS), [[0.5, 0.4, 0], [0.7, 0.6, 0]], rtol=1e-6)
    np.testing.assert_allclose(np.exp(loop.leave_GS), [[0, 0, 0.3], [0, 0, 0.5]], rtol=1e-6)


def test_scores_are_summed_posteriors_over_summed_priors():
    rng = np.random.default_rng(2)
    loop = LoopPhones(np.array([True, False]), np.array([1, 0, 1, 1]), *np.zeros((3, 2, 1), np.float32))
    logits, log_prior = rng.normal(0, 5, (7, 4)), np.log([0.1, 0.2, 0.3, 0.4])
    posterior = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    wanted = np.stack(
        [
            posterior[:, 1] - log_prior[1],
            np.logaddexp.reduce(posterior[:, [0, 2, 3]], axis=1) - np.logaddexp.reduce(log_prior[[0, 2, 3]]),
        ],
        axis=1,
    )
    found = loop.scores(logits.astype(np.float32), log_prior)[:, :, 0]
    np.testing.assert_allclose(found - found[:, :1], wanted - wanted[:, :1], atol=1e-4)


def test_bigram_of_phones():
    bigram = np.exp(phone_bigram([np.array([0, 1, 1]), np.array([1])], 2))
    np.testing.assert_allclose(bigram, np.array([[1, 2, 1], [1, 2, 3], [2, 2, 1]]) / [[4], [6], [5]], rtol=1e-6)


def test_errors_are_jiwers():
    rng = np.random.default_rng(3)
    for _ in range(50):
        ref, hyp = rng.integers(0, 3, rng.integers(1, 9)), rng.integers(0, 3, rng.integers(0, 9))
        texts = (" ".join(map(str, each)) for each in (ref, hyp))
        assert edit_distance(ref, hyp) == round(jiwer.wer(*texts) * len(ref))


def test_a_known_language_is_recognised(hmm):
    drawn = draw(hmm, 12, seed=4, separation=2.0)
    loop = loop_phones(hmm)
    truth = {name: loop.segments(pdfs) for name, pdfs in drawn.states.items()}
    bigram, wrong, total = phone_bigram(truth.values(), len(loop.silence_G)), 0, 0
    for name, feats in drawn.feats.items():
        loglikes = -0.5 * ((feats[:, None] - drawn.means) ** 2).sum(2)
        # Likelihoods are posteriors times priors, whatever the priors are.
        scores = loop.scores((loglikes + np.log(0.3)).astype(np.float32), np.log(np.full(hmm.num_pdfs, 0.3)))
        wrong += edit_distance(loop.spoken(truth[name]).tolist(), best_phones(loop, bigram, scores, 1.0).tolist())
        total += len(loop.spoken(truth[name]))
    assert total > 50 and wrong <= 0.02 * total


def test_an_utterance_too_short_for_any_phone_has_none():
    loop = _made((True, True, True), (False, False, True))
    scores = np.zeros((2, 2, 3), np.float32)
    assert best_phones(loop, phone_bigram([np.array([1])], 2), scores, 1.0).tolist() == []
