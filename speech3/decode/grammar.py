"""The parts of a decoding graph that concern words: L, G, word pieces, the spelling of unseen words, and fillers.

L leads from phones to words, with optional silence and disambiguation symbols (Kaldi's make_lexicon_fst.py). G accepts
word sequences: an n-gram model (Kaldi's arpa2fst) or a grammar.

A piece that begins a word starts with ``▁``, as SentencePiece writes it; in a vocabulary with such pieces, all others
continue a word. In a vocabulary of words and letters, letters are joined where they have ``￭``.

Unseen words are spelled by a letter model, which stands in the graph's directory: ``letters.arpa.gz``, the weight of
new words in ``graph.json`` and, with other pronunciations, ``lexicon.txt``. So `speech3 graph` can make other graphs
that spell unseen words as well, and decoded letters can be aligned.

A filler is a loop of phones that takes the place of words that a graph lacks, of noise and of other speech. The phones
are those of words or, in a model that was trained with negatives (`speech3.data.augment.negatives`), the two of noise
and other speech. A path through the filler is written `<unk>`, or not at all if it begins with noise. It consists of
units as a spelled word does, which are phones instead of letters, such as ``<AH>￭ ￭<T>￭ ￭<S>``; all phones are equally
probable everywhere. So it can stand where the language model backs off, and before, after or in place of the sentences
of a grammar; it can be aligned, and its probability in a lattice lowers the confidence of the words that it competes
with (compare Bazzi and Glass 2000).

A filler that is to be spelled has a trigram of phones instead, estimated on the lexicon's words; its phones cost what
their probabilities say, and a model of letters and phones (`speech3.language.g2p`) guesses the spelling (`Speller`).

Where all phones are equally probable, each costs `PHONE_COST`, less than its probability would, or the filler could not
compete with words of many phones. A cost of the whole filler, chosen on dev (`speech3.decode.tune`), is added to the
arcs that write its first phone when the graph is read; it cannot be much larger, since it is paid at once and must not
exceed the beam.

Axes: S states, A arcs, P phones, V symbols of a graph.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from speech3.data import NOISE
from speech3.errors import DataError, FormatError, MismatchError, MissingError, counted, listed
from speech3.hmm import Hmm, PdfsOnly, Segment, has_phones, phone_groups, with_pronunciations
from speech3.io import ARC, GRAPH_FILE, Fst, FstBuilder
from speech3.language import (
    BOS,
    EOS,
    G2P,
    JOINER,
    LEAST_WORDS,
    NEVER,
    NOT_WORDS,
    UNKNOWN,
    WORD_START,
    ArpaLm,
    Lexicon,
    Pronunciation,
    WordGraph,
    add_letter_model,
    estimate_lm,
    from_ngrams,
    g2p,
    is_word,
    letter_units,
    ngram_log_probs,
    read_arpa,
    read_lexicon,
    states_of,
    write_arpa,
    write_lexicon,
)
from speech3.runtime import read_json

EPSILON, BACKOFF = "<eps>", "#0"
_LN10 = math.log(10)
LETTERS = "letters.arpa.gz"  # in a graph's directory, if it spells unseen words
GRAPH_LEXICON = "lexicon.txt"  # in a graph's directory: pronunciations that the model's lexicon does not have
UNSEEN_WEIGHT = "unseen_weight"  # in graph.json
_FILLER_WEIGHT = 0.01  # of a filler before its cost; so small that the words keep their probabilities
_FILLER_LENGTH = 6.0  # mean number of phones of a filler
_PHONE_ORDER = 3  # of the n-gram of a filler that is spelled; with 5, dev of minilibri was no better
PHONE_COST = 0.45  # nats; chosen on dev of `digits` and 30 s of each kind of sound of tests/benchmarks/false_words.py
_SILENCE_COST = 0.0  # of silence alone, where the language model is an n-gram; a cost of 2 leaves more words in tones
# FILLER_COSTS, FILLER_OFF: costs to choose from, of which more would exceed the beam with the graph's own cost; a cost
# with which no filler survives a beam
FILLER_COSTS = (-4.0, -2.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
FILLER_OFF = 100.0


@dataclass(frozen=True, eq=False)
class Grammar:
    """The word sequences that can be recognised, with their costs."""

    # the symbol table: `<eps>` first, then the words, `#0` (for back-off arcs) last; labels are indices into it
    words: tuple[str, ...]
    fst: Fst  # labels are words; back-off arcs have the input label `#0` and no output label
    source: str  # file or name, for messages
    dropped: tuple[str, ...] = ()  # words of the language model that the lexicon lacks


def one_word_grammar(lexicon: Lexicon) -> Grammar:
    """The grammar of exactly one word of the lexicon, all equally probable, no symbol; refused if it is empty."""
    words = [word for word in lexicon.by_word if is_word(word)]
    if not words:
        raise DataError(
            "the lexicon has only symbols such as <unk>, no word, so a one-word grammar is empty; add words to it"
        )
    builder = FstBuilder()
    start, end = builder.state(), builder.state(final=0.0)
    for label in range(1, len(words) + 1):
        builder.arc(start, end, label, label, math.log(len(words)))
    return Grammar((EPSILON, *words, BACKOFF), builder.fst(), "one-word")


def from_word_graph(graph: WordGraph, lexicon: Lexicon) -> Grammar:
    """The sentences of a JSGF grammar or of a list; words that the lexicon lacks are refused."""
    words = graph.words
    if missing := [word for word in words if word not in lexicon.by_word]:
        raise MissingError(f"{graph.source}: not in the lexicon: {listed(missing)}")
    labels = {word: label for label, word in enumerate(words, 1)}
    builder = FstBuilder()
    for state in range(1 + max(max(source, target) for source, _, _, target in graph.arcs)):
        builder.state(graph.finals.get(state, np.inf))
    for source, word, cost, target in graph.arcs:
        builder.arc(source, target, labels[word], labels[word], cost)
    return Grammar((EPSILON, *words, BACKOFF), builder.fst(), graph.source)


def from_arpa(lm: ArpaLm, lexicon: Lexicon) -> Grammar:
    """An n-gram model restricted to words in the lexicon, with unchanged probabilities; refused if it shares no word.

    `<unk>` is left out: users do not want it in transcripts, and its pronunciation, a noise phone trained on many
    different words, matches too many (GMMs recognised it for 7 % of the words of minilibri).

    A state is a history with n-grams or a back-off weight of its own; an n-gram leads to the longest suffix of its
    words that is a state.
    """
    words = [word for word in lm.words if word in lexicon.by_word and word != UNKNOWN]
    dropped = tuple(word for word in lm.words if word not in lexicon.by_word and word != UNKNOWN)
    if not words:
        raise MismatchError(
            f"{lm.source}: none of its {len(dropped)} words ({listed(dropped, 5)}) is in the lexicon;"
            " spell both the same way (check upper and lower case)"
        )
    label_of = {word: label for label, word in enumerate(words, 1)}
    label_V = np.array([label_of.get(word, 0) for word in lm.vocabulary])
    states = states_of(lm, label_V > 0)
    if np.isinf(states.final_S).all():
        raise FormatError(f"{lm.source}: no sentence can end: {EOS} has no probability after any history")
    arcs_A, label_A = np.zeros(len(states.node_A), ARC), label_V[lm.word_G[states.node_A]]
    arcs_A["ilabel"] = arcs_A["olabel"] = label_A
    arcs_A["weight"], arcs_A["nextstate"] = -_LN10 * lm.prob_G[states.node_A], states.target_A
    back_S = np.flatnonzero((states.backoff_S >= 0) & (lm.backoff_H[states.node_S] > NEVER))
    back_A = np.zeros(len(back_S), ARC)
    back_A["ilabel"], back_A["nextstate"] = len(words) + 1, states.backoff_S[back_S]
    back_A["weight"] = -_LN10 * lm.backoff_H[states.node_S[back_S]]
    source_A = np.concatenate([states.source_A, back_S])
    order = np.argsort(source_A, kind="stable")
    final_S = (-_LN10 * states.final_S).astype(np.float32)
    fst = Fst(states.start, final_S, source_A[order].astype(np.int32), np.concatenate([arcs_A, back_A])[order])
    return Grammar((EPSILON, *words, BACKOFF), fst, lm.source, dropped)


def mark_of(vocabulary: Iterable[str]) -> str:
    """The mark of the pieces in a vocabulary, ``▁`` or ``￭``; empty if it consists of whole words."""
    marks = (JOINER if word.startswith(JOINER) else WORD_START * word.startswith(WORD_START) for word in vocabulary)
    return next(filter(None, marks), "")


def are_pieces(vocabulary: Iterable[str]) -> bool:
    """Whether a vocabulary has pieces instead of words, or letters beside words."""
    return mark_of(vocabulary) != ""


def continues(unit: str, mark: str) -> bool:
    """Whether a unit of a vocabulary with this mark belongs to the same word as the one before it."""
    return unit.startswith(JOINER) if mark == JOINER else not unit.startswith(mark)


def begins_filler(unit: str) -> bool:
    """Whether a unit is the first phone of a filler."""
    return unit.startswith("<") and unit.endswith(JOINER)


def bare(unit: str) -> str:
    return unit.removeprefix(WORD_START).strip(JOINER)


def join_words(pieces: Sequence[str], mark: str = WORD_START, speller: "Speller | None" = None) -> tuple[str, ...]:
    """Words from pieces of a vocabulary with this mark; pieces before the first start of a word form a word, too.

    >>> join_words(("▁hel", "lo", "▁world"))
    ('hello', 'world')
    >>> join_words(("hello", "w￭", "￭o￭", "￭r￭", "￭l￭", "￭d"), "￭")
    ('hello', 'world')
    """
    segments = [Segment(0.0, 0.0, piece, None) for piece in pieces]
    return tuple(word.label for word in join_segments(segments, mark, speller))


def join_segments(pieces: Sequence[Segment], mark: str = WORD_START, speller: "Speller | None" = None) -> list[Segment]:
    """Words with times from pieces with times: from the start of the first piece to the end of the last.

    A filler is a guess at its spelling, or `<unk>` without a `speller`; one that begins with noise is left out. The
    confidence of a word is the lowest of its pieces; None if it is unknown for a piece.
    """
    words = (_joined(pieces[part], speller) for part in parts_of_words([piece.label for piece in pieces], mark))
    return [word for word in words if word.label != NOISE]


def parts_of_words(units: Sequence[str], mark: str) -> list[slice]:
    """Where the pieces of each word are among units of a vocabulary with this mark."""
    starts = [place for place, unit in enumerate(units) if place == 0 or not continues(unit, mark)]
    return [slice(*ends) for ends in pairwise([*starts, len(units)])]


def _joined(pieces: Sequence[Segment], speller: "Speller | None") -> Segment:
    """The word that consists of these pieces."""
    parts = [bare(piece.label) for piece in pieces]
    label, guess = "".join(parts), None
    if begins_filler(pieces[0].label):
        guess = speller(parts) if speller else None
        label = NOISE if parts[0] == NOISE else guess or UNKNOWN
    known = [piece.confidence for piece in pieces if piece.confidence is not None]
    confidence = min(known) if len(known) == len(pieces) else None
    return Segment(pieces[0].start_s, pieces[-1].end_s, label, confidence, guess is not None)


def join_confidences(pieces: Sequence[str], confidences: Sequence[float], mark: str = WORD_START) -> list[float]:
    """Confidences of the words that `join_words` makes: the lowest of their pieces."""
    parts = [Segment(0.0, 0.0, piece, confidence) for piece, confidence in zip(pieces, confidences, strict=True)]
    return [word.confidence or 0.0 for word in join_segments(parts, mark)]


def lexicon_fst(lexicon: Lexicon, words: Sequence[str], class_P: np.ndarray) -> tuple[Fst, list[int]]:
    """Return L and its disambiguation symbols.

    Parameters
    ----------
    words
        Symbol table: `<eps>`, words of the lexicon, `#0`.
    class_P
        `Tree.phone_classes`: pronunciations that differ only within classes may become the same pdfs, so they are
        treated as homophones.

    Returns
    -------
    L
        Input labels are phones, then disambiguation symbols from ``len(lexicon.phones) + 1``, the first of which is for
        the back-off arcs of G. Silence costs -log(silence_prob) at the start and -log(silences.after) after a word; its
        absence costs -log(1 - the same probability).
    """
    # Homophones and prefixes of other pronunciations end in disambiguation symbols.
    wanted = set(words[1:-1])
    spoken = [pron for pron in lexicon.pronunciations if pron.word in wanted]
    ids, labels = lexicon.phone_ids, {word: label for label, word in enumerate(words)}
    marks = _disambiguate([tuple(int(class_P[ids[phone]]) for phone in pron.phones) for pron in spoken])
    backoff = len(lexicon.phones) + 1
    silence_mark = backoff + 1 + max(marks, default=0)
    silence_spoken = any(lexicon.silence_phones[0] in pron.phones for pron in spoken)

    # States: a word ends in `after_word`, or in `before_silence` if silence follows.
    builder = FstBuilder()
    start, before_silence = builder.state(), builder.state()
    after_word = after_silence = builder.state(final=0.0)
    begins = [(after_word, "given_word")]
    if lexicon.end:  # the cost of the next word depends on whether there was silence before it
        after_silence = builder.state(final=-math.log(lexicon.end.given_silence))
        builder.finals[after_word] = -math.log(lexicon.end.given_word)
        begins.append((after_silence, "given_silence"))
    # No silence can precede a piece within a word, so silence probabilities do not apply there.
    piece_mark = mark_of(words)
    inside = [builder.state()] if piece_mark else []
    # Optional silence is ambiguous, and needs a mark, only if pronunciations contain silence.
    silence = [lexicon.silence, silence_mark] if silence_spoken else [lexicon.silence]
    builder.chain(before_silence, after_silence, silence, 0, 0.0)

    def exits(prob: float, word: str = "") -> list[tuple[int, float]]:
        within = [(state, 1.0) for state in inside if piece_mark != JOINER or word.endswith(JOINER)]
        around = [] if word.endswith(JOINER) else [(after_word, 1.0 - prob), (before_silence, prob)]
        return [(target, -math.log(share)) for target, share in (*around, *within) if share > 0]

    # The arcs of all pronunciations, from each state in which they may begin to each in which they may end.
    for target, cost in exits(lexicon.silence_prob):
        builder.arc(start, target, 0, 0, cost)
    for pron, mark in zip(spoken, marks, strict=True):
        phones = [ids[phone] for phone in pron.phones] + ([backoff + mark] if mark else [])
        silences = lexicon.silences(pron)
        if inside and continues(pron.word, piece_mark):
            sources = [(inside[0], pron.prob)]
        else:
            sources = [(source, pron.prob * getattr(silences, condition)) for source, condition in begins]
        for source, prob in sources:
            for target, cost in exits(silences.after, pron.word):
                builder.chain(source, target, phones, labels[pron.word], cost - math.log(prob))
    for source in [*(source for source, _ in begins), *inside]:
        builder.arc(source, source, backoff, labels[words[-1]])
    return builder.fst(), list(range(backoff, silence_mark + 1))


def _disambiguate(spoken: Sequence[tuple[int, ...]]) -> list[int]:
    """Number of the symbol that must end each pronunciation; 0 if it is unique and not a prefix of another one."""
    times = Counter(spoken)
    beginnings = {phones[:length] for phones in spoken for length in range(1, len(phones))}
    used: Counter[tuple[int, ...]] = Counter()
    marks = []
    for phones in spoken:
        if times[phones] > 1 or phones in beginnings:
            used[phones] += 1
            marks.append(used[phones])
        else:
            marks.append(0)
    return marks


@dataclass(frozen=True, eq=False)
class Speller:
    """Guesses how the phones of a filler are spelled."""

    model: g2p.G2p  # of the phones that the filler has: those that differ only in stress or tone are one
    _known: dict[tuple[str, ...], str | None] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, parts: Sequence[str]) -> str | None:
        """The most probable word with these phones, such as ``<AH>``, ``<T>``; None if no spelling is found."""
        phones = tuple(part[1:-1] for part in parts)
        if phones not in self._known:
            try:
                found = self.model.spell(phones)
            except g2p.UnknownSymbolError:  # a phone of noise
                found = []
            word = "".join(found[0].symbols) if found else ""
            self._known[phones] = word if word and f"<{word}>" not in NOT_WORDS else None  # `<unk>` is no mark
        return self._known[phones]


def read_speller(graph: Path) -> Speller | None:
    """What guesses the words of a graph's fillers; None if they are `<unk>`."""
    return Speller(g2p.load(graph / G2P)) if (graph / G2P).exists() else None


