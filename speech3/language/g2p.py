"""Pronunciations of new words by joint-sequence n-grams, learnt from a lexicon (Bisani and Ney 2008).

The words of the lexicon are cut into graphones (`graphones`), an n-gram model of graphones is estimated with modified
Kneser-Ney smoothing, and a word is pronounced by the phones of the graphones that are most probable given its letters
(`search`). As the model is one of both sides together, it also spells phones. It is learnt when it is needed, and kept
in a file (`learnt`).

Chosen on a tenth of minilibri's lexicon (`tests/benchmarks/g2p.py` measures another): orders above 6, and cutting the
words again with the n-gram model, changed nothing.

The search goes from letter to letter. A hypothesis is a state of the n-gram model of graphones and the phones so far.
Of those that have both in common one is kept, with the sum of their probabilities. At the end, hypotheses with the same
phones count together: a pronunciation has the probability of all its cuts into graphones (the sum that Bisani and Ney
2008 approximate by the best cut).

Axes: I letters of the word, K keys (none, one or two letters), G graphones, H hypotheses, L phones.
"""

import hashlib
import math
import time
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from speech3.data import STDIN, read_lines
from speech3.errors import DataError, MissingError, Speech3Error, counted
from speech3.io import load_tensors, read_about, save_tensors
from speech3.language import graphones
from speech3.language.kneser_ney import Numbers, Spool, estimated, windows_of_text
from speech3.language.lexicon import NOISES, is_word, lexicon_lines, listed_phones, read_lexicon_text, say_doubtful
from speech3.language.ngrams import ArpaLm, step
from speech3.language.pronounce import Phones, letters, phone_errors
from speech3.runtime import announce_compiling, composed, jit, say

_WITHOUT_LETTERS = 3  # graphones without letters that may follow one another
_STATE, _BACK, _GRAPHONE, _ROUND, _NEXT = range(5)  # columns of the hypotheses
_MIX, _SHIFT, _ONE = np.uint64(0x9E3779B97F4A7C15), np.uint64(29), np.uint64(1)
KIND = "g2p"
ORDER = 6
LEAST_WORDS = 300  # fewer are too few for n-grams of graphones
_BEAM, _WIDTH = 3.0, 100
_SPECIAL = 2  # numbers of <s> and </s> in the n-gram model
_SILENT_KINDS = "PSZC"  # Unicode's punctuation, symbols, spaces and controls: silent where the lexicon lacks them
Table = Mapping[str, Sequence[Phones]]
G2P = "g2p.safetensors"  # in a model directory; in that of a graph, what spells its fillers
_WORTH_KEEPING_S = 1.0  # of learning


class Choices(NamedTuple):
    """The graphones by their letters."""

    first_K: np.ndarray  # (K + 1,) int64: where the graphones of each key begin
    word_G: np.ndarray  # int64: their numbers in the n-gram model
    phones_G2: np.ndarray  # (G, 2) int64: their phones, -1 for none


