"""Unseen words spelled by letters: what the two models together say of every word and every letter."""

import itertools
import math

import pytest

from speech3.language.added_words import add_letter_model, letter_units, new_word_weight, with_unigrams
from speech3.language.kneser_ney import estimate_lm
from speech3.language.ngrams import ArpaLm

TEXT = [line.split() for line in ("ab ba", "ab ab", "ba bab ab", "aab", "ab", "ba aab ab")]
WORDS = ("ab", "ba", "bab", "aab", "abba", "bb")
WEIGHT = 0.3


def both(order: int = 2, letters: int = 4) -> tuple[ArpaLm, ArpaLm, ArpaLm]:
    lm, model = estimate_lm(TEXT, order), estimate_lm(map(letter_units, WORDS), letters)
    return lm, model, add_letter_model(lm, model, WEIGHT)


def prob(lm: ArpaLm, history: tuple[str, ...], word: str) -> float:
    return 10 ** lm.log10_prob(history, word)


def is_further(unit: str) -> bool:
    return unit.startswith("￭")


def sequence(lm: ArpaLm, history: tuple[str, ...], units: tuple[str, ...]) -> float:
    return math.prod(prob(lm, (*history, *units[:place]), unit) for place, unit in enumerate(units))


@pytest.mark.parametrize(("order", "letters"), [(1, 2), (2, 3), (3, 4), (2, 6)])
def test_words_and_first_letters_sum_to_one_and_so_do_further_letters(order: int, letters: int) -> None:
    _, model, lm = both(order, letters)
    between = [(), ("<s>",), ("<s>", "ab"), ("ab", "ba"), ("<s>", "a￭", "￭b"), ("ab", "b￭", "￭a￭", "￭b")]
    starts = [unit for unit in lm.vocabulary if not is_further(unit) and unit != "<s>"]
    for history in between:
        assert sum(prob(lm, history, unit) for unit in starts) == pytest.approx(1, abs=1e-9), history
    further = [unit for unit in model.words if is_further(unit)]
    begun = [
        (first, *inner)
        for first in ("a￭", "b￭")
        for n in range(4)
        for inner in itertools.product(("￭a￭", "￭b￭"), repeat=n)
    ]
    for history in (*begun, *(("<s>", "ab", *spelled) for spelled in begun)):
        assert sum(prob(lm, history, unit) for unit in further) == pytest.approx(1, abs=1e-9), history


def test_all_spelled_words_together_are_as_probable_as_a_new_word() -> None:
    words, _, lm = both()
    new = with_unigrams(words, {"new": math.log10(WEIGHT)})
    for history in ((), ("<s>",), ("<s>", "ab"), ("ba",)):
        expected, found = prob(new, history, "new"), 0.0
        for length in range(2, 10):
            found += sum(sequence(lm, history, letter_units(w)) for w in itertools.product("ab", repeat=length))
            assert found < expected
        assert found == pytest.approx(expected, rel=0.05)
        for word in ("ab", "ba", "</s>"):
            assert prob(lm, history, word) == pytest.approx(prob(new, history, word), rel=1e-9)
    assert prob(lm, ("<s>", "ab"), "a￭") / prob(lm, ("<s>", "ab"), "b￭") == pytest.approx(
        prob(lm, (), "a￭") / prob(lm, (), "b￭")
    )


def test_a_spelling_is_as_probable_as_the_letter_model_says() -> None:
    """Except for what is left to units that cannot follow: all that it lists has its probabilities, begun as there."""
    _, model, lm = both(letters=4)
    seen = {ngram[1:]: 10**p for ngram, (p, _) in model.ngrams[2].items() if ngram[0] == "<s>"}
    assert len(seen) > 4
    for (first, second), expected in seen.items():
        assert prob(lm, ("ab", first), second) == pytest.approx(expected, rel=1e-9)
    longest = [ngram for ngram in model.ngrams[3] if ngram[-1] != "</s>" and ngram[0] != "<s>"]
    for ngram in longest:
        assert prob(lm, ngram[:-1], ngram[-1]) == pytest.approx(prob(model, ngram[:-1], ngram[-1]), rel=1e-9)


def test_the_weight_expects_as_many_new_words_as_there_are() -> None:
    lm = estimate_lm(TEXT, 2)
    text = [line.split() for line in ("ab nn ba", "ba ab", "mm ab", "aab bab ab nn")]
    new = with_unigrams(lm, {"new": math.log10(new_word_weight(lm, text))})
    known = [["new" if word not in lm.numbers else word for word in sentence] for sentence in text]
    said = [(("<s>", *words[:place]), word) for words in known for place, word in enumerate((*words, "</s>"))]
    said = [(history, word) for history, word in said if word != "<s>"]
    assert sum(prob(new, history, "new") for history, _ in said) == pytest.approx(3, abs=1e-6)

    def likelihood(weight: float) -> float:
        changed = with_unigrams(lm, {"new": math.log10(weight)})
        return math.prod(prob(changed, history, word) for history, word in said)

    best = new_word_weight(lm, text)
    assert likelihood(best) > max(likelihood(0.9 * best), likelihood(1.1 * best))
    assert 0 < new_word_weight(lm, [["ab", "ba"]]) < best  # none is new


def test_units_show_their_places() -> None:
    assert letter_units(("ng", "a")) == ("ng￭", "￭a")
    assert letter_units("abc") == ("a￭", "￭b￭", "￭c")
