"""Backing-off n-gram language models and their ARPA files (Doug Paul's format, as SRILM and KenLM write it)."""

import gzip
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from speech3.errors import Speech3Error
from speech3.io.atomic import atomic_path

BOS, EOS = "<s>", "</s>"

Ngrams = dict[tuple[str, ...], tuple[float, float]]


@dataclass(frozen=True, eq=False)
class ArpaLm:
    """An n-gram language model.

    Attributes
    ----------
    ngrams
        For each order from 1: the n-grams with (log10 probability, log10 back-off weight).
    source
        What to call the model in messages: its file, or how it was made.
    """

    ngrams: tuple[Ngrams, ...]
    source: str

    @property
    def order(self) -> int:
        """Length of the longest n-gram."""
        return len(self.ngrams)

    @property
    def words(self) -> list[str]:
        """Words other than `<s>` and `</s>`, in the order of the file."""
        return [word for (word,) in self.ngrams[0] if word not in (BOS, EOS)]

    def log10_prob(self, history: Sequence[str], word: str) -> float:
        """Log10 probability of `word` after `history`; minus infinity if the model does not know the word."""
        context = tuple(history)[max(0, len(history) - self.order + 1) :]
        total = 0.0
        while True:
            found = self.ngrams[len(context)].get((*context, word))
            if found is not None:
                return total + found[0]
            if not context:
                return -math.inf
            total += self.ngrams[len(context) - 1].get(context, (0.0, 0.0))[1]
            context = context[1:]


def perplexity(lm: ArpaLm, sentences: Sequence[Sequence[str]], unknown: str = "<unk>") -> tuple[float, int]:
    """Perplexity over words and sentence ends, and how many words were left out because the model lacks them.

    Words that the model lacks count as `unknown` if it has that, else they are left out of the average.
    """
    known = {word for (word,) in lm.ngrams[0]}
    total, events, skipped = 0.0, 0, 0
    for sentence in sentences:
        words = [word if word in known else unknown for word in sentence] + [EOS]
        for place, word in enumerate(words):
            if word not in known:
                skipped += 1
                continue
            total += lm.log10_prob([BOS, *words[:place]], word)
            events += 1
    if not events:
        raise Speech3Error(f"{lm.source}: no word of the text is in the language model")
    return 10.0 ** (-total / events), skipped


