"""Toy recognisers whose sentences can be enumerated, and the enumeration."""

import itertools
import math
from pathlib import Path

import numpy as np

from speech3.hmm.model import FIRST_AND_LOOP, LEFT, RIGHT, THREE_STATES, Hmm, Tree, monophone_tree
from speech3.language.arpa import EOS, ArpaLm
from speech3.language.kneser_ney import estimate_lm
from speech3.language.lexicon import SILENCE, Lexicon, Pronunciation, Silences

STATES = THREE_STATES.states
SCALE = 0.1  # the self-loop scale in the graphs of most tests
SHARED = Path(__file__).parents[1].parent / "shared"

# A homophone pair (AB, BA2), a word that is a prefix of another (A, AB), pronunciation variants with probabilities.
LEXICON = Lexicon(
    (
        Pronunciation("A", ("a",)),
        Pronunciation("AB", ("a", "b")),
        Pronunciation("AB", ("b", "b"), 0.4),
        Pronunciation("BA", ("b", "a")),
        Pronunciation("BA2", ("a", "b"), 0.7),
    ),
    silence_prob=0.3,
)
# The same with silence probabilities for each pronunciation.
SILENCES = Lexicon(
    tuple(
        Pronunciation(pron.word, pron.phones, pron.prob, Silences(after, given_silence, given_word))
        for pron, after, given_silence, given_word in zip(
            LEXICON.pronunciations,
            (0.1, 0.8, 0.3, 0.6, 0.5),
            (1.5, 0.2, 1.0, 2.0, 0.7),
            (0.3, 1.2, 0.9, 0.5, 1.4),
            strict=True,
        )
    ),
    silence_prob=0.3,
    end=Silences(0.5, 1.8, 0.4),
)
TEXT = [line.split() for line in ("A AB BA", "AB AB", "BA2", "A A", "BA A AB", "BA2 BA", "AB BA A", "A")]


def bigram(order: int = 2) -> ArpaLm:
    return estimate_lm(TEXT, order)


def context_tree(phones: int, silence: int = 1, states: int = STATES) -> Tree:
    """A tree: a phone's first state asks about the left neighbour, the last about the right, the middle about both.

    With two states, both ask about the left neighbour.
    """
    side, member, yes, no = [], [], [], []
    root = np.zeros((phones + 1, states), np.int32)
    pdfs = itertools.count()

    def leaf() -> int:
        pdf = next(pdfs)
        return node(-1, (), pdf, pdf)

    def node(asks: int, phones_in: tuple[int, ...], then: int, otherwise: int) -> int:
        side.append(asks)
        member.append([phone in phones_in for phone in range(phones + 1)])
        yes.append(then)
        no.append(otherwise)
        return len(side) - 1

    for phone in range(1, phones + 1):
        for state in range(states):
            if phone == silence:
                root[phone, state] = leaf()
            elif state == 0:
                root[phone, state] = node(LEFT, (0, silence), leaf(), leaf())
            elif states == 2:
                root[phone, state] = node(LEFT, (phone, silence), leaf(), leaf())
            elif state == 1:
                inner = node(RIGHT, (2,), leaf(), leaf())
                root[phone, state] = node(LEFT, (phone,), inner, leaf())
            else:
                root[phone, state] = node(RIGHT, (0, 3), leaf(), leaf())
    arrays = np.array(side, np.int8), np.array(member), np.array(yes, np.int32), np.array(no, np.int32)
    return Tree(root, *arrays)


def toy_hmm(lexicon: Lexicon = LEXICON, context: bool = False, seed: int = 0) -> Hmm:
    tree = context_tree(len(lexicon.phones)) if context else monophone_tree(np.arange(len(lexicon.phones)))
    return Hmm(lexicon, tree, np.random.default_rng(seed).uniform(0.2, 0.8, tree.num_pdfs))


def first_and_loop_hmm(lexicon: Lexicon = LEXICON, context: bool = True) -> Hmm:
    phones = len(lexicon.phones)
    tree = context_tree(phones, states=2) if context else monophone_tree(np.arange(phones), 2)
    return Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5), FIRST_AND_LOOP, 3)


def random_scores(hmm: Hmm, frames: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (frames, hmm.num_pdfs)).astype(np.float32)