@jit
def search(trie, start, end_word, choices, key_I3, beam, width):  # type: ignore[no-untyped-def]
    """Find pronunciations: phones (H, L), -1 before their beginning, and log10 probabilities with the word's letters.

    `trie`, `start`, `end_word`: the n-gram model, its state at the start of a word, and the number of `</s>`.
    `key_I3`: (I + 1, 3) int64: the keys of the 0, 1 and 2 letters that follow each place; -1 where no graphone has
    them.
    `beam`: how many times less probable than the best at the same letter a hypothesis may be, as a log10.
    `width`: how many hypotheses go on from each letter.
    """
    letters, size = len(key_I3) - 1, 1
    info_H5, score_H, phones_H = np.empty((256, 5), np.int64), np.empty(256, np.float64), np.empty(256, np.uint64)
    score_H[0], phones_H[0] = 0.0, _ONE
    _put(info_H5, 0, start, -1, -1, 0, -1)
    # The hypotheses of each place are a linked list; the beam follows the best score there.
    head_I, best_I = np.full(letters + 1, -1), np.full(letters + 1, -np.inf)
    head_I[0], best_I[0] = 0, 0.0
    known = {_ONE: np.int64(0)}  # by a hash of place, round, state and phones
    for place in range(letters + 1):
        # Graphones without letters lead to the same place, in the next round.
        for turn in range(_WITHOUT_LETTERS + 1):
            kept_H = _kept(info_H5, score_H, head_I[place], turn, best_I[place] - beam, width)
            for hypothesis in kept_H:
                for length in range(1 if turn == _WITHOUT_LETTERS else 0, 3):
                    key = key_I3[place, length]
                    if key < 0:
                        continue
                    to = place + length
                    to_round = turn + 1 if length == 0 else 0
                    for graphone in range(choices.first_K[key], choices.first_K[key + 1]):
                        _, prob, state = step(trie, info_H5[hypothesis, _STATE], choices.word_G[graphone])
                        score = score_H[hypothesis] + prob
                        if score < best_I[to] - beam:
                            continue
                        best_I[to] = max(best_I[to], score)
                        # The same state and phones at the same place are one hypothesis: add its probability.
                        hashed = _hashed(phones_H[hypothesis], choices.phones_G2[graphone])
                        same = _mixed(_mixed(hashed, to * (_WITHOUT_LETTERS + 1) + to_round), state)
                        if same in known:
                            score_H[known[same]] = _log_sum(score_H[known[same]], score)
                            continue
                        # No room left: double it.
                        if size == len(score_H):
                            info_H5 = np.concatenate((info_H5, np.empty_like(info_H5)))
                            score_H = np.concatenate((score_H, np.empty_like(score_H)))
                            phones_H = np.concatenate((phones_H, np.empty_like(phones_H)))
                        _put(info_H5, size, state, hypothesis, graphone, to_round, head_I[to])
                        score_H[size], phones_H[size] = score, hashed
                        known[same] = np.int64(size)
                        head_I[to] = size
                        size += 1
    # The end of the word; hypotheses with the same phones.
    ends = {_ONE: np.int64(0)}
    ends.clear()
    last = head_I[letters]
    while last >= 0:
        score_H[last] += step(trie, info_H5[last, _STATE], end_word)[1]
        if phones_H[last] in ends:
            first = ends[phones_H[last]]
            score_H[first] = _log_sum(score_H[first], score_H[last])
        else:
            ends[phones_H[last]] = last
        last = info_H5[last, _NEXT]
    return _traced(ends, info_H5, score_H, choices.phones_G2)


@jit
def _kept(info_H5, score_H, head, turn, least, width):  # type: ignore[no-untyped-def]
    """The hypotheses of a place and round that are in the beam, the best first."""
    count, hypothesis = 0, head
    while hypothesis >= 0:
        count += info_H5[hypothesis, _ROUND] == turn and score_H[hypothesis] >= least
        hypothesis = info_H5[hypothesis, _NEXT]
    found_H, hypothesis = np.empty(count, np.int64), head
    count = 0
    while hypothesis >= 0:
        if info_H5[hypothesis, _ROUND] == turn and score_H[hypothesis] >= least:
            found_H[count] = hypothesis
            count += 1
        hypothesis = info_H5[hypothesis, _NEXT]
    return found_H[np.argsort(-score_H[found_H])][:width]


@jit
def _hashed(hashed, phones_2):  # type: ignore[no-untyped-def]
    for phone in phones_2:
        if phone >= 0:
            hashed = _mixed(hashed, phone)
    return hashed


@jit
def _mixed(hashed, number):  # type: ignore[no-untyped-def]
    hashed = (hashed ^ np.uint64(number + 1)) * _MIX
    return hashed ^ (hashed >> _SHIFT)


@jit
def _put(info_H5, row, state, back, graphone, turn, following):  # type: ignore[no-untyped-def]
    # One by one, and a hash above for tuples as keys: numba takes seconds to compile the assignment of a row.
    info_H5[row, _STATE], info_H5[row, _BACK], info_H5[row, _GRAPHONE] = state, back, graphone
    info_H5[row, _ROUND], info_H5[row, _NEXT] = turn, following


@jit
def _log_sum(one, other):  # type: ignore[no-untyped-def]
    return max(one, other) + np.log10(1 + 10.0 ** -abs(one - other))


@jit
def _traced(ends, info_H5, score_H, phones_G2):  # type: ignore[no-untyped-def]
    # Two phones a graphone, at most: that many columns; then the phones of each, from the last to the first.
    longest = 0
    for last in ends.values():
        length, hypothesis = 0, last
        while info_H5[hypothesis, _BACK] >= 0:
            length += 2
            hypothesis = info_H5[hypothesis, _BACK]
        longest = max(longest, length)
    phones_HL, found_H = np.full((len(ends), longest), -1), np.empty(len(ends), np.float64)
    for row, last in enumerate(ends.values()):
        found_H[row] = score_H[last]
        hypothesis, place = last, longest
        while info_H5[hypothesis, _BACK] >= 0:
            for side in (1, 0):
                phone = phones_G2[info_H5[hypothesis, _GRAPHONE], side]
                if phone >= 0:
                    place -= 1
                    phones_HL[row, place] = phone
            hypothesis = info_H5[hypothesis, _BACK]
    return phones_HL, found_H