@dataclass(frozen=True, eq=False)
class Spelling:
    """What a graph needs to spell unseen words."""

    letters: ArpaLm  # of the letters of words, as `speech3.language.letter_units` gives them
    weight: float  # the probability of a new word
    pronunciations: tuple[Pronunciation, ...]  # those of the letters, in phones without positions in the word
    speller: Speller | None = None  # if the letters are phones, and these are to be spelled

    def added_to(self, lm: ArpaLm) -> ArpaLm:
        return add_letter_model(lm, self.letters, self.weight)

    def cost(self, units: Sequence[str]) -> float:
        """Minus the natural logarithm of the probability that a new word consists of these units."""
        return -float(ngram_log_probs(self.letters, [units])[0].sum())

    @property
    def is_filler(self) -> bool:
        return any(begins_filler(pron.word) for pron in self.pronunciations)

    def save(self, graph: Path) -> None:
        """Write the letter model, the pronunciations and the speller; the weight belongs in ``graph.json``."""
        write_arpa(self.letters, graph / LETTERS)
        write_lexicon(Lexicon(self.pronunciations), graph / GRAPH_LEXICON)
        if self.speller:
            self.speller.model.save(graph / G2P)


def spelling_with(hmm: Hmm, letters: ArpaLm, weight: float, phones: Mapping[str, tuple[str, ...]]) -> Spelling:
    """The spelling for a model, from the phones of each letter; letters with a phone that it lacks are left out."""
    every = (Pronunciation(unit, phones[bare(unit)]) for unit in letters.words)
    return Spelling(letters, weight, tuple(pron for pron in every if has_phones(pron, hmm.lexicon)))


