"""Training n-gram models from texts or counts of any size into ARPA files, and measuring their perplexity.

Axes: T words and sentence ends of the text, N orders.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from speech3.data import STDIN, Lines, read_lines, with_progress
from speech3.errors import DataError, FormatError, MismatchError, MissingError, SettingError, counted
from speech3.language.kneser_ney import (
    BOS_NUMBER,
    EOS_NUMBER,
    Known,
    Numbers,
    Spool,
    check_order,
    estimated,
    number_sentences,
    read_tokens,
    windows_of_rows,
    windows_of_text,
)
from speech3.language.lexicon import is_word, lexicon_rows
from speech3.language.ngrams import BOS, EOS, UNKNOWN, ArpaLm, score
from speech3.runtime import composed, read_utf8, say


@dataclass(frozen=True)
class Trained:
    """Sizes of a trained model and its text."""

    sizes: tuple[int, ...]  # number of n-grams of each order from 1
    # words, unknown: number of words in the text, and how many of them are not in the vocabulary.
    words: int
    unknown: int


def train(
    texts: Sequence[Path],
    order: int,
    out: Path,
    vocabulary: Path | None = None,
    minimums: Sequence[int] = (),
    counted: bool = False,
) -> Trained:
    """Estimate a model (`kneser_ney`) and write it as an ARPA file.

    Parameters
    ----------
    texts
        Files with one sentence per line, `-` for standard input; or, if `counted`, with counts of n-grams
        (`read_counts`).
    vocabulary
        A word list or lexicon: the first field of each line is a word, seen or not; all others count as `<unk>`.
    minimums
        For each order from 1, how often an n-gram must occur in the text to be in the model.

    Raises
    ------
    Speech3Error
        There is no text, or no word of the vocabulary in it; the order is not in 1 to 6; the minimums decrease from
        order to order; a file cannot be read or written.
    """
    source = ", ".join("standard input" if path == STDIN else str(path) for path in texts)
    check_order(order, source)
    _check_minimums(minimums, order)
    numbers = Numbers(read_words(vocabulary) if vocabulary else None)
    listed = len(numbers)
    with Spool() as spool:
        if counted:
            windows = windows_of_rows(read_counts(texts, order, numbers), order, spool)
        else:
            windows = windows_of_text(read_tokens(texts, numbers), order, spool)
        words = int(windows.occurs_V.sum() - windows.occurs_V[EOS_NUMBER]) if windows.order else 0
        unknown = int(windows.occurs_V[numbers[UNKNOWN] :][:1].sum()) if UNKNOWN in numbers else 0
        if vocabulary and words and unknown == words:
            known = ", ".join(list(numbers)[2 : min(listed, 5)])
            raise MismatchError(
                f"{vocabulary}: none of the text's words is among its {listed - 2:,} ({known} ...); spell both the same"
                " way (upper or lower case?)"
            )
        found = estimated(windows, numbers, spool, source, minimums)
        found.write(out)
    return Trained(found.sizes, words, unknown)


def _check_minimums(minimums: Sequence[int], order: int) -> None:
    rising = all(one <= other for one, other in pairwise(minimums))
    if minimums and (minimums[0] != 1 or not rising or len(minimums) > order):
        raise SettingError(
            f"minimum counts {','.join(map(str, minimums))}: pass one for each order, 1 for words and not decreasing"
            f" from order to order, such as {','.join(str(min(length, 2)) for length in range(1, order + 1))}"
        )


def read_words(path: Path) -> list[str]:
    """The words of a list or lexicon (the first field of each line), without symbols such as `<s>` and noises.

    Raises Speech3Error: the file cannot be read or has no words.
    """
    rows = (fields for _, fields in lexicon_rows(composed(read_utf8(path), path)))
    words = [word for word, *_ in rows if is_word(word) or word == UNKNOWN]
    if not words:
        raise DataError(f"{path}: no words; pass one word or lexicon entry per line")
    return words


def read_counts(paths: Sequence[Path], order: int, numbers: dict[str, int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read lines ``word word ... count``, as SRILM's ngram-count writes them, as pieces for `windows_of_rows`.

    Only n-grams of the highest order and shorter whole sentences are used; the counts of others follow from them. An
    n-gram at the start of a sentence, `<s> a b`, also counts for its shorter prefixes, `<s> a`.

    Raises Speech3Error, with the line: there is no count, or `<s>` or `</s>` is in the middle. There are no n-grams of
    the order.
    """
    longest, found, begin, end = 0, False, False, False
    for lines in with_progress(read_lines(paths), paths, "reading counts"):
        rows: list[list[int]] = []
        counts: list[int] = []
        for number, line in enumerate(lines.text.split("\n"), lines.first):
            if not (fields := line.split()):
                continue
            ngram, count = fields[:-1], _count(fields, lines, number)
            longest = max(longest, len(ngram))
            begin, end = begin or ngram[0] == BOS, end or ngram[-1] == EOS
            whole = ngram[0] == BOS and ngram[-1] == EOS and len(ngram) > 1
            if count and ngram != [BOS] and (len(ngram) == order or (whole and len(ngram) < order)):
                words = [numbers[word] for word in ngram]
                found = found or len(ngram) == order
                for length in range(2 if ngram[0] == BOS else len(words), len(words) + 1):
                    rows.append([*words[:length][::-1], *[BOS_NUMBER] * (order - length)])
                    counts.append(count)
        if rows:
            yield np.array(rows, np.int32), np.array(counts, np.int64)
    if longest and not found:
        raise MissingError(
            f"{paths[0]}: no {order}-grams among the counts; the longest have {counted(longest, 'word')}:"
            f" --order {longest},"
            f" or count again with ngram-count -order {order}"
        )
    if absent := [symbol for symbol, there in ((BOS, begin or order == 1), (EOS, end)) if longest and not there]:
        say(
            f"{paths[0]}: no n-gram has {' or '.join(absent)}, so the model does not know how sentences begin and end:"
            " count again with them, as ngram-count does by itself"
        )