class Conversion(NamedTuple):
    """A pronunciation of a word, or a spelling of phones, and its probability among all of them."""

    symbols: tuple[str, ...]
    prob: float


class UnknownSymbolError(Exception):
    """A word has a letter, or a pronunciation a phone, that the lexicon lacks; `symbol` is the first."""

    def __init__(self, symbol: str) -> None:
        super().__init__(symbol)
        self.symbol = symbol


@dataclass(frozen=True, eq=False)
class G2p:
    """A model of letters and phones together."""

    # letters, phones: the symbols of both sides.
    letters: tuple[str, ...]
    phones: tuple[str, ...]
    code_G: np.ndarray  # int64: the graphones (`graphones`), in the order of their numbers in `lm`
    lm: ArpaLm  # an n-gram model; the words 0 and 1 are `<s>` and `</s>`, 2 is the first graphone
    words: int  # how many words it was learnt from
    capitals: bool  # are the lexicon's words in upper case? Then spellings are
    # wrong, lexicon: phone error rate, as a fraction, on words that were held out, and a mark of the lexicon.
    wrong: float = math.nan
    lexicon: str = ""

    def pronounce(self, word: str, best: int = 1) -> list[Conversion]:
        """The `best` most probable pronunciations of a word, at most; none if there is none.

        A letter with marks that the lexicon lacks is read without them, punctuation that it lacks is silent.

        Raises UnknownSymbolError: the lexicon has no word with one of the letters.
        """
        ids = []
        for letter in letters(word, silent=True):
            bare = unicodedata.normalize("NFD", letter)[0]
            known = next((each for each in (letter, bare) if each in self._letter_ids), None)
            if known is not None:
                ids.append(self._letter_ids[known])
            elif unicodedata.category(letter[0])[0] not in _SILENT_KINDS:
                raise UnknownSymbolError(letter)
        return [
            Conversion(tuple(self.phones[n] for n in row), prob)
            for row, prob in self._search(self._by_letters, ids, best)
        ]

    def spell(self, phones: Sequence[str], best: int = 1) -> list[Conversion]:
        """The `best` most probable spellings of phones, at most; their letters are in the case of the lexicon.

        Raises UnknownSymbolError: the lexicon lacks one of the phones.
        """
        if strange := [phone for phone in phones if phone not in self._phone_ids]:
            raise UnknownSymbolError(strange[0])
        found = self._search(self._by_phones, [self._phone_ids[phone] for phone in phones], best)
        letters = [letter.upper() for letter in self.letters] if self.capitals else self.letters
        return [Conversion(tuple(letters[n] for n in row), prob) for row, prob in found]

    def _search(
        self, side: tuple[dict[tuple[int, ...], int], Choices], ids: Sequence[int], best: int
    ) -> list[tuple[list[int], float]]:
        """Numbers of the other side's symbols and probabilities, the most probable first."""
        if not ids:
            return []
        announce_compiling("the search for pronunciations")
        keys, choices = side
        key_I3 = np.full((len(ids) + 1, graphones.LONGEST + 1), -1)
        for place in range(len(ids) + 1):
            for length in range(min(graphones.LONGEST, len(ids) - place) + 1):
                key_I3[place, length] = keys.get(tuple(ids[place : place + length]), -1)
        phones_HL, prob_H = search(self.lm.trie, self.lm.start, 1, choices, key_I3, _BEAM, _WIDTH)
        if not len(prob_H):
            return []
        share_H = 10.0 ** (prob_H - prob_H.max())
        share_H /= share_H.sum()
        rows = ([n for n in phones_HL[h].tolist() if n >= 0] for h in range(len(share_H)))
        found = [(row, prob) for row, prob in zip(rows, share_H.tolist(), strict=True) if row]
        return sorted(found, key=lambda each: (-each[1], each[0]))[:best]

    @cached_property
    def _letter_ids(self) -> dict[str, int]:
        return {letter: number for number, letter in enumerate(self.letters)}

    @cached_property
    def _phone_ids(self) -> dict[str, int]:
        return {phone: number for number, phone in enumerate(self.phones)}

    @cached_property
    def _by_letters(self) -> tuple[dict[tuple[int, ...], int], Choices]:
        return _choices(*graphones.symbols_of(self.code_G, (len(self.letters), len(self.phones))))

    @cached_property
    def _by_phones(self) -> tuple[dict[tuple[int, ...], int], Choices]:
        letters_G2, phones_G2 = graphones.symbols_of(self.code_G, (len(self.letters), len(self.phones)))
        return _choices(phones_G2, letters_G2)

    def save(self, path: Path | str) -> None:
        lm = self.lm
        tensors = {
            "code": self.code_G,
            "starts": lm.starts_N,
            "first": lm.first_H.astype(np.int32),
            "word": lm.word_G,
            "prob": lm.prob_G.astype(np.float32),
            "backoff": lm.backoff_H.astype(np.float32),
        }
        about = {
            "kind": KIND,
            "letters": self.letters,
            "phones": self.phones,
            "words": self.words,
            "capitals": self.capitals,
            "wrong": None if math.isnan(self.wrong) else self.wrong,
            "lexicon": self.lexicon,
        }
        save_tensors(path, tensors, about)