def read_spelling(graph: Path) -> Spelling | None:
    """Read the spelling of a graph; None if it does not spell unseen words; refused if a part of it is missing."""
    if not (graph / LETTERS).exists():
        return None
    weight = read_json(graph / GRAPH_FILE).get(UNSEEN_WEIGHT)
    if not isinstance(weight, float) or not (graph / GRAPH_LEXICON).exists():
        raise MismatchError(f"{graph}: {LETTERS} does not belong to this graph; build it again, or remove the file")
    listed = read_lexicon(graph / GRAPH_LEXICON).pronunciations
    units = tuple(pron for pron in listed if JOINER in pron.word)
    return Spelling(read_arpa(graph / LETTERS), weight, units, read_speller(graph))


def with_lexicon_of(outputs: Hmm | PdfsOnly, graph: Path) -> Hmm | PdfsOnly:
    """The model with the pronunciations of a graph added, so that the words that the graph outputs can be aligned."""
    if not (graph / GRAPH_LEXICON).exists() or not isinstance(outputs, Hmm):
        return outputs
    return with_pronunciations(outputs, read_lexicon(graph / GRAPH_LEXICON).pronunciations, str(graph / GRAPH_LEXICON))


def phone_filler(hmm: Hmm, *, phones: bool = True, garbage: bool = False) -> Spelling | None:
    """The filler for a model, of the `phones` of words, those of `garbage`, or both; None if the lexicon lacks them."""
    lexicon, spoken = hmm.lexicon, dict.fromkeys(_phones_of_fillers(hmm).values())
    units: dict[str, tuple[str, ...]] = {f"<{phone}>": (phone,) for phone in spoken if phones and len(spoken) > 1}
    if garbage:
        symbols = (word for word in (UNKNOWN, NOISE) if word in lexicon.by_word)
        units |= {word: lexicon.by_word[word][0].phones for word in symbols}
    return spelling_with(hmm, _uniform(list(units)), _FILLER_WEIGHT, units) if units else None


