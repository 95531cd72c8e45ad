"""Finite acceptors of words: grammars in the JSpeech Grammar Format, and lists of sentences.

JSGF (W3C note of 2000; pocketsphinx and Sphinx-4 read it):

    #JSGF V1.0;
    grammar lamp;
    public <command> = [please] turn <what> (on | off);
    <what> = /3/ the lamp | /1/ (radio | fan)+;

Rules, alternatives with weights, groups, `[optional]`, `*`, `+`, words in quotes, `<NULL>`, `<VOID>` and comments are
supported; tags in braces are ignored; imports are errors. The sentences of the grammar are those of its public rules,
which are equally probable if there are several. Alternatives without weights are equally probable, and weights are
normalised to sum to one. Optional parts have probability 1/2, and so has each further repetition of `*` and `+`.
A rule may refer to itself, directly or through other rules, only at its end; recursion elsewhere is an error, because
no finite graph can represent it.

Costs are negative natural logarithms of probabilities. A sentence with several paths in a grammar has the probability
of the most probable one.
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from speech3.data import sentences_of_file, symbols_in
from speech3.errors import DataError, FormatError, MissingError, Speech3Error
from speech3.language.lexicon import NOT_WORDS
from speech3.runtime import composed, read_utf8

_MAX_STATES = 1_000_000  # states
_FEW, _TIMES = 10_000, 4  # limit on determinised states: _FEW plus _TIMES the number of states before
_DIGITS = 6  # decimals of costs that are compared
Subset = tuple[tuple[int, float], ...]
_HEADER = re.compile(r"\s*#JSGF\s+V\d+\.\d+[^;\n]*;")
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<rule><[^<>\s]+>)
    |(?P<weight>/\s*[^/\s]+\s*/)
    |(?P<tag>\{(?:\\.|[^\\{}]|\{[^{}]*\})*\})
    |"(?P<quoted>(?:\\.|[^\\"])*)"
    |(?P<sign>[=|;()\[\]*+])
    |(?P<word>(?:\\.|[^\\\s;=|*+<>()\[\]{}/"])+)""",
    re.VERBOSE | re.DOTALL,
)
_OPTIONAL = 0.5


@dataclass(frozen=True, eq=False)
class WordGraph:
    """A deterministic acceptor; state 0 is the start."""

    arcs: tuple[tuple[int, str, float, int], ...]  # (state, word, cost, next state) of each arc
    finals: Mapping[int, float]  # final cost of each state where a sentence may end
    source: str  # file or name, for messages

    @property
    def words(self) -> list[str]:
        """The distinct words, in the order of their first arcs."""
        return list(dict.fromkeys(word for _, word, _, _ in self.arcs))


def read_sentences(
    path: Path, spelled: Callable[[Iterable[Sequence[str]], Path], Iterable[Sequence[str]]] | None = None
) -> WordGraph:
    """Read a list of one sentence per line; probabilities are relative frequencies.

    `spelled` changes the words of the sentences.

    Raises Speech3Error, with the file: it has no sentence, or contains a symbol that cannot be spoken (`<s>`, with the
    line).
    """
    sentences: Iterable[Sequence[str]] = sentences_of_file(path, NOT_WORDS)
    found = list(map(tuple, spelled(sentences, path) if spelled else sentences))
    if not found:
        raise DataError(f"{path}: contains no sentence; write one per line")
    return _prefix_tree(found, str(path))