def _choices(given_G2: np.ndarray, other_G2: np.ndarray) -> tuple[dict[tuple[int, ...], int], Choices]:
    """The graphones sorted by the symbols of the given side: the number of each key, and its graphones."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, row in enumerate(given_G2.tolist()):
        groups.setdefault(tuple(symbol for symbol in row if symbol >= 0), []).append(number)
    sorted_G = np.array([number for group in groups.values() for number in group], np.int64)
    first_K = np.cumsum([0, *map(len, groups.values())])
    return {key: place for place, key in enumerate(groups)}, Choices(first_K, sorted_G + _SPECIAL, other_G2[sorted_G])


def is_model(path: Path) -> bool:
    """Whether this is a file that `G2p.save` wrote."""
    try:
        return read_about(path).get("kind") == KIND
    except Speech3Error:
        return False


def load(path: Path | str) -> G2p:
    """Read a model.

    Raises Speech3Error: the file is missing, damaged or not such a model.
    """
    tensors, about = load_tensors(path, KIND)
    code_G, word_G = tensors["code"], tensors["word"].astype(np.int32)
    vocabulary = ("<s>", "</s>", *map(str, code_G.tolist()))
    lm = ArpaLm(
        vocabulary,
        tensors["starts"],
        tensors["first"].astype(np.int64),
        word_G,
        tensors["prob"].astype(np.float64),
        tensors["backoff"].astype(np.float64),
        str(path),
    )
    wrong = math.nan if about["wrong"] is None else about["wrong"]
    left, right = tuple(about["letters"]), tuple(about["phones"])
    return G2p(left, right, code_G, lm, about["words"], about["capitals"], wrong, about["lexicon"])


def read_table(lexicon: Path) -> dict[str, list[Phones]]:
    """The words of a lexicon file with their pronunciations, without symbols, silences and noises.

    Raises Speech3Error: the file cannot be read or is not a lexicon.
    """
    if not lexicon.is_file():
        raise MissingError(f"{lexicon}: no such lexicon; pass a file with lines `word phone phone ...`")
    silent, spoken = listed_phones(lexicon)
    noises = (NOISES | silent | {"SIL", "sil"}) - spoken
    table: dict[str, list[Phones]] = {}
    lines = list(lexicon_lines(read_lexicon_text(lexicon), lexicon))
    say_doubtful(lines, lexicon)
    for line in lines:
        if is_word(line.word) and noises.isdisjoint(line.phones):
            table.setdefault(line.word, []).append(line.phones)
    return table


def train(table: Table, source: str, order: int = ORDER) -> G2p:
    """Learn a model from words with their pronunciations, all of which count alike.

    `source`: the name of the lexicon, for messages.
    Raises Speech3Error: there are fewer than `LEAST_WORDS` words.
    """
    if len(table) < LEAST_WORDS:
        raise DataError(
            f"{source} has only {counted(len(table), 'word')} to learn pronunciation from, and {LEAST_WORDS} are needed"
        )
    pairs = [(letters(word, silent=True), phones) for word, variants in sorted(table.items()) for phones in variants]
    left, right = (tuple(sorted({symbol for pair in pairs for symbol in pair[side]})) for side in (0, 1))
    announce_compiling("the alignment of letters and phones")
    words = graphones.numbered(pairs, left, right)
    cuts = [codes for codes in graphones.cut(words, graphones.learn(words)) if len(codes)]
    code_G, number_T = np.unique(np.concatenate(cuts), return_inverse=True)
    capitals = sum(word.isupper() for word in table) > len(table) / 2
    return G2p(left, right, code_G, _ngrams(code_G, number_T, cuts, order, source), len(table), capitals)


def _ngrams(code_G: np.ndarray, number_T: np.ndarray, cuts: Sequence[np.ndarray], order: int, source: str) -> ArpaLm:
    ends_W = np.cumsum([len(codes) for codes in cuts])
    word_T = np.insert(number_T + _SPECIAL, ends_W, 1).astype(np.int32)
    numbers = Numbers()
    for code in code_G.tolist():
        numbers[str(code)]  # numbers are given in the order of first use
    with Spool() as spool:
        windows = windows_of_text([word_T], order, spool)
        return estimated(windows, numbers, spool, source).model(source)


def read_given(arguments: Sequence[str], *, whole_lines: bool) -> list[str]:
    """Words (or pronunciations) given on the command line and in files, each once.

    `arguments`: words, paths of files and ``-`` for standard input.
    `whole_lines`: a line of a file is a pronunciation; else its first field is a word.
    Raises Speech3Error: a file cannot be read or has no words; an argument looks like a path and there is no such file.
    """
    found: list[str] = []
    for argument in arguments:
        path = Path(argument)
        if path != STDIN and not path.is_file():
            if "/" in argument or path.suffix in (".txt", ".dict", ".gz", ".scp"):
                raise MissingError(f"{path}: no such file")
            found.append(" ".join(argument.split()))
            continue
        lines = [line.split() for block in read_lines([path]) for line in composed(block.text, path).splitlines()]
        rows = [fields if whole_lines else fields[:1] for fields in lines if fields]
        if not rows:
            raise DataError(f"{path}: no words; write one per line")
        if not whole_lines and (longer := next((fields for fields in lines if len(fields) > 1), None)):
            say(f"{path}: the first field of each line is read as a word, and not the others ({' '.join(longer)[:40]})")
        found += [" ".join(fields) for fields in rows]
    return list(dict.fromkeys(each for each in found if each))


def apply(model: G2p, words: Iterable[str]) -> tuple[dict[str, Phones], dict[str, str]]:
    """The most probable pronunciation of each word, and why the others have none."""
    found: dict[str, Phones] = {}
    reasons: dict[str, str] = {}
    for word in words:
        try:
            best = model.pronounce(word)
        except UnknownSymbolError as error:
            reasons[word] = f"has the letter {error.symbol}, which no word of the lexicon has"
            continue
        if best:
            found[word] = best[0].symbols
        else:
            reasons[word] = "has no letter that is spoken"
    return found, reasons


def learnt(table: Table, held_out: Collection[str], source: str, kept: Path | None = None) -> G2p | None:
    """Learn how words are pronounced from all words of a lexicon, or read what was learnt from the same words before.

    `held_out`: words of the lexicon on which the phone error rate of a model of the others is measured: `G2p.wrong`.
    `kept`: where the model is kept if learning it took more than a second; a file of another lexicon is replaced.
    Returns: None if the lexicon has too few words (`LEAST_WORDS`).
    """
    if len(table) - len(held_out) < LEAST_WORDS:
        return None
    rows = tuple((word, tuple(map(tuple, variants))) for word, variants in sorted(table.items()))
    mark = hashlib.sha256(repr((rows, sorted(held_out))).encode()).hexdigest()
    if kept and kept.is_file():
        try:
            if (model := load(kept)).lexicon == mark:
                return model
        except Speech3Error:  # damaged: learnt again
            pass
    start = time.monotonic()
    model = _learn(rows, frozenset(held_out), source, mark)
    if kept and time.monotonic() - start > _WORTH_KEEPING_S:
        try:
            model.save(kept)
            say(f"learnt from {counted(len(rows), 'word')} how words are pronounced: {kept}")
        except (Speech3Error, OSError):  # a directory that is read-only, a full disk: learnt again next time
            pass
    return model


@lru_cache(maxsize=1)  # a recipe asks for the words of train, and again for those of dev and test
def _learn(
    rows: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...], held_out: frozenset[str], source: str, mark: str
) -> G2p:
    table = dict(rows)
    others = train({word: variants for word, variants in rows if word not in held_out}, source)
    words = sorted(held_out)
    found, _ = apply(others, words)
    wrong = phone_errors([table[word] for word in words], [found.get(word, ()) for word in words])
    return replace(train(table, source), wrong=wrong, lexicon=mark)
