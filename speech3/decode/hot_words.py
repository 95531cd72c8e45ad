"""Words and phrases to expect: a decoding graph in which they are more probable, and lattices in which phrases are.

A boost b makes each occurrence of a word or phrase e^b times as probable as in the language model. For single words
this is exact: the cost is lowered by b on every arc that outputs the word. For a phrase, the search lowers the cost of
each of its words by b / (number of words), which keeps it from being pruned; in the lattice, these bonuses are removed,
and b is applied where the whole phrase occurs.

Phrases are found by an automaton over words (Aho and Corasick 1975), whose state is the longest suffix of the words so
far that is a prefix of a phrase. Composed with it, a lattice becomes another lattice, in which the cost of each path
includes the boosts of its phrases. In a graph of pieces a single word is a phrase, too, and the automaton is over
characters, so a phrase is found however it is divided into pieces. Its boost is given when its last character is read,
and taken back if the next character continues the word.

Axes: S states, A arcs, D states of the automaton.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from speech3.data import symbols_in
from speech3.decode.beam_search import BestPath, Lattice, best_arcs
from speech3.errors import DataError, FormatError, listed
from speech3.language import WORD_START, number_in
from speech3.runtime import composed, jit, read_utf8

if TYPE_CHECKING:
    from speech3.decode.graph import DecodingGraph

BOOST = 3.0  # default; e^3 = 20 times as probable
_MAX_BOOST = 50.0  # a larger boost is a mistake: no acoustic score could outweigh it
_WORD_START = ord(WORD_START)
HotWords = dict[tuple[str, ...], float]


def read_hot(path: Path) -> HotWords:
    """Read lines `WORD [BOOST]` and `WORD WORD ... [BOOST]`: the boost of each word and phrase."""
    return parse_hot(read_utf8(path).splitlines(), path)


def parse_hot(lines: Iterable[str], path: Path | str = "hot") -> HotWords:
    """As `read_hot`, of lines; `path` is their name for messages.

    Raises `Speech3Error`: there is no line, a word is a symbol such as `<eps>`, a boost is out of range, or a word or
    phrase is listed twice with different boosts.
    """
    found: dict[tuple[str, ...], tuple[float, int]] = {}
    for number, line in enumerate((composed(line, path) for line in lines), 1):
        words = tuple(line.split())
        if not words:
            continue
        if symbols := symbols_in(words):
            raise FormatError(f"{path}:{number}: {symbols[0]} is not a word that can be spoken; remove it")
        boost = BOOST
        if len(words) > 1 and (given := number_in(words[-1])) is not None:
            words, boost = words[:-1], given
            if not abs(boost) <= _MAX_BOOST:
                raise FormatError(
                    f"{path}:{number}: boosts must be between {-_MAX_BOOST:g} and {_MAX_BOOST:g}"
                    f" (3: 20 times as probable), not {line.split()[-1]}"
                )
        before = found.setdefault(words, (boost, number))
        if before[0] != boost:
            raise FormatError(
                f"{path}:{number}: {' '.join(words)} has the boost {boost:g} here and {before[0]:g} in line"
                f" {before[1]}; keep one of them"
            )
    if not found:
        raise DataError(f"{path}: contains no word to boost; write one word or phrase per line")
    return {words: boost for words, (boost, _) in found.items()}


@dataclass(frozen=True, eq=False)
class Phrases:
    """An automaton that detects phrases as they end."""

    # for each state: the symbols that continue a phrase, and the state that each leads to. A symbol is a word (an
    # output label) or, in a graph of pieces, a character (its code point).
    moves: tuple[Mapping[int, int], ...]
    fail_D: np.ndarray  # int32: the state of the longest proper suffix (the failure link)
    boost_D: np.ndarray  # float64: the sum of the boosts of all phrases that end here
    # the boost that the search has already given each output label so that phrases were not pruned; taken back here
    shares: Mapping[int, float]
    spelled: tuple[str, ...] | None = None  # the piece of each output label, if the graph writes pieces
    _next_D: dict[int, np.ndarray] = field(default_factory=dict)  # for each symbol read so far that is in a phrase

    @property
    def start(self) -> int:
        """The state before the first label, in which the first piece begins a word even if it lacks the mark."""
        return self.moves[0].get(_WORD_START, 0) if self.spelled else 0

    def step(self, state: int, symbol: int) -> int:
        while symbol not in self.moves[state]:
            if not state:
                return 0
            state = int(self.fail_D[state])
        return self.moves[state][symbol]

    def read(self, label: int) -> tuple[np.ndarray, np.ndarray]:
        """The state after an output label that is read in each state, int32 (D,), and the boosts that it gives (D,)."""
        if self.spelled is None:
            next_D = self._after(label)
            return next_D, self.boost_D[next_D]
        state_D, gained_D = np.arange(len(self.moves), dtype=np.int32), np.zeros(len(self.moves))
        for character in map(ord, self.spelled[label]):
            if character != _WORD_START:  # the word continues, so no phrase has ended
                gained_D -= self.boost_D[state_D]
            state_D = self._after(character)[state_D]
            gained_D += self.boost_D[state_D]
        return state_D, gained_D

    @cached_property
    def _symbols(self) -> frozenset[int]:
        return frozenset(symbol for moves in self.moves for symbol in moves)

    def _after(self, symbol: int) -> np.ndarray:
        if symbol not in self._symbols:
            return np.zeros(len(self.moves), np.int32)
        if symbol not in self._next_D:
            states = range(len(self.moves))
            self._next_D[symbol] = np.array([self.step(state, symbol) for state in states], np.int32)
        return self._next_D[symbol]


def automaton(
    phrases: Mapping[tuple[int, ...], float], shares: Mapping[int, float], spelled: tuple[str, ...] | None = None
) -> Phrases:
    """Build the automaton of phrases: sequences of symbols, each with its boost (see `Phrases`)."""
    moves: list[dict[int, int]] = [{}]
    boosts = [0.0]
    for phrase, boost in phrases.items():
        state = 0
        for symbol in phrase:
            if symbol not in moves[state]:
                moves[state][symbol] = len(moves)
                moves.append({})
                boosts.append(0.0)
            state = moves[state][symbol]
        boosts[state] += boost
    found = Phrases(tuple(moves), np.zeros(len(moves), np.int32), np.array(boosts), shares, spelled)
    for state in (queue := list(moves[0].values())):  # breadth first, so shorter prefixes already have their links
        for symbol, target in moves[state].items():
            found.fail_D[target] = found.step(int(found.fail_D[state]), symbol)
            found.boost_D[target] += found.boost_D[found.fail_D[target]]
            queue.append(target)
    return found


def with_hot_words(graph: "DecodingGraph", hot: Mapping[tuple[str, ...], float], source: Path | str) -> "DecodingGraph":
    """The graph with the costs of hot words lowered, and with the phrases to boost in its lattices.

    Raises `Speech3Error`: the graph lacks a word, or its pieces cannot spell it; the message names `source`.
    """
    cost_of, phrases = (_pieces_boosted if graph.mark == WORD_START else _words_boosted)(graph, hot, source)
    return replace(graph.with_costs(cost_of), phrases=phrases)


def _words_boosted(
    graph: "DecodingGraph", hot: Mapping[tuple[str, ...], float], source: Path | str
) -> tuple[np.ndarray, Phrases | None]:
    """The cost to add for each output label, float32, and the automaton of the phrases, if there are any."""
    unknown = dict.fromkeys(word for words in hot for word in words if word not in graph.label_of)
    if unknown:
        raise DataError(
            f"{source}: not in the graph {graph.path}: {listed(unknown)}; `speech3 graph MODEL OUT --add FILE` makes a"
            " graph that has them"
        )
    labelled = {tuple(graph.label_of[word] for word in words): boost for words, boost in hot.items()}
    phrases = {labels: boost for labels, boost in labelled.items() if len(labels) > 1}
    shares: dict[int, float] = {}
    for labels, boost in phrases.items():
        for label in labels:
            shares[label] = max(boost / len(labels), shares.get(label, 0.0))
    cost_of = _costs(graph, shares)
    for (first, *rest), boost in labelled.items():
        if not rest:
            cost_of[first] -= boost
    return cost_of, automaton(phrases, shares) if phrases else None


def _pieces_boosted(
    graph: "DecodingGraph", hot: Mapping[tuple[str, ...], float], source: Path | str
) -> tuple[np.ndarray, Phrases]:
    """As `_words_boosted`; every hot word is a phrase of characters; a piece's share is that of its characters.

    SentencePiece's model is not used, because the graph can output a word in any division into pieces.
    """
    pieces = set(graph.words[1:])
    unknown = dict.fromkeys(word for words in hot for word in words if not _can_spell(WORD_START + word, pieces))
    if unknown:
        raise DataError(
            f"{source}: the pieces of {graph.path} cannot spell {listed(unknown)}; write them as in the training text"
            " (small and capital letters differ)"
        )
    spelled = {"".join(WORD_START + word for word in words): boost for words, boost in hot.items()}
    shares = {
        label: share
        for label, piece in enumerate(graph.words)
        if (share := max((b * len(piece) / len(text) for text, b in spelled.items() if piece in text), default=0.0)) > 0
    }
    phrases = {tuple(map(ord, text)): boost for text, boost in spelled.items()}
    return _costs(graph, shares), automaton(phrases, shares, graph.words)


def _costs(graph: "DecodingGraph", shares: Mapping[int, float]) -> np.ndarray:
    cost_of = np.zeros(len(graph.words), np.float32)
    for label, share in shares.items():
        cost_of[label] -= share
    return cost_of


def _can_spell(text: str, pieces: Collection[str]) -> bool:
    """Whether a text is a sequence of pieces."""
    longest = max(map(len, pieces))
    reached = [True]  # how much of the text has been spelled
    for end in range(1, len(text) + 1):
        reached.append(any(reached[begin] and text[begin:end] in pieces for begin in range(max(0, end - longest), end)))
    return reached[-1]


def with_phrases(lattice: Lattice, phrases: Phrases) -> Lattice:
    """The lattice with graph costs that include the boosts of the phrases and no longer the shares of their words.

    A lattice state that is reached in several states of the automaton is split into one state for each.
    """
    labels_W, which_A = np.unique(lattice.olabel_A, return_inverse=True)
    states = len(phrases.moves)
    next_DW = np.tile(np.arange(states, dtype=np.int32)[:, None], len(labels_W))
    extra_DW = np.zeros((states, len(labels_W)))
    for column, label in enumerate(labels_W.tolist()):
        if label:
            next_DW[:, column], gained_D = phrases.read(label)
            extra_DW[:, column] = phrases.shares.get(label, 0.0) - gained_D
    arcs, tables = (lattice.source_A, lattice.target_A, which_A.astype(np.int32)), (next_DW, extra_DW)
    found = _composed(*arcs, *tables, len(lattice.final_S), phrases.start)
    source_A, arc_A, target_A, extra_A, of_S = found
    labels = lattice.ilabel_A[arc_A], lattice.olabel_A[arc_A]
    costs = (lattice.graph_A[arc_A] + extra_A).astype(np.float32), lattice.acoustic_A[arc_A]
    final_S, frame_S = lattice.final_S[of_S], lattice.frame_S[of_S]
    return Lattice(source_A, target_A, *labels, *costs, final_S, frame_S, lattice.reached_final)


def best_path(lattice: Lattice, acoustic_scale: float) -> BestPath:
    """The best path of a lattice, in the form that the search returns."""
    arcs = best_arcs(lattice, acoustic_scale)
    ilabels, olabels = lattice.ilabel_A[arcs], lattice.olabel_A[arcs]
    acoustic = acoustic_scale * float(lattice.acoustic_A[arcs].sum(dtype=np.float64))
    graph_cost, final_cost = lattice.graph_A[arcs].sum(dtype=np.float64), lattice.final_S[lattice.target_A[arcs[-1]]]
    cost, words = acoustic + float(graph_cost) + float(final_cost), tuple(olabels[olabels > 0].tolist())
    return BestPath(cost, acoustic, ilabels[ilabels > 0] - 1, words, lattice.reached_final)


@jit
def _composed(source, target, column, next_of, extra_of, states, start):  # type: ignore[no-untyped-def]
    """Arcs of the composition: source, arc of the lattice, target, extra cost; and the lattice state of each new state.

    The pairs of a lattice state and the automaton states that reach it are numbered when that lattice state is visited:
    all arcs that lead to it are known by then.
    """
    begin = np.searchsorted(source, np.arange(states + 1))
    head = np.full(states, -1, np.int64)  # newest pair of each lattice state, the head of a linked list
    pair_d, pair_chain = [np.int64(start)], [np.int64(-1)]
    # Lists for the results; a first element, removed at once, tells numba their types.
    head[0] = 0
    arc_from, arc_of, arc_pair, arc_extra = [np.int64(0)], [np.int64(0)], [np.int64(0)], [0.0]
    arc_from.clear()
    arc_of.clear()
    arc_pair.clear()
    arc_extra.clear()
    of = [np.int64(0)]
    of.clear()
    number = [np.int64(-1)]
    # Lattice states are in topological order.
    for s in range(states):
        pair = head[s]
        while pair >= 0:
            number[pair] = np.int64(len(of))
            of.append(np.int64(s))
            d = pair_d[pair]
            for a in range(begin[s], begin[s + 1]):
                # Look for the pair among those of the target; append it if it is not there yet.
                e, t = next_of[d, column[a]], target[a]
                found = head[t]
                while found >= 0 and pair_d[found] != e:
                    found = pair_chain[found]
                if found < 0:
                    found = len(pair_d)
                    pair_d.append(np.int64(e))
                    pair_chain.append(head[t])
                    number.append(np.int64(-1))
                    head[t] = found
                arc_from.append(number[pair])
                arc_of.append(np.int64(a))
                arc_pair.append(np.int64(found))
                arc_extra.append(extra_of[d, column[a]])
            pair = pair_chain[pair]
    # Arcs were written before their targets had numbers.
    targets = np.empty(len(arc_pair), np.int32)
    for i in range(len(arc_pair)):
        targets[i] = number[arc_pair[i]]
    sources = np.array(arc_from).astype(np.int32)
    return sources, np.array(arc_of), targets, np.array(arc_extra), np.array(of)