def spelled_filler(hmm: Hmm, kept: Path | None = None) -> Spelling:
    """The filler of the phones of words, with a trigram of them, that is spelled as the words of the lexicon are.

    `kept`: where the model of letters and phones is kept, which takes a while to learn.
    Raises DataError: the lexicon has too few words to learn it from.
    """
    phone_of, table = _phones_of_fillers(hmm), dict[str, list[tuple[str, ...]]]()
    for pron in hmm.lexicon.pronunciations:
        if is_word(pron.word) and all(phone in phone_of for phone in pron.phones):
            table.setdefault(pron.word, []).append(tuple(phone_of[phone] for phone in pron.phones))
    if (model := g2p.learnt(table, (), "the lexicon", kept)) is None:
        raise DataError(
            f"lm.filler=spelled: the lexicon has only {counted(len(table), 'word')} with letters, and {LEAST_WORDS} are"
            " needed to learn how they are spelled; use lm.filler=true, which writes <unk>, or a larger lexicon"
        )
    units = {f"<{phone}>": (phone,) for phone in dict.fromkeys(phone_of.values())}
    words = dict.fromkeys(phones for variants in table.values() for phones in variants if len(phones) > 1)
    said = (letter_units([f"<{phone}>" for phone in phones]) for phones in words)
    trigram = estimate_lm(said, _PHONE_ORDER, source="phones of the lexicon's words")
    return replace(spelling_with(hmm, trigram, _FILLER_WEIGHT, units), speller=Speller(model))