def check_words(words: Iterable[str], path: Path) -> None:
    """Raise an error if a word is a special symbol, such as `<s>`."""
    for word in words:
        if word in NOT_WORDS or symbols_in([word]):
            raise DataError(f"{path}: {word} is not a word that can be spoken; remove it")


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
        if len(self._arcs) >= _MAX_STATES:
            raise FormatError(
                f"{self.source}: the grammar has more than {_MAX_STATES:,} states when its rules are expanded; make it"
                " smaller, or use a language model (--text with sentences that it should accept)"
            )
        self._arcs.append([])
        return len(self._arcs) - 1

    def arc(self, source: int, target: int, word: str | None = None, cost: float = 0.0) -> None:
        """Add an arc; without a word it is an epsilon arc."""
        self._arcs[source].append((word, cost, target))

    def determinised(self, start: int, end: int) -> WordGraph:
        """Determinise: the same sentences with their lowest costs, and one arc per word from each state (Mohri 1997).

        Raises Speech3Error: there is no sentence with a word in it, or loops accept the same words at different costs,
        so that no finite deterministic acceptor exists.
        """
        alive = self._reaching(end)
        if start not in alive:
            raise DataError(f"{self.source}: the grammar accepts no sentence")
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
            raise DataError(f"{self.source}: the grammar accepts no sentence with a word in it")
        return WordGraph(tuple(arcs), finals, self.source)

    def _check_size(self, states: int) -> None:
        if states >= _FEW + _TIMES * len(self._arcs):
            raise FormatError(
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


@dataclass(frozen=True)
class WordSequence:
    """A sequence of words; if empty, nothing is spoken."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Reference:
    """A reference to another rule."""

    name: str
    line: int


@dataclass(frozen=True)
class Concatenation:
    """A sequence of expressions."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Choice:
    """Alternatives with their probabilities, which sum to one."""

    options: "tuple[tuple[float, Node], ...]"


@dataclass(frozen=True)
class Repeat:
    """An expression once or more often; in a `Choice` with `WordSequence(())`, any number of times."""

    part: "Node"


Node = WordSequence | Reference | Concatenation | Choice | Repeat


@dataclass(frozen=True)
class Rule:
    """A rule and the number of its first line."""

    name: str
    body: Node
    public: bool
    line: int


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def read_jsgf(path: Path) -> WordGraph:
    """Read a grammar as an acceptor of its sentences.

    Raises Speech3Error, with file and line: the syntax is wrong, a rule is missing or defined twice, or a rule refers
    to itself before its end. With the file: there is no public rule, the public rules accept no sentence, or brackets
    are nested hundreds deep.
    """
    try:
        rules = _Parser(composed(read_utf8(path), path), path).rules()
        return _Builder(rules, path).graph()
    except RecursionError as error:
        raise DataError(
            f"{path}: brackets or rules are nested too deeply; write inner expressions as rules of their own, and"
            " repetitions with `*`"
        ) from error


class _Parser:
    """Recursive descent parser with a method for each kind of expression."""

    def __init__(self, text: str, path: Path) -> None:
        self._path = path
        header = _HEADER.match(text)
        if not header:
            raise FormatError(f"{path}:1: a JSGF grammar begins with `#JSGF V1.0;`; is it a list of sentences?")
        self._tokens = list(self._cut(text, header.end()))
        self._at = 0

    def _cut(self, text: str, at: int) -> Iterator[_Token]:
        line = 1 + text.count("\n", 0, at)
        while at < len(text):
            match = _TOKEN.match(text, at)
            if not match:
                raise FormatError(
                    f"{self._path}:{line}: `{text[at : at + 20].splitlines()[0]}` is not valid in a grammar; correct it"
                )
            if match.lastgroup not in ("space", "tag"):
                assert match.lastgroup
                yield _Token(match.lastgroup, match[match.lastgroup], line)
            line += match[0].count("\n")
            at = match.end()
        yield _Token("end", "the end of the file", line)

    @property
    def _now(self) -> _Token:
        return self._tokens[self._at]

    def _error(self, what: str, line: int | None = None) -> Speech3Error:
        return FormatError(f"{self._path}:{line or self._now.line}: {what}")

    def _take(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _sees(self, *signs: str) -> bool:
        return self._now.kind == "sign" and self._now.text in signs

    def _expect(self, sign: str, after: str) -> None:
        if not self._sees(sign):
            raise self._error(f"expected `{sign}` {after}, found `{self._now.text}`")
        self._at += 1

    def rules(self) -> dict[str, Rule]:
        self._declaration()
        rules: dict[str, Rule] = {}
        while self._now.kind != "end":
            rule = self._rule()
            if before := rules.get(rule.name):
                raise self._error(f"{rule.name} is defined a second time (first in line {before.line})", rule.line)
            rules[rule.name] = rule
        return rules

    def _declaration(self) -> None:
        if (self._now.kind, self._now.text) != ("word", "grammar"):
            raise self._error(f"expected `grammar NAME;` after the header, found `{self._now.text}`")
        self._at += 1
        if self._take().kind != "word":
            raise self._error("the grammar has no name; write `grammar NAME;`", self._tokens[self._at - 1].line)
        self._expect(";", "after the grammar's name")

    def _rule(self) -> Rule:
        line = self._now.line
        if (self._now.kind, self._now.text) == ("word", "import"):
            raise self._error("imports are not supported; copy the rules into this file")
        public = (self._now.kind, self._now.text) == ("word", "public")
        self._at += public
        if self._now.kind != "rule":
            raise self._error(f"expected a rule (`<name> = ...;`), found `{self._now.text}`")
        name = self._take().text
        self._expect("=", f"after {name}")
        body = self._choice(f"in {name}")
        self._expect(";", f"at the end of {name}")
        return Rule(name, body, public, line)

    def _choice(self, where: str) -> Node:
        line, options, weights = self._now.line, [], []
        while True:
            weights.append(self._weight())
            options.append(self._row(where))
            if not self._sees("|"):
                break
            self._at += 1
        given = [weight for weight in weights if weight is not None]
        if given and len(given) < len(weights):
            raise self._error(f"{where}: some alternatives have weights and some do not; weight all or none", line)
        shares = given or [1.0] * len(options)
        if not sum(shares):
            raise self._error(f"{where}: all weights of the alternatives are 0; raise one of them", line)
        if len(options) == 1:
            return options[0]
        return Choice(tuple((share / sum(shares), node) for share, node in zip(shares, options, strict=True) if share))

    def _weight(self) -> float | None:
        if self._now.kind != "weight":
            return None
        text = self._now.text.strip("/").strip()
        if not re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?f?", text) or math.isinf(float(text.rstrip("f"))):
            raise self._error(f"/{text}/ is not a weight; write a number, as in /0.5/")
        self._at += 1
        return float(text.rstrip("f"))

    def _row(self, where: str) -> Node:
        parts: list[Node] = []
        while self._now.kind in ("word", "quoted", "rule") or self._sees("(", "["):
            part = self._atom(where)
            while self._sees("*", "+"):
                part = Repeat(part) if self._take().text == "+" else _optional(Repeat(part))
            parts.append(part)
        if not parts:
            raise self._error(f"{where}: no words before `{self._now.text}`; write <NULL> if that is intended")
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _atom(self, where: str) -> Node:
        token = self._take()
        if token.kind == "rule":
            return Reference(token.text, token.line)
        if token.kind == "sign":
            inside = self._choice(where)
            self._expect({"(": ")", "[": "]"}[token.text], f"to close the `{token.text}` of line {token.line}")
            return _optional(inside) if token.text == "[" else inside
        words = tuple(re.sub(r"\\(.)", r"\1", token.text).split())
        check_words(words, self._path)
        return WordSequence(words)


def _optional(part: Node) -> Node:
    return Choice(((_OPTIONAL, part), (1 - _OPTIONAL, WordSequence(()))))


class _Builder:
    """Expands rules to an acceptor: references become copies of rules, or arcs back if they end their own rule."""

    def __init__(self, rules: Mapping[str, Rule], path: Path) -> None:
        self._rules, self._path = rules, path
        self._parts = Parts(str(path))

    def graph(self) -> WordGraph:
        public = [rule for rule in self._rules.values() if rule.public]
        if not public:
            raise MissingError(f"{self._path}: no rule is public; write `public` before the rule that users speak")
        for rule in self._rules.values():
            self._check(rule.body)
        start, end = self._parts.state(), self._parts.state()
        every = Choice(tuple((1 / len(public), Reference(rule.name, rule.line)) for rule in public))
        self._build(every, start, end, {})
        return self._parts.determinised(start, end)

    def _check(self, node: Node) -> None:
        """Raise an error if there is a reference, even in a rule that is not used, to a rule that does not exist."""
        match node:
            case Reference(name, line) if name not in (*self._rules, "<NULL>", "<VOID>"):
                known = ", ".join(self._rules)
                raise MissingError(f"{self._path}:{line}: there is no rule {name}; there are {known}")
            case Concatenation(parts):
                for part in parts:
                    self._check(part)
            case Choice(options):
                for _, option in options:
                    self._check(option)
            case Repeat(part):
                self._check(part)

    def _build(self, node: Node, start: int, end: int, begun: Mapping[str, tuple[int, int]]) -> None:
        """Add paths from `start` to `end` that accept `node`; `begun` has the ends of the rules around it."""
        match node:
            case WordSequence(words):
                self._say(words, start, end)
            case Reference(name, line):
                self._refer(name, line, start, end, begun)
            case Concatenation(parts):
                for part in parts[:-1]:
                    middle = self._parts.state()
                    self._build(part, start, middle, begun)
                    start = middle
                self._build(parts[-1], start, end, begun)
            case Choice(options):
                for share, option in options:
                    branch = self._parts.state()
                    self._parts.arc(start, branch, cost=-math.log(share))
                    self._build(option, branch, end, begun)
            case Repeat(part):
                first, last = self._parts.state(), self._parts.state()
                self._parts.arc(start, first)
                self._build(part, first, last, begun)
                self._parts.arc(last, first, cost=-math.log(_OPTIONAL))
                self._parts.arc(last, end, cost=-math.log(1 - _OPTIONAL))

    def _say(self, words: tuple[str, ...], start: int, end: int) -> None:
        for word in words[:-1]:
            middle = self._parts.state()
            self._parts.arc(start, middle, word)
            start = middle
        self._parts.arc(start, end, words[-1] if words else None)

    def _refer(self, name: str, line: int, start: int, end: int, begun: Mapping[str, tuple[int, int]]) -> None:
        if name == "<NULL>":
            self._parts.arc(start, end)
        elif name in begun:
            first, last = begun[name]
            if last != end:
                raise FormatError(
                    f"{self._path}:{line}: {name} refers to itself before its end, here or in rules that it uses;"
                    f" only right recursion is supported: put {name} last, or use * or +"
                )
            self._parts.arc(start, first)
        elif name != "<VOID>":
            first = self._parts.state()
            self._parts.arc(start, first)
            self._build(self._rules[name].body, first, end, {**begun, name: (first, end)})
