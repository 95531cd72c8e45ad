"""Conversion from one phone set to another, learned from words that have pronunciations in both.

A source phone becomes none, one or two target phones, which are found by expectation maximisation over all monotone
alignments (as in Jiampojamarn et al. 2007, "Applying many-to-many alignments and hidden Markov models to
letter-to-phoneme conversion", without its HMM). The conversion of a phone depends on its neighbours if they were seen
together often enough.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from speech3.lexicon.pronounce import PRIMARY, SECONDARY, Phones

LONGEST = 2  # maximum number of phones that one phone may become
EDGE = "#"
_ROUNDS = 6
_SEEN = 3  # times a context must have been seen to be used
_TAUGHT = 30  # pairs per phone to learn from; all of a lexicon take three times as long, for 0.1 % of the phones
Pair = tuple[Phones, Phones]
_Chunks = dict[str, dict[Phones, float]]


@dataclass(frozen=True)
class Conversion:
    """What a phone becomes in the context of both neighbours, one or none; the first of these that is known counts."""

    tables: tuple[dict[tuple[str, ...], Phones], ...]

    def __call__(self, phones: Phones) -> Phones:
        """Convert a pronunciation; the result is empty if one of its phones was never seen."""
        result: list[str] = []
        for keys in _contexts(phones):
            (phone,) = keys[-1]
            bare = phone.rstrip(PRIMARY + SECONDARY)
            other_stress = [((bare + mark,), self.tables[-1]) for mark in ("", PRIMARY, SECONDARY)]
            tried = [*zip(keys, self.tables, strict=True), *other_stress]
            chunk = next((table[key] for key, table in tried if key in table), None)
            if chunk is None:
                return ()
            result += chunk
        return tuple(result)


def _contexts(phones: Phones) -> Iterator[tuple[tuple[str, ...], ...]]:
    for before, phone, after in zip((EDGE, *phones), phones, (*phones[1:], EDGE), strict=False):
        yield (before, phone, after), (phone, after), (before, phone), (phone,)


def learn(pairs: Sequence[Pair]) -> Conversion:
    """Learn a conversion from pairs of pronunciations of the same words."""
    taught = _some(pairs)
    probs = _uniform(taught)
    for _ in range(_ROUNDS):
        counts: defaultdict[str, defaultdict[Phones, float]] = defaultdict(lambda: defaultdict(float))
        for source, target in taught:
            for phone, chunk, share in _posteriors(source, target, probs):
                counts[phone][chunk] += share
        probs = {
            phone: {chunk: count / sum(seen.values()) for chunk, count in seen.items()}
            for phone, seen in counts.items()
        }
    tables: list[defaultdict[tuple[str, ...], Counter[Phones]]] = [defaultdict(Counter) for _ in range(4)]
    for source, target in pairs:
        chunks = _best(source, target, probs)
        for keys, chunk in zip(_contexts(source), chunks, strict=False):
            for table, key in zip(tables, keys, strict=True):
                table[key][chunk] += 1
    least = [_SEEN, _SEEN, _SEEN, 1]
    return Conversion(tuple(
        {key: min(seen, key=lambda chunk: (-seen[chunk], chunk)) for key, seen in table.items()
         if sum(seen.values()) >= enough}
        for table, enough in zip(tables, least, strict=True)
    ))  # fmt: skip


def _some(pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs drawn until each phone of either side is in enough of them, or in all that there are."""
    drawn, seen = list(pairs), Counter[tuple[int, str]]()
    random.Random(0).shuffle(drawn)
    chosen = []
    for pair in drawn:
        phones = {(side, phone) for side, spoken in enumerate(pair) for phone in spoken}
        if any(seen[phone] < _TAUGHT for phone in phones):
            seen.update(phones)
            chosen.append(pair)
    return chosen


def phone_errors(truth: Sequence[Sequence[Phones]], guesses: Sequence[Phones]) -> float:
    """Phone error rate: edits per reference phone. If a word has several pronunciations, the nearest counts."""
    errors = total = 0
    for variants, guess in zip(truth, guesses, strict=True):
        distance, length = min((_distance(variant, guess), len(variant)) for variant in variants)
        errors, total = errors + distance, total + length
    return errors / max(total, 1)


def _distance(a: Phones, b: Phones) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def _uniform(pairs: Sequence[Pair]) -> _Chunks:
    seen: defaultdict[str, set[Phones]] = defaultdict(set)
    for source, target in pairs:
        for phone in source:
            seen[phone] |= {target[j : j + n] for n in range(LONGEST + 1) for j in range(len(target) - n + 1)}
    return {phone: dict.fromkeys(chunks, 1 / len(chunks)) for phone, chunks in seen.items()}


def _moves(source: Phones, target: Phones, probs: _Chunks) -> Iterator[tuple[int, int, Phones, float]]:
    """Steps from (i, j) to (i + 1, j + n) that complete alignments can contain, in topological order."""
    for i, phone in enumerate(source):
        left = len(source) - i - 1
        table = probs.get(phone, {})
        for j in range(max(0, len(target) - LONGEST * (left + 1)), min(LONGEST * i, len(target)) + 1):
            for n in range(min(LONGEST, len(target) - j) + 1):
                prob = table.get(target[j : j + n], 0.0)
                if prob and len(target) - j - n <= LONGEST * left:
                    yield i, j, target[j : j + n], prob


def _posteriors(source: Phones, target: Phones, probs: _Chunks) -> Iterator[tuple[str, Phones, float]]:
    moves = list(_moves(source, target, probs))
    forward: defaultdict[tuple[int, int], float] = defaultdict(float, {(0, 0): 1.0})
    backward: defaultdict[tuple[int, int], float] = defaultdict(float, {(len(source), len(target)): 1.0})
    for i, j, chunk, prob in moves:
        forward[i + 1, j + len(chunk)] += forward[i, j] * prob
    for i, j, chunk, prob in reversed(moves):
        backward[i, j] += backward[i + 1, j + len(chunk)] * prob
    total = forward[len(source), len(target)]
    if total:
        for i, j, chunk, prob in moves:
            if share := forward[i, j] * prob * backward[i + 1, j + len(chunk)] / total:
                yield source[i], chunk, share


def _best(source: Phones, target: Phones, probs: _Chunks) -> list[Phones]:
    """The most probable alignment: the target phones of each source phone; empty if there is no alignment."""
    best: dict[tuple[int, int], tuple[float, tuple[Phones, ...]]] = {(0, 0): (0.0, ())}
    for i, j, chunk, prob in _moves(source, target, probs):
        if (i, j) in best:
            score, chunks = best[i, j]
            key, new = (i + 1, j + len(chunk)), score + math.log(prob)
            if key not in best or new > best[key][0]:
                best[key] = new, (*chunks, chunk)
    return list(best.get((len(source), len(target)), (0.0, ()))[1])