def _phones_of_fillers(hmm: Hmm) -> dict[str, str]:
    """For each phone of words, without its position in the word, the phone that stands for it in fillers.

    Phones that differ only in stress, tone or position in the word are one: the most frequent of them.
    """
    lexicon, apart = hmm.lexicon, {*hmm.lexicon.silence_phones, *hmm.lexicon.noise_phones}
    counts = Counter(phone for pron in lexicon.pronunciations for phone in pron.phones)
    found: dict[str, str] = {}
    for group in phone_groups(lexicon):
        names = [lexicon.phones[number - 1] for number in group]
        if apart.isdisjoint(names):
            found |= dict.fromkeys(names, lexicon.base_phone(max(names, key=counts.__getitem__)))
    return found


def _uniform(letters: Sequence[str]) -> ArpaLm:
    """A model of spellings in which all letters have the same probability everywhere."""
    each, last = -math.log10(len(letters)), math.log10(1 / (_FILLER_LENGTH - 1))
    unigrams: dict[tuple[str, ...], tuple[float, float]] = {(BOS,): (NEVER, NEVER), (EOS,): (NEVER, 0.0)}
    bigrams: dict[tuple[str, ...], tuple[float, float]] = {}
    for letter in letters:
        first, inner, end = letter_units((letter, letter, letter))
        unigrams |= {
            (first,): (NEVER, 0.0),
            (inner,): (each + math.log10(1 - 10**last), 0.0),
            (end,): (each + last, NEVER),
        }
        bigrams |= {(BOS, first): (each, 0.0), (end, EOS): (0.0, 0.0)}
    return from_ngrams([unigrams, bigrams], "the phones of the filler")


