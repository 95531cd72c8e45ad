"""Perplexity, hits and unknown words, and the trie under them, against dictionaries."""

import math

import numpy as np
import pytest
import small_texts
from hypothesis import given, settings, strategies as st

from speech3.language.arpa import read_arpa, write_arpa
from speech3.language.kneser_ney import Known, estimate_lm, number_sentences
from speech3.language.ngrams import ArpaLm, RepeatedNgramError, Rows, from_ngrams, from_rows
from speech3.language.train_lm import describe_perplexity, measure


def looked_up(ngrams, history, word):
    """Log10 probability and order of the n-gram, by the definition of back-off models."""
    context = tuple(history)[max(0, len(history) - len(ngrams) + 1) :]
    total = 0.0
    while True:
        if (*context, word) in ngrams[len(context)]:
            return total + ngrams[len(context)][(*context, word)][0], len(context) + 1
        assert context, f"{word} is no 1-gram"
        total += ngrams[len(context) - 1].get(context, (0.0, 0.0))[1]
        context = context[1:]


def holey(seed: int, order: int = 4) -> ArpaLm:
    """A model as pruning leaves it: n-grams of which the part without the first word is missing, nothing in order."""
    rng = np.random.default_rng(seed)
    lm = estimate_lm(small_texts.text(40, seed), order, "abcdefgh")
    tables = [dict(lm.ngrams[0])]
    for table in lm.ngrams[1:]:
        kept = [ngram for ngram in table if ngram[:-1] in tables[-1] and rng.random() < 0.7]
        tables.append({ngram: table[ngram] for ngram in kept[::-1]})
    return from_ngrams(tables, "holey")


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 50), st.lists(st.lists(st.sampled_from("abcdefghZ"), max_size=7), min_size=1, max_size=5))
def test_measured_as_defined(seed, text):
    lm = holey(seed)
    total, hits, unknown = 0.0, [0] * lm.order, 0
    for sentence in text:
        for place, word in enumerate([*sentence, "</s>"]):
            if word == "Z":
                unknown += 1
                continue
            value, order = looked_up(lm.ngrams, ["<s>", *sentence[:place]], word)
            assert lm.log10_prob(["<s>", *sentence[:place]], word) == pytest.approx(value, abs=1e-12)
            total += value
            hits[order - 1] += 1
    found = measure(lm, number_sentences(text, Known(lm.numbers), "text"))
    assert found.log10_known == pytest.approx(total, abs=1e-9)
    assert found.hits_N == tuple(hits)
    assert (found.sentences, found.words, found.unknown) == (len(text), sum(map(len, text)), unknown)
    assert found.known == pytest.approx(10 ** (-total / sum(hits)))
    assert math.isinf(found.all) == bool(unknown)


def test_unknown_words_with_and_without():
    lm = estimate_lm(small_texts.text(30, seed=1), 2, ["a", "b", "c"])
    found = measure(lm, number_sentences([["a", "zebra", "b"]], Known(lm.numbers), "text"))
    history = ["<s>", "a", "<unk>", "b"]
    logs = [lm.log10_prob(history[: place + 1], word) for place, word in enumerate(["a", "<unk>", "b", "</s>"])]
    assert found.all == pytest.approx(10 ** (-sum(logs) / 4))
    assert found.known == pytest.approx(10 ** (-(sum(logs) - logs[1]) / 3))
    assert "3 words, 1 unknown (OOV, 33.33 %)" in describe_perplexity(found)
    without = estimate_lm([["a"]], 1)
    found = measure(without, number_sentences([["a", "zebra"]], Known(without.numbers), "text"))
    assert "no <unk>" in describe_perplexity(found) and found.as_json()["ppl_with_oov"] is None


def test_histories_that_are_no_ngrams_are_added(tmp_path):
    """As some tools prune; the model stays the same."""
    lm = estimate_lm(small_texts.text(40, seed=2), 4)
    tables = [dict(table) for table in lm.ngrams]
    for ngram in list(tables[1])[::2]:
        del tables[1][ngram]
    gone = [ngram for ngram in tables[2] if ngram[0] == "a"]
    for ngram in gone:
        del tables[2][ngram]
    closed = from_ngrams(tables, "closed")
    assert len(closed.ngrams[1]) > len(tables[1]) and len(closed.ngrams[2]) > len(tables[2])
    assert set(closed.ngrams[3]) == set(tables[3])
    for history in small_texts.histories(closed):
        for word in small_texts.outcomes(closed):
            assert closed.log10_prob(history, word) == pytest.approx(looked_up(tables, history, word)[0], abs=1e-12)
    write_arpa(closed, tmp_path / "closed.arpa")
    again = read_arpa(tmp_path / "closed.arpa")
    np.testing.assert_array_equal(again.word_G, closed.word_G)


def test_an_ngram_twice():
    words = np.array([[0, 1], [2, 1], [0, 1]], np.int32)
    rows = [
        Rows(np.arange(3, dtype=np.int32)[:, None], np.zeros(3), np.zeros(3)),
        Rows(words, np.zeros(3), np.zeros(3)),
    ]
    with pytest.raises(RepeatedNgramError) as error:
        from_rows(("<s>", "</s>", "a"), rows, "twice")
    assert (error.value.order, error.value.row) == (2, 2)


def test_walking_over_nodes():
    lm = estimate_lm(small_texts.text(30, seed=3), 3)
    for order, table in enumerate(lm.ngrams, 1):
        nodes = range(lm.starts_N[order], lm.starts_N[order + 1])
        assert [lm.ngram(node) for node in nodes] == list(table)
    assert from_ngrams(lm.ngrams, "again").ngrams == lm.ngrams
