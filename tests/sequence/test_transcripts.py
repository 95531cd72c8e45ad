"""Numerators of whole transcripts against the enumeration of all their paths, and against finite differences."""

import itertools
import math

import numpy as np
import pytest
import torch

from speech3.errors import Speech3Error
from speech3.frames.chunks import Chunk
from speech3.frames.packed import segment_numbers
from speech3.hmm.model import FIRST_AND_LOOP, LEFT, Hmm, Tree, context_free_tree
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.sequence.forward_backward import denominator_log_z
from speech3.sequence.graph import START, estimate_phone_lm, numerator_posteriors
from speech3.sequence.lfmmi import (
    Denominator,
    LfMmi,
    TranscriptNumerators,
    make_denominator,
    random_phones,
    word_labels,
)

# "x" and "x y" before "y z" and "z": the sequence x y z can be read in two ways.
LEXICON = Lexicon(
    (
        Pronunciation("one", ("x",)),
        Pronunciation("one", ("x", "y"), 0.5),
        Pronunciation("two", ("y", "z")),
        Pronunciation("two", ("z",), 0.1),
        Pronunciation("three", ("z", "x")),
    )
)
PHONES = len(LEXICON.phones)
LEAK = 0.1


def context_free() -> Hmm:
    pdfs = np.arange(2 * PHONES).reshape(PHONES, 2)
    return Hmm(LEXICON, context_free_tree(pdfs), np.full(2 * PHONES, 0.5), FIRST_AND_LOOP, 3)


def left_biphones() -> Hmm:
    """As `context_free`, but both pdfs of each phone are others after silence."""
    member = np.zeros((4 * PHONES + 2 * PHONES, PHONES + 1), bool)
    leaves, roots = 4 * PHONES, np.arange(2 * PHONES) + 4 * PHONES
    member[leaves:, 1] = True
    side = np.concatenate([np.full(leaves, -1), np.full(2 * PHONES, LEFT)]).astype(np.int8)
    pdfs, first = np.arange(leaves, dtype=np.int32), np.arange(2 * PHONES, dtype=np.int32)
    root = np.concatenate([np.zeros((1, 2)), roots.reshape(PHONES, 2)]).astype(np.int32)
    tree = Tree(root, side, member, np.concatenate([pdfs, first + 2 * PHONES]), np.concatenate([pdfs, first]))
    return Hmm(LEXICON, tree, np.full(leaves, 0.5), FIRST_AND_LOOP, 3)


def spellings(words: list[str]) -> set[tuple[int, ...]]:
    """Every sequence of phones that the words can be, silence anywhere around them."""
    parts = [{(), ("SIL",)}]
    for word in words:
        parts += [{pron.phones for pron in LEXICON.by_word[word]}, {(), ("SIL",)}]
    return {
        tuple(LEXICON.phone_ids[phone] for part in chosen for phone in part) for chosen in itertools.product(*parts)
    }


def enumerated(y_TS: np.ndarray, words: list[str], graph: Denominator) -> float:
    """Log of the summed weight of all paths: of each spelling, in each division of the frames among its phones."""
    total, lm = 0.0, graph.lm
    pairs = list(zip(lm.left_J.tolist(), lm.phone_J.tolist(), strict=True))
    for phones in spellings(words):
        weight, state = float(graph.initial_J[START]), START
        for left, phone in zip((0, *phones), phones, strict=False):
            arc = lm.arc(state, phone) if state >= 0 else -1
            if arc >= 0:
                weight, state = weight * lm.prob_A[arc], int(lm.next_A[arc])
            else:
                state = pairs.index((left, phone)) if (left, phone) in pairs else -1
                weight *= LEAK * (float(graph.initial_J[state]) if state >= 0 else 1e-8)
        for cuts in itertools.combinations(range(1, len(y_TS)), len(phones) - 1):
            score = 0.0
            for left, phone, begin, end in zip((0, *phones), phones, (0, *cuts), (*cuts, len(y_TS)), strict=False):
                first, loop = graph.pdfs_PP2[left, phone]
                score += y_TS[begin, first] + y_TS[begin + 1 : end, loop].sum()
            total += weight * math.exp(score)
    return math.log(total) if total else -math.inf


def denominator(hmm: Hmm, *transcripts: list[str], all_spellings: bool = True) -> Denominator:
    said = [phones for words in transcripts for phones in sorted(spellings(words))]
    return make_denominator(estimate_phone_lm(said if all_spellings else said[:2], 3), hmm)


def chunk(words: list[str], outputs: int) -> Chunk:
    return Chunk(word_labels(LEXICON, words, 3 * outputs), 0)


def random_outputs(batch: int, frames: int, pdfs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(batch, frames, pdfs))


@pytest.mark.parametrize("hmm", [context_free(), left_biphones()], ids=["context-free", "left biphones"])
@pytest.mark.parametrize("words", [["one"], ["one", "two"], ["two", "three", "one"]])
@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
def test_equals_enumeration(hmm: Hmm, words: list[str], seen: bool) -> None:
    graph = denominator(hmm, words, all_spellings=seen)
    for frames in (4, 7):
        y = 2 * random_outputs(1, frames, graph.num_pdfs)
        numerators = TranscriptNumerators(graph, hmm, LEAK)([chunk(words, frames)])
        log_z, posterior = numerator_posteriors(y, numerators)
        assert log_z[0] == pytest.approx(enumerated(y[0], words, graph), abs=1e-9)
        np.testing.assert_allclose(posterior.sum(2), 1, atol=1e-9)
        assert len(numerators) == frames