def pronunciations(hmm: Hmm, words: tuple[str, ...]) -> list[tuple[float, tuple[int, ...]]]:
    """All (cost, phones) of a word sequence: its variants, with or without silence at the start and after each word."""
    lexicon = hmm.lexicon
    end = lexicon.end or Silences(0.5)
    ways = []
    for prons in itertools.product(*(lexicon.by_word[word] for word in words)):
        spoken = [(pron.prob, lexicon.silences(pron), pron.phones) for pron in prons]
        for silent in itertools.product([False, True], repeat=len(words) + 1):
            probability, phones, after = 1.0, (), lexicon.silence_prob
            for silence, (prob, silences, said) in zip(silent, [*spoken, (1.0, end, ())], strict=True):
                probability *= after if silence else 1 - after
                probability *= prob * (silences.given_silence if silence else silences.given_word)
                phones += (SILENCE,) * silence + said
                after = silences.after
            ways.append((-np.log(probability), tuple(lexicon.phone_ids[phone] for phone in phones)))
    return ways


def linear_viterbi(hmm: Hmm, phones: tuple[int, ...], scores_TP: np.ndarray, scale: float) -> float:
    """Cost of the best alignment with a fixed phone sequence, in float64."""
    padded = (0, *phones, 0)
    if hmm.topology == FIRST_AND_LOOP:
        return _first_and_loop_viterbi([hmm.pdfs(*padded[i : i + 3]) for i in range(len(phones))], scores_TP)
    pdfs = [pdf for i in range(1, len(padded) - 1) for pdf in hmm.pdfs(*padded[i - 1 : i + 2])]
    if not pdfs or len(pdfs) > len(scores_TP):
        return np.inf
    loop = hmm.self_loop[pdfs]
    stay, move = -scale * np.log(loop), -scale * np.log1p(-loop)
    cost = np.full(len(pdfs), np.inf)
    cost[0] = -scores_TP[0, pdfs[0]]
    for frame in scores_TP[1:]:
        entered = np.concatenate([[np.inf], (cost + move)[:-1]])
        cost = np.minimum(cost + stay, entered) - frame[pdfs]
    return float(cost[-1] + move[-1])


def _first_and_loop_viterbi(pairs: list[tuple[int, ...]], scores_TP: np.ndarray) -> float:
    """A phone's first frame has the first pdf of its pair, its later frames the second; transitions cost nothing."""
    if not pairs or len(pairs) > len(scores_TP):
        return np.inf
    first, loop = np.array(pairs).T
    began, stayed = np.full(len(pairs), np.inf), np.full(len(pairs), np.inf)
    began[0] = -scores_TP[0, first[0]]
    for frame in scores_TP[1:]:
        before = np.minimum(began, stayed)
        began, stayed = np.concatenate([[np.inf], before[:-1]]) - frame[first], before - frame[loop]
    return float(min(began[-1], stayed[-1]))


def exhaustive(
    hmm: Hmm, language: dict[tuple[str, ...], float], scores_TP: np.ndarray, scale: float = SCALE
) -> dict[tuple[str, ...], float]:
    """Cost of the best path of every word sequence of `language` (sequences and their costs)."""
    return {
        words: cost
        + min(way + linear_viterbi(hmm, phones, scores_TP, scale) for way, phones in pronunciations(hmm, words))
        for words, cost in language.items()
    }


def sentences(lm: ArpaLm, longest: int, penalty: float = 0.0) -> dict[tuple[str, ...], float]:
    """All sentences of up to `longest` words, with their costs."""
    costs = {}
    for length in range(longest + 1):
        for words in itertools.product(lm.words, repeat=length):
            history, log10 = ["<s>"], 0.0
            for word in (*words, "</s>"):
                log10 += lm.log10_prob(history, word)
                history.append(word)
            costs[words] = -log10 * np.log(10) + penalty * length
    return costs


def arpa_cost(lm: ArpaLm, words: tuple[str, ...]) -> float:
    """The cost of a sentence as the ARPA format defines it; EOS is added."""
    said = ["<s>", *words, EOS]
    return -math.log(10) * sum(lm.log10_prob(said[:place], said[place]) for place in range(1, len(said)))