def _count(fields: list[str], lines: Lines, number: int) -> int:
    place, *_, last = f"{lines.path}:{number}", *fields
    if len(fields) < 2 or not last.isdecimal():
        raise FormatError(f"{place}: not words and a whole number: `{' '.join(fields)[:60]}`; remove the line")
    if BOS in fields[1:-1] or EOS in fields[:-2]:
        raise FormatError(
            f"{place}: {BOS} or {EOS} in the middle of `{' '.join(fields[:-1])[:60]}`; count each sentence separately"
        )
    return int(last)


def _power(exponent: float) -> float:
    """10 ** exponent; infinite where a float ends."""
    return 10.0**exponent if exponent < 308 else math.inf


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a text, with the counts it is computed from."""

    # sentences, words: counts in the text; the end of a sentence is an event, but not counted as a word.
    sentences: int
    words: int
    unknown: int  # number of words that the model lacks
    log10_known: float  # sum of log10 probabilities over known words and sentence ends
    # The same over unknown words, each scored as `<unk>`; minus infinity if the model has no `<unk>` and the text has
    # unknown words.
    log10_unknown: float
    hits_N: tuple[int, ...]  # known words and sentence ends whose longest n-gram in the model is of order 1, 2, ...

    @property
    def known(self) -> float:
        """Perplexity over known words and sentence ends."""
        events = self.sentences + self.words - self.unknown
        return _power(-self.log10_known / events) if events else math.nan

    @property
    def all(self) -> float:
        """Perplexity over all words and sentence ends; infinite if there are unknown words and no `<unk>`."""
        events = self.sentences + self.words
        return _power(-(self.log10_known + self.log10_unknown) / events) if events else math.nan

    def as_json(self) -> dict[str, Any]:
        """The values for JSON; a perplexity that is infinite or not defined is None."""
        values = {
            name: value if math.isfinite(value) else None
            for name, value in (("ppl", self.known), ("ppl_with_oov", self.all))
        }
        counts = {"sentences": self.sentences, "words": self.words, "oov": self.unknown}
        return {**values, **counts, "log10_prob": self.log10_known, "hits": list(self.hits_N)}


def describe_perplexity(found: Perplexity) -> str:
    """The values as text of three lines; two for a model without n-grams."""
    rate = 100 * found.unknown / found.words if found.words else 0.0
    events = max(1, sum(found.hits_N))
    hits = [f"{length}-grams {100 * hit / events:.1f} %" for length, hit in enumerate(found.hits_N, 1)]
    with_unknown = f"{found.all:.2f}" if math.isfinite(found.all) else "infinite, the model has no <unk>"
    lines = [
        f"{counted(found.sentences, 'sentence')}, {counted(found.words, 'word')}, {found.unknown:,} unknown"
        f" (OOV, {rate:.2f} %)",
        f"perplexity {found.known:.2f}; with unknown words {with_unknown}",
        *[f"found as {', '.join(reversed(hits))}"] * bool(hits),
    ]
    return "\n".join(lines)


def measure_text(lm: ArpaLm, texts: Sequence[Path]) -> Perplexity:
    """Perplexity of text files with one sentence per line.

    Raises Speech3Error: there is no sentence; also what `read_tokens` raises.
    """
    found = measure(lm, read_tokens(texts, Known(lm.numbers)))
    if not found.sentences:
        raise DataError(f"{', '.join(map(str, texts))}: no sentences; pass a text with one sentence per line")
    return found


def measure(lm: ArpaLm, blocks: Iterable[np.ndarray]) -> Perplexity:
    """Perplexity of a text in blocks, numbered with `Known(lm.numbers)`."""
    end, unknown = lm.numbers[EOS], lm.numbers.get(UNKNOWN, -1)
    sentences = tokens = strange = 0
    sums, hits_N = np.zeros(2), np.zeros(lm.order + 1, np.int64)
    for word_T in blocks:
        node_T, prob_T = score(lm.trie, word_T, lm.start, end)
        strange_T = word_T == unknown
        sentences += int(np.count_nonzero(word_T == end))
        tokens += len(word_T)
        strange += int(np.count_nonzero(strange_T))
        sums += [prob_T[~strange_T].sum(), prob_T[strange_T].sum()]
        hits_N += np.bincount(np.searchsorted(lm.starts_N, node_T[~strange_T], "right") - 1, minlength=lm.order + 1)
    known, unknown_too = sums.tolist()
    return Perplexity(sentences, tokens - sentences, strange, known, unknown_too, tuple(hits_N[1:].tolist()))


def perplexity(lm: ArpaLm, sentences: Sequence[Sequence[str]]) -> tuple[float, int]:
    """Perplexity over words and sentence ends, and the number of unknown words that were left out.

    Unknown words are scored as ``<unk>`` if the model has it, and left out otherwise.

    Raises Speech3Error: there is nothing to average over, or a sentence contains `<s>` or `</s>`.
    """
    found = measure(lm, number_sentences(sentences, Known(lm.numbers), lm.source))
    with_unknown = UNKNOWN in lm.numbers
    value = found.all if with_unknown else found.known
    if math.isnan(value):
        raise MismatchError(f"{lm.source}: no word of the text is in the language model")
    return value, 0 if with_unknown else found.unknown