def with_filler(grammar: Grammar, filler: Spelling) -> Grammar:
    """The grammar with any number of fillers before, after or in place of its sentences.

    Silence alone is accepted, too, at the cost of a filler. Fillers are entered and left through arcs that read the
    symbol of back-off arcs, so the composed graph can be made deterministic.
    """
    words = (*grammar.words[:-1], *filler.letters.words, BACKOFF)
    label = {word: number for number, word in enumerate(words)}
    old, backoff = grammar.fst, label[BACKOFF]
    builder = FstBuilder()
    for final in old.final_S.tolist():
        builder.state(final)
    for source, arc in zip(old.source_A.tolist(), old.arcs_A.tolist(), strict=True):
        ilabel, olabel, weight, target = arc
        builder.arc(source, target, backoff if ilabel == len(grammar.words) - 1 else ilabel, olabel, weight)
    after = builder.state(final=0.0)
    before = _add_filler(builder, filler, label, after)
    builder.arc(old.start, before, backoff, 0)
    builder.arc(after, old.start, backoff, 0)
    builder.finals[old.start] = min(builder.finals[old.start], -math.log(filler.weight))  # silence alone
    for state in np.flatnonzero(np.isfinite(old.final_S)).tolist():
        if state != old.start:
            builder.arc(state, before, backoff, 0, float(old.final_S[state]))
    return Grammar(words, builder.fst(), grammar.source, grammar.dropped)


