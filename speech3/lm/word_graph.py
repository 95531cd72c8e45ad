"""Finite acceptors of words, made from a list of sentences or from the parts of a grammar.

Costs are negative natural logarithms of probabilities. A sentence with several paths in a grammar has the probability
of the most probable one.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from speech3.corpus.sentences import sentences
from speech3.corpus.symbols import symbols_in
from speech3.errors import Speech3Error
from speech3.lexicon.langdir import NOT_WORDS

_MOST = 1_000_000  # states
_FEW, _TIMES = 10_000, 4  # limit on determinised states: _FEW plus _TIMES the number of states before
_DIGITS = 6  # decimals of costs that are compared
Subset = tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class WordGraph:
    """A deterministic acceptor; state 0 is the start.

    Attributes
    ----------
    arcs
        (state, word, cost, next state) of each arc.
    finals
        Final cost of each state where a sentence may end.
    source
        File or name, for messages.
    """

    arcs: tuple[tuple[int, str, float, int], ...]
    finals: Mapping[int, float]
    source: str

    @property
    def words(self) -> list[str]:
        """The distinct words, in the order of their first arcs."""
        return list(dict.fromkeys(word for _, word, _, _ in self.arcs))


def read_sentences(path: Path) -> WordGraph:
    """Read a list of one sentence per line; probabilities are relative frequencies.

    Raises
    ------
    Speech3Error
        With the file: it has no sentence, or contains a symbol that cannot be spoken (`<s>`, with the line).
    """
    found = list(map(tuple, sentences(path, NOT_WORDS)))
    if not found:
        raise Speech3Error(f"{path}: contains no sentence; write one per line")
    return _prefix_tree(found, str(path))


def check_words(words: Iterable[str], path: Path) -> None:
    """Raise an error if a word is a special symbol, such as `<s>`."""
    for word in words:
        if word in NOT_WORDS or symbols_in([word]):
            raise Speech3Error(f"{path}: {word} is not a word that can be spoken; remove it")


def _prefix_tree(sentences: Iterable[tuple[str, ...]], source: str) -> WordGraph:
    counts = Counter(sentences)
    passing: Counter[int] = Counter()  # number of sentences that pass through each state
    next_state: dict[tuple[int, str], int] = {}
    ends: Counter[int] = Counter()
    for sentence, count in counts.items():
        state = 0
        passing[0] += count
        for word in sentence:
            state = next_state.setdefault((state, word), len(next_state) + 1)
            passing[state] += count
        ends[state] += count
    arcs = tuple(
        (state, word, math.log(passing[state] / passing[target]), target)
        for (state, word), target in next_state.items()
    )
    return WordGraph(arcs, {state: math.log(passing[state] / count) for state, count in ends.items()}, source)


class Parts:
    """Builds an acceptor with epsilon arcs from parts; `determinised` turns it into a `WordGraph`."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._arcs: list[list[tuple[str | None, float, int]]] = []

    def state(self) -> int:
        """Add a state and return its number; raises Speech3Error if there are too many states."""
        if len(self._arcs) >= _MOST:
            raise Speech3Error(
                f"{self.source}: the grammar has more than {_MOST:,} states when its rules are expanded; make it"
                " smaller, or use a language model (--text with sentences that it should accept)"
            )
        self._arcs.append([])
        return len(self._arcs) - 1

    def arc(self, source: int, target: int, word: str | None = None, cost: float = 0.0) -> None:
        """Add an arc; without a word it is an epsilon arc."""
        self._arcs[source].append((word, cost, target))

    def determinised(self, start: int, end: int) -> WordGraph:
        """Determinise: the same sentences with their lowest costs, and one arc per word from each state (Mohri 1997).

        Raises
        ------
        Speech3Error
            There is no sentence with a word in it, or loops accept the same words at different costs, so that no finite
            deterministic acceptor exists.
        """
        alive = self._reaching(end)
        if start not in alive:
            raise Speech3Error(f"{self.source}: the grammar accepts no sentence")
        first, offset = self._subset({start: 0.0}, alive, end)
        queue = [tuple((state, cost + offset) for state, cost in first)]  # only the start subset keeps its lowest cost
        numbers: dict[Subset, int] = {}
        arcs: list[tuple[int, str, float, int]] = []
        finals: dict[int, float] = {}
        for at, subset in enumerate(queue):
            onward: dict[str, dict[int, float]] = {}
            for state, cost in subset:
                if state == end:
                    finals[at] = cost
                for word, more, next_state in self._arcs[state]:
                    if word is not None and next_state in alive:
                        reached = onward.setdefault(word, {})
                        reached[next_state] = min(cost + more, reached.get(next_state, math.inf))
            for word, reached in onward.items():
                target, cost = self._subset(reached, alive, end)
                key = tuple((state, round(more, _DIGITS)) for state, more in target)
                if key not in numbers:
                    self._check_size(len(queue))
                    numbers[key] = len(queue)
                    queue.append(target)
                arcs.append((at, word, cost, numbers[key]))
        if not arcs:
            raise Speech3Error(f"{self.source}: the grammar accepts no sentence with a word in it")
        return WordGraph(tuple(arcs), finals, self.source)

    def _check_size(self, states: int) -> None:
        if states >= _FEW + _TIMES * len(self._arcs):
            raise Speech3Error(
                f"{self.source}: the grammar accepts the same words in too many ways, in loops with different weights;"
                " remove alternatives that accept the same words, or their weights"
            )

    def _reaching(self, end: int) -> set[int]:
        before: list[list[int]] = [[] for _ in self._arcs]
        for source, arcs in enumerate(self._arcs):
            for _, _, target in arcs:
                before[target].append(source)
        alive, waiting = {end}, [end]
        while waiting:
            for source in before[waiting.pop()]:
                if source not in alive:
                    alive.add(source)
                    waiting.append(source)
        return alive

    def _subset(self, reached: Mapping[int, float], alive: set[int], end: int) -> tuple[Subset, float]:
        """The epsilon closure, without states that have only epsilon arcs, its lowest cost subtracted; that cost."""
        best: dict[int, float] = {}
        waiting = [(cost, state) for state, cost in reached.items()]
        heapq.heapify(waiting)
        while waiting:
            cost, state = heapq.heappop(waiting)
            if state in best:
                continue
            best[state] = cost
            for word, more, target in self._arcs[state]:
                if word is None and target in alive and target not in best:
                    heapq.heappush(waiting, (cost + more, target))
        matter = {
            state: cost
            for state, cost in best.items()
            if state == end or any(word is not None for word, _, _ in self._arcs[state])
        }
        least = min(matter.values())
        return tuple((state, matter[state] - least) for state in sorted(matter)), least