def test_utterances_of_a_batch_do_not_mix() -> None:
    hmm = left_biphones()
    graph = denominator(hmm, ["one", "two"], ["three"])
    maker = TranscriptNumerators(graph, hmm, LEAK)
    both = maker([chunk(["one", "two"], 6), chunk(["three"], 4)])
    y = random_outputs(2, 6, graph.num_pdfs)
    log_z, posterior = numerator_posteriors(y, both)
    assert both.frames == 6  # the shorter one is padded
    for b, words in enumerate((["one", "two"], ["three"])):
        assert log_z[b] == pytest.approx(enumerated(y[b], words, graph), abs=1e-9)
        alone = numerator_posteriors(y[b : b + 1], maker([chunk(words, 6)]))[1]
        np.testing.assert_allclose(posterior[b], alone[0], atol=1e-12)


def test_posteriors_are_the_gradient() -> None:
    hmm = left_biphones()
    graph = denominator(hmm, ["one", "two"])
    numerators = TranscriptNumerators(graph, hmm, LEAK)([chunk(["one", "two"], 6)])
    y, step = random_outputs(1, 6, graph.num_pdfs), 1e-5
    _, posterior = numerator_posteriors(y, numerators)
    for place in itertools.product([0], range(6), range(graph.num_pdfs)):
        ahead, back = y.copy(), y.copy()
        ahead[place] += step
        back[place] -= step
        rise = numerator_posteriors(ahead, numerators)[0][0] - numerator_posteriors(back, numerators)[0][0]
        assert posterior[place] == pytest.approx(rise / (2 * step), abs=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_is_never_above_the_denominator_where_all_was_seen(seed: int) -> None:
    hmm, transcripts = left_biphones(), (["one", "two"], ["three", "one", "one"])
    graph = denominator(hmm, *transcripts)
    numerators = TranscriptNumerators(graph, hmm, LEAK)([chunk(words, 12) for words in transcripts])
    y = 4 * random_outputs(2, 12, graph.num_pdfs, seed)
    # Towards one transcript's own outputs, where the bound is tight.
    for _ in range(5):
        log_z, posterior = numerator_posteriors(y, numerators)
        assert (log_z <= denominator_log_z(torch.from_numpy(y).permute(1, 2, 0), graph, LEAK).numpy() + 1e-9).all()
        y = y + 4 * posterior


def test_loss_has_the_gradient_of_its_value() -> None:
    hmm = context_free()
    graph = denominator(hmm, ["one", "two"])
    numerators = TranscriptNumerators(graph, hmm, LEAK)([chunk(["one", "two"], 5), chunk(["two"], 5)])
    criterion = LfMmi(graph, leaky_hmm_coefficient=LEAK, l2=0.01)
    y = torch.from_numpy(random_outputs(2, 5, graph.num_pdfs)).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: criterion(y, numerators)[0], y)


def test_a_transcript_longer_than_its_frames_counts_as_nothing() -> None:
    hmm = context_free()
    graph = denominator(hmm, ["one", "three"], ["two"])
    long, fits = Chunk(word_labels(LEXICON, ["one", "three"], 9), 0, 1.5), chunk(["two"], 2)  # at this speed 2 outputs
    maker = TranscriptNumerators(graph, hmm, LEAK)
    y = random_outputs(2, 2, graph.num_pdfs)
    log_z, posterior = numerator_posteriors(y, maker([long, fits]))
    assert log_z[0] == -np.inf and np.isfinite(log_z[1])
    assert maker([long, fits]).fits_B.tolist() == [False, True]
    assert not posterior[0].any()
    loss, _ = LfMmi(graph, leaky_hmm_coefficient=LEAK, l2=0.0)(torch.from_numpy(y), maker([long, fits]))
    alone, _ = LfMmi(graph, leaky_hmm_coefficient=LEAK, l2=0.0)(torch.from_numpy(y[1:]), maker([fits]))
    assert loss.item() == pytest.approx(alone.item())


def test_nan_in_the_outputs_is_nan_in_the_loss() -> None:
    hmm = context_free()
    graph = denominator(hmm, ["two"])
    y = torch.from_numpy(random_outputs(1, 4, graph.num_pdfs)).float()
    y[0, 2] = math.nan
    loss, _ = LfMmi(graph)(y, TranscriptNumerators(graph, hmm)([chunk(["two"], 4)]))
    assert math.isnan(loss.item())


def test_labels_hold_the_words_and_refuse_what_cannot_be_said_in_the_time() -> None:
    labels = word_labels(LEXICON, ["one", "two", "two"], 11)
    assert len(labels) == 11
    assert [list(LEXICON.word_numbers)[word] for word in segment_numbers(labels)] == ["one", "two", "two"]
    assert labels.max() < 2 * len(LEXICON.by_word)
    with pytest.raises(Speech3Error, match="too short at a third of the frame rate: 5 phones, 4 outputs"):
        word_labels(LEXICON, ["one", "three", "three"], 12)
    with pytest.raises(Speech3Error, match="no transcript"):
        word_labels(LEXICON, [], 12)


def test_random_spellings_follow_the_probabilities() -> None:
    generator, silence = np.random.default_rng(0), LEXICON.silence
    drawn = [tuple(random_phones(LEXICON, ["one"], generator)) for _ in range(3000)]
    assert set(drawn) == spellings(["one"])
    assert sum(phones[0] == silence for phones in drawn) / 3000 == pytest.approx(0.5, abs=0.03)
    assert sum(phones[-1] == silence for phones in drawn) / 3000 == pytest.approx(0.5, abs=0.03)
    # "x y" has probability 0.5 beside 1 of "x".
    longer = sum(LEXICON.phone_ids["y"] in phones for phones in drawn)
    assert longer / 3000 == pytest.approx(1 / 3, abs=0.03)