def _add_filler(builder: FstBuilder, filler: Spelling, label: Mapping[str, int], after: int) -> int:
    """Add the n-grams of a filler's phones; return the state before its first, from which its last leads to `after`.

    What the model of phones allows, but no filler has, is left out: a first phone later on, and phones after the last.
    """
    phones = from_arpa(filler.letters, Lexicon(filler.pronunciations))
    state_of = [builder.state() for _ in phones.fst.final_S]
    for source, arc in zip(phones.fst.source_A.tolist(), phones.fst.arcs_A.tolist(), strict=True):
        ilabel, _, cost, target = arc
        unit = phones.words[ilabel]
        at_start, is_first = source == phones.fst.start, begins_filler(unit)
        if at_start != is_first:
            continue
        ends = unit != BACKOFF and not unit.endswith(JOINER)
        to, entering = after if ends else state_of[target], -math.log(filler.weight) if at_start else 0.0
        builder.arc(state_of[source], to, label[unit], label[unit] * (unit != BACKOFF), cost + entering)
    return state_of[phones.fst.start]


def with_silence(grammar: Grammar) -> Grammar:
    """The grammar of an n-gram model, which seldom knows an empty sentence, with silence alone at a cost of its own.

    Without it a recording in which nobody speaks gets the word that fits it least badly.
    """
    # A start of its own, since other sentences may end in the old one: all of them, if it is the state of a unigram.
    old, start = grammar.fst, len(grammar.fst.final_S)
    first_A = old.source_A == old.start
    source_A = np.concatenate([old.source_A, np.full(first_A.sum(), start, old.source_A.dtype)])
    final_S = np.append(old.final_S, np.float32(min(old.final_S[old.start], _SILENCE_COST)))
    return replace(grammar, fst=Fst(start, final_S, source_A, np.concatenate([old.arcs_A, old.arcs_A[first_A]])))


def phone_costs(words: Sequence[str], spelling: Spelling | None) -> np.ndarray:
    """(V,) float32: what makes the cost of a filler's phone `PHONE_COST`; 0 for those of a trigram."""
    if spelling is None or not spelling.is_filler or spelling.letters.order >= _PHONE_ORDER:
        return np.zeros(len(words), np.float32)
    phones = sum(map(begins_filler, words))
    less = PHONE_COST - math.log(max(phones, 1))
    return np.array([less * (JOINER in word and bare(word).startswith("<")) for word in words], np.float32)


def filler_costs(words: Sequence[str], cost: float) -> np.ndarray:
    """(V,) float32: `cost` for the symbols that begin a filler, 0 for the others."""
    return np.array([cost * begins_filler(word) for word in words], np.float32)
