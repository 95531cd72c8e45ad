"""Training n-gram models from texts or counts of any size into ARPA files (`speech3 lm train`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from speech3.corpus.sentences import STDIN, Lines, read_lines, shown
from speech3.errors import Speech3Error
from speech3.io.text import read_utf8
from speech3.io.unicode_form import composed
from speech3.lexicon.langdir import is_word, lexicon_rows
from speech3.lm.counts import BOS_NUMBER, EOS_NUMBER, windows_of_rows, windows_of_text
from speech3.lm.kneser_ney import check_order, estimated
from speech3.lm.ngrams import BOS, EOS, UNKNOWN
from speech3.lm.spool import Spool
from speech3.lm.text import Numbers, read_tokens


@dataclass(frozen=True)
class Trained:
    """Sizes of a trained model and its text.

    Attributes
    ----------
    sizes
        Number of n-grams of each order from 1.
    words, unknown
        Number of words in the text, and how many of them are not in the vocabulary.
    """

    sizes: tuple[int, ...]
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
    """Estimate a model (`speech3.lm.kneser_ney`) and write it as an ARPA file.

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
            raise Speech3Error(
                f"{vocabulary}: none of the text's words is among its {listed - 2:,} ({known} ...); spell both the same"
                " way (upper or lower case?)"
            )
        found = estimated(windows, numbers, spool, source, minimums)
        found.write(out)
    return Trained(found.sizes, words, unknown)


def _check_minimums(minimums: Sequence[int], order: int) -> None:
    rising = all(one <= other for one, other in pairwise(minimums))
    if minimums and (minimums[0] != 1 or not rising or len(minimums) > order):
        raise Speech3Error(
            f"minimum counts {','.join(map(str, minimums))}: give one for each order, 1 for words and not decreasing"
            f" from order to order, such as {','.join(str(min(length, 2)) for length in range(1, order + 1))}"
        )


def read_words(path: Path) -> list[str]:
    """The words of a list or lexicon (the first field of each line), without symbols such as `<s>` and noises.

    Raises
    ------
    Speech3Error
        The file cannot be read or has no words.
    """
    rows = (fields for _, fields in lexicon_rows(composed(read_utf8(path), path)))
    words = [word for word, *_ in rows if is_word(word) or word == UNKNOWN]
    if not words:
        raise Speech3Error(f"{path}: no words; give one word or lexicon entry per line")
    return words


def read_counts(paths: Sequence[Path], order: int, numbers: dict[str, int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read lines ``word word ... count``, as SRILM's ngram-count writes them, as pieces for `windows_of_rows`.

    Only n-grams of the highest order and shorter whole sentences are used; the counts of others follow from them. An
    n-gram at the start of a sentence, `<s> a b`, also counts for its shorter prefixes, `<s> a`.

    Raises
    ------
    Speech3Error
        With the line: there is no count, or `<s>` or `</s>` is in the middle. There are no n-grams of the order.
    """
    longest, found = 0, False
    for lines in shown(read_lines(paths), paths, "reading counts"):
        rows: list[list[int]] = []
        counts: list[int] = []
        for number, line in enumerate(lines.text.split("\n"), lines.first):
            if not (fields := line.split()):
                continue
            ngram, count = fields[:-1], _count(fields, lines, number)
            longest = max(longest, len(ngram))
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
        raise Speech3Error(
            f"{paths[0]}: no {order}-grams among the counts; the longest have {longest} words: --order {longest},"
            f" or count again with ngram-count -order {order}"
        )


def _count(fields: list[str], lines: Lines, number: int) -> int:
    """The count at the end of a line."""
    place, *_, last = f"{lines.path}:{number}", *fields
    if len(fields) < 2 or not last.isdecimal():
        raise Speech3Error(f"{place}: not words and a whole number: `{' '.join(fields)[:60]}`; remove the line")
    if BOS in fields[1:-1] or EOS in fields[:-2]:
        raise Speech3Error(
            f"{place}: {BOS} or {EOS} in the middle of `{' '.join(fields[:-1])[:60]}`; count each sentence separately"
        )
    return int(last)