def read_arpa(path: Path | str) -> ArpaLm:
    """Read an ARPA file, gzipped if its name ends in ``.gz``.

    Raises
    ------
    Speech3Error
        Naming file and line: no ``\\data\\`` header, counts that are none or differ from what follows, a section
        missing, an n-gram line that is none or stands there twice or holds words without 1-gram, cut short, no
        n-grams, no ``<s>`` or ``</s>``.
    """
    path = Path(path)
    parser = _Parser(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as stream:
            return ArpaLm(parser.parse(stream), str(path))
    except FileNotFoundError as error:
        raise Speech3Error(f"{path}: no such language model") from error
    except UnicodeDecodeError as error:
        raise Speech3Error(f"{path}:{parser.number + 1}: not UTF-8 text ({error}); convert it with iconv") from error
    except (EOFError, OSError, zlib.error) as error:
        raise Speech3Error(
            f"{path}: cannot be read, or cut short, after line {parser.number} ({error}); copy it again"
        ) from error


class _Parser:
    def __init__(self, path: Path) -> None:
        self.path, self.number = path, 0
        self._lines: Iterator[str] = iter(())
        self._words: set[str] = set()

    def _numbered(self, stream: TextIO) -> Iterator[str]:
        for self.number, line in enumerate(stream, 1):
            if text := line.strip():
                yield text

    def _error(self, what: str) -> Speech3Error:
        return Speech3Error(f"{self.path}:{self.number}: {what}")

    def _next(self, wanted: str) -> str:
        line = next(self._lines, None)
        if line is None:
            raise self._error(
                f"the file ends where {wanted} should stand; it was cut short or is no ARPA file: copy or make it again"
            )
        return line

    def parse(self, stream: TextIO) -> tuple[Ngrams, ...]:
        self._lines = self._numbered(stream)
        while self._next("the \\data\\ header") != "\\data\\":
            pass
        counts, line = self._header()
        orders = []
        for order, count in enumerate(counts, 1):
            if line != f"\\{order}-grams:":
                raise self._error(
                    f"expected `\\{order}-grams:`, found `{line[:60]}`; the header promises such a section: restore it,"
                    " or mend the header"
                )
            ngrams, line = self._section(order, last=order == len(counts))
            if len(ngrams) != count:
                raise self._error(
                    f"the header promises {count} {order}-grams, here are {len(ngrams)}; mend the header, or make the"
                    " model again if lines were lost"
                )
            orders.append(ngrams)
        if line != "\\end\\":
            raise self._error(f"expected `\\end\\`, found `{line[:60]}`; the header must count all orders")
        return tuple(orders)

    def _header(self) -> tuple[list[int], str]:
        counts: list[int] = []
        while match := re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line := self._next("`\\1-grams:`")):
            if int(match[1]) != len(counts) + 1:
                raise self._error(f"expected the count of {len(counts) + 1}-grams (`ngram N=COUNT`), found `{line}`")
            counts.append(int(match[2]))
        if line.startswith("ngram"):
            raise self._error(f"no count: `{line[:60]}`; write `ngram N=COUNT` in digits")
        if not counts or not counts[0]:
            raise self._error("the header after \\data\\ counts no n-grams; write `ngram 1=COUNT` and so on")
        return counts, line

    def _section(self, order: int, last: bool) -> tuple[Ngrams, str]:
        ngrams: Ngrams = {}
        while not (line := self._next("`\\end\\`")).startswith("\\") or not line.endswith(("-grams:", "\\end\\")):
            fields = line.split()
            extra = len(fields) - order - 1
            if extra not in ((0,) if last else (0, 1)):
                tail = f"; no back-off, since the header counts no {order + 1}-grams" if last else ", back-off"
                raise self._error(
                    f"not a {order}-gram (probability, {order} words{tail}): `{line[:60]}`; mend or remove the line"
                )
            try:
                values = float(fields[0]), float(fields[-1]) if extra else 0.0
            except ValueError as error:
                raise self._error(f"not a number in `{line[:60]}`; mend or remove the line") from error
            if not values[0] <= 1e-4 or math.isnan(values[1]) or values[1] == math.inf:
                raise self._error(f"impossible log10 probability or back-off in `{line[:60]}`; mend or remove the line")
            ngram = tuple(fields[1 : order + 1])
            if ngram in ngrams:
                raise self._error(f"`{' '.join(ngram)}` stands here a second time; remove one of the lines")
            if order > 1 and not self._words.issuperset(ngram):
                strange = next(word for word in ngram if word not in self._words)
                raise self._error(f"`{strange}` of `{' '.join(ngram)}` is no 1-gram; add it there or remove the line")
            ngrams[ngram] = values
        if order == 1:
            self._words = {word for (word,) in ngrams}
            self._check_ends()
        return ngrams, line

    def _check_ends(self) -> None:
        for word in (BOS, EOS):
            if word not in self._words:
                raise self._error(
                    f"no {word} among the 1-grams before this line; the model must know where sentences start and end:"
                    f" estimate it from one sentence a line with a tool that adds {BOS} and {EOS}"
                )


def write_arpa(lm: ArpaLm, path: Path | str) -> None:
    """Write an ARPA file, gzipped if its name ends in ``.gz`` (the same bytes every time)."""
    path = Path(path)
    with atomic_path(path) as temporary, temporary.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                packed.writelines(line.encode() for line in _lines(lm))
        else:
            raw.writelines(line.encode() for line in _lines(lm))


def _lines(lm: ArpaLm) -> Iterator[str]:
    yield "\\data\\\n"
    for order, ngrams in enumerate(lm.ngrams, 1):
        yield f"ngram {order}={len(ngrams)}\n"
    for order, ngrams in enumerate(lm.ngrams, 1):
        yield f"\n\\{order}-grams:\n"
        for words, (prob, backoff) in ngrams.items():
            tail = f"\t{backoff:.7g}" if backoff and order < lm.order else ""
            yield f"{prob:.7g}\t{' '.join(words)}{tail}\n"
    yield "\n\\end\\\n"
