"""Reading and writing ARPA files of n-gram models (Doug Paul's format, as SRILM and KenLM write it).

Plain lines, which are nearly all of them, are parsed by compiled code: those that consist of a number, words of the
vocabulary and perhaps another number, separated by ASCII spaces; numbers have only digits and at most one point, after
a minus sign if negative. Other lines, and their errors, are left to Python.

Axes: C bytes, V words, S slots of a hash table (a power of two, FNV-1a), R n-grams of one order, N orders.
"""

import gzip
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from speech3.errors import FormatError, MissingError, Speech3Error, counted
from speech3.io import HMM_FILE
from speech3.language.ngrams import BOS, EOS, ArpaLm, RepeatedNgramError, Rows, from_rows
from speech3.runtime import UNREADABLE, atomic_path, composed, has_nul, jit, open_text, progress

_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_HEAD = 1 << 16  # bytes within which a file begins
_TENS = 10.0 ** np.arange(19)
_NEWLINE, _SPACE, _MINUS, _POINT, _ZERO, _NINE = np.frombuffer(b"\n -.09", np.uint8).tolist()
_PIECE = 1 << 22  # bytes that are read at a time
_BLOCK = 1 << 16  # lines that are written at a time, or read one by one before they become arrays
_Row = tuple[list[int], float, float, int]  # an n-gram as in `Parsed`
_PACKED = 6  # gzip's level: the highest takes three times as long and saves a twentieth
# What a directory is that has one of these files, for those who pass one in place of an ARPA file.
_DIRECTORIES = {HMM_FILE: "an acoustic model", "neural.safetensors": "a neural language model", "text": "data"}


class ArpaVocabulary(NamedTuple):
    """The vocabulary: the bytes of its words joined together, where each word ends (0 first), and a hash table."""

    text_C: np.ndarray
    ends_V: np.ndarray
    slots_S: np.ndarray


class Parsed(NamedTuple):
    """Memory for the n-grams of a piece of text: word numbers, log10 probability and back-off, line number."""

    words_RN: np.ndarray
    prob_R: np.ndarray
    backoff_R: np.ndarray
    line_R: np.ndarray


def words(vocabulary: Iterable[str]) -> ArpaVocabulary:
    encoded = [word.encode() for word in vocabulary]
    text_C = np.frombuffer(b"".join(encoded), np.uint8)
    ends_V = np.concatenate([[0], np.cumsum([len(word) for word in encoded])])
    slots_S = np.full(1 << (2 * len(encoded)).bit_length(), -1, np.int32)
    _fill(text_C, ends_V, slots_S)
    return ArpaVocabulary(text_C, ends_V, slots_S)


@jit
def _slot(text_C, begin, end, slots):  # type: ignore[no-untyped-def]
    code = _FNV_OFFSET
    for i in range(begin, end):
        code = (code ^ np.uint64(text_C[i])) * _FNV_PRIME
    return np.int64((code ^ (code >> np.uint64(32))) & np.uint64(slots - 1))


@jit
def _fill(text_C, ends_V, slots_S):  # type: ignore[no-untyped-def]
    for word in range(len(ends_V) - 1):
        slot = _slot(text_C, ends_V[word], ends_V[word + 1], len(slots_S))
        while slots_S[slot] >= 0:
            slot = (slot + 1) & (len(slots_S) - 1)
        slots_S[slot] = word


@jit
def _number_of(table, text_C, begin, end):  # type: ignore[no-untyped-def]
    slot = _slot(text_C, begin, end, len(table.slots_S))
    while True:
        word = table.slots_S[slot]
        if word < 0:
            return -1
        # The same hash is not yet the same word: compare the bytes.
        start = table.ends_V[word]
        if table.ends_V[word + 1] - start == end - begin:
            i = 0
            while i < end - begin and table.text_C[start + i] == text_C[begin + i]:
                i += 1
            if i == end - begin:
                return word
        slot = (slot + 1) & (len(table.slots_S) - 1)


@jit
def _value(text_C, begin, end):  # type: ignore[no-untyped-def]
    """The value of the number in text_C[begin:end], NaN if it is not a plain one."""
    # All digits as one integer, then the power of ten: both are exact in float64, so is the nearest value.
    at = begin + (text_C[begin] == _MINUS)
    whole, digits, behind, point = 0, 0, 0, False
    for i in range(at, end):
        byte = text_C[i]
        if byte == _POINT and not point:
            point = True
        elif _ZERO <= byte <= _NINE:
            digits += 1
            whole = whole * 10 + (byte - _ZERO)
            behind += point
        else:
            return np.nan
    if not 0 < digits <= 18:
        return np.nan
    value = whole / _TENS[behind]
    return -value if at > begin else value


@jit
def parse(text_C, at, line, table, last, found):  # type: ignore[no-untyped-def]
    """Read plain lines from `at` to the first line that is not plain or to the end of the text, which has whole lines.

    Returns the number of n-grams found, and the position and number (less one) of the first line that was not read.
    `last`: the n-grams are of the highest order and have no back-off weights. Lines with impossible probabilities are
    not plain.
    """
    rows, order = 0, found.words_RN.shape[1]
    while at < len(text_C):
        field, place = 0, at
        backoff = 0.0
        while True:
            # The next field of the line; after the last one, `place` is at the line's end.
            while place < len(text_C) and text_C[place] <= _SPACE and text_C[place] != _NEWLINE:
                place += 1
            if place == len(text_C) or text_C[place] == _NEWLINE:
                break
            begin = place
            while place < len(text_C) and text_C[place] > _SPACE:
                place += 1
            # First the probability, then the words, then perhaps the back-off weight.
            if field == 0:
                value = _value(text_C, begin, place)
                if not value <= 1e-4:
                    return rows, at, line
                found.prob_R[rows] = value
            elif field <= order:
                word = _number_of(table, text_C, begin, place)
                if word < 0:
                    return rows, at, line
                found.words_RN[rows, field - 1] = word
            else:
                backoff = _value(text_C, begin, place)
                if last or field > order + 1 or np.isnan(backoff):
                    return rows, at, line
            field += 1
        if 0 < field <= order:
            return rows, at, line
        line += 1
        at = min(place + 1, len(text_C))
        if field:
            found.backoff_R[rows] = backoff
            found.line_R[rows] = line
            rows += 1
    return rows, at, line


def read_arpa(path: Path | str) -> ArpaLm:
    """Read an ARPA file, compressed or not.

    Raises `Speech3Error`: with file and line: no ``\\data\\`` header, invalid counts or counts that differ from the
    sections, a missing section, an n-gram line that is malformed, repeated or has words that are not 1-grams, a
    truncated file, no n-grams, no ``<s>`` or ``</s>``.
    """
    path = Path(path)
    if path.is_dir():
        what = next((what for name, what in _DIRECTORIES.items() if (path / name).exists()), "a directory")
        raise FormatError(f"{path}: is {what}; an ARPA file is needed here")
    parser = None
    try:
        with open_text(path) as (stream, _):
            parser = _Parser(path, stream)
            return parser.parse()
    except FileNotFoundError as error:
        raise MissingError(f"{path}: no such language model") from error
    except UNREADABLE as error:
        place = f", or cut short, after line {parser.number}" if parser else ""
        raise FormatError(f"{path}: cannot be read{place} ({error}); copy it again") from error


class _Parser:
    """Reads a file in pieces of whole lines; `number` is the number of the last line read."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path, self.number = path, 0
        self._stream = stream
        self._text, self._at, self._rest = b"", 0, b""
        self._numbers: dict[str, int] = {}

    def _error(self, what: str) -> Speech3Error:
        return FormatError(f"{self.path}:{self.number}: {what}")

    def _more(self) -> bool:
        while self._at == len(self._text):
            read = self._stream.read(_PIECE)
            if not read:
                self._text, self._rest, self._at = self._composed(self._rest), b"", 0
                return bool(self._text)
            whole, newline, rest = (self._rest + read).rpartition(b"\n")
            self._text, self._rest, self._at = self._composed(whole + newline), rest, 0
        return True

    def _composed(self, piece: bytes) -> bytes:
        if piece.isascii():
            return piece
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            return piece  # reported with its line when that is read
        return piece if (changed := composed(text, self.path)) is text else changed.encode()

    def _line(self) -> str | None:
        while self._more():
            end = self._text.find(b"\n", self._at) + 1 or len(self._text)
            line, self._at = self._text[self._at : end], end
            self.number += 1
            if b"\0" in line:
                raise has_nul(self.path, line, self.number)
            try:
                if text := line.decode().strip():
                    return text
            except UnicodeDecodeError as error:
                raise self._error(f"not UTF-8 text ({error}); convert it with iconv") from error
        return None

    def _next(self, wanted: str) -> str:
        line = self._line()
        if line is None:
            raise self._error(
                f"the file ends where {wanted} should be; it is truncated or not an ARPA file: copy or make it again"
            )
        return line

    def parse(self) -> ArpaLm:
        while self._next("the \\data\\ header") != "\\data\\":
            pass
        counts, line = self._header()
        orders, lines = [], []
        for order, count in enumerate(counts, 1):
            if line != f"\\{order}-grams:":
                raise self._error(
                    f"expected `\\{order}-grams:`, found `{line[:60]}`; the header lists such a section: restore it,"
                    " or correct the header"
                )
            rows, line_R, line = self._section(order, count, last=order == len(counts))
            if len(line_R) != count:
                raise self._error(
                    f"the header lists {count} {order}-grams, but there are {len(line_R)}; correct the header, or make"
                    " the model again if lines were lost"
                )
            orders.append(rows)
            lines.append(line_R)
        if line != "\\end\\":
            raise self._error(f"expected `\\end\\`, found `{line[:60]}`; the header must count all orders")
        try:
            return from_rows(tuple(self._numbers), orders, str(self.path))
        except RepeatedNgramError as error:
            vocabulary, words_N = list(self._numbers), orders[error.order - 1].words_RN[error.row]
            self.number = int(lines[error.order - 1][error.row])
            raise self._repeated(vocabulary[word] for word in words_N) from None

    def _repeated(self, ngram: Iterable[str]) -> Speech3Error:
        return self._error(f"`{' '.join(ngram)}` occurs a second time; remove one of the lines")

    def _header(self) -> tuple[list[int], str]:
        counts: list[int] = []
        while match := re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line := self._next("`\\1-grams:`")):
            if int(match[1]) != len(counts) + 1:
                raise self._error(f"expected the count of {len(counts) + 1}-grams (`ngram N=COUNT`), found `{line}`")
            counts.append(int(match[2]))
        if line.startswith("ngram"):
            raise self._error(f"not a count: `{line[:60]}`; write `ngram N=COUNT` in digits")
        if not counts or not counts[0]:
            raise self._error("the header after \\data\\ counts no n-grams; write `ngram 1=COUNT` and so on")
        return counts, line

    def _section(self, order: int, count: int, last: bool) -> tuple[Rows, np.ndarray, str]:
        pieces = [Parsed(np.zeros((0, order), np.int32), np.zeros(0), np.zeros(0), np.zeros(0, np.int64))]
        table, end, found = words(self._numbers) if order > 1 else None, "", 0

        def read() -> Iterator[int]:
            nonlocal end, found
            rows: list[_Row] = []
            while not end:
                if table:
                    pieces.append(self._plain(order, last, table))
                    found += len(pieces[-1].prob_R)
                line = self._next("`\\end\\`")
                if line.startswith("\\") and line.endswith(("-grams:", "\\end\\")):
                    end = line
                else:
                    rows.append(self._row(line, order, last))
                if table or end or len(rows) == _BLOCK:
                    if rows:
                        words_RN, *columns = zip(*rows, strict=True)
                        pieces.append(Parsed(np.array(words_RN, np.int32), *map(np.array, columns)))
                    found, rows = found + len(rows), []
                    yield found

        for _ in progress(read(), count, f"{self.path.name}: {order}-grams", place=lambda found: (found, "")):
            pass
        if order == 1:
            self._check_ends()
        *columns, line_R = map(np.concatenate, zip(*pieces, strict=True))
        return Rows(*columns), line_R, end

    def _plain(self, order: int, last: bool, table: ArpaVocabulary) -> Parsed:
        """The n-grams of the plain lines that follow (see `parse`), up to the end of the piece."""
        self._more()
        text_C = np.frombuffer(self._text, np.uint8)
        room = self._text.count(b"\n", self._at) + 1
        found = Parsed(np.empty((room, order), np.int32), np.empty(room), np.empty(room), np.empty(room, np.int64))
        rows, self._at, self.number = parse(text_C, self._at, self.number, table, last, found)
        return Parsed(*(column[:rows].copy() for column in found))

    def _row(self, line: str, order: int, last: bool) -> _Row:
        fields, text = line.split(), line[:60]
        extra = len(fields) - order - 1
        if extra not in ((0,) if last else (0, 1)):
            tail = f"; no back-off, since the header counts no {order + 1}-grams" if last else ", back-off"
            raise self._error(
                f"not a {order}-gram (probability, {counted(order, 'word')}{tail}): `{text}`; correct or"
                " remove the line"
            )
        try:
            prob, backoff = float(fields[0]), float(fields[-1]) if extra else 0.0
        except ValueError as error:
            raise self._error(f"not a number in `{text}`; correct or remove the line") from error
        if not prob <= 1e-4 or math.isnan(backoff) or backoff == math.inf:
            raise self._error(f"impossible log10 probability or back-off in `{text}`; correct or remove the line")
        ngram = fields[1 : order + 1]
        if order == 1:
            if ngram[0] in self._numbers:
                raise self._repeated(ngram)
            self._numbers[ngram[0]] = len(self._numbers)
        for word in ngram:
            if word not in self._numbers:
                raise self._error(f"`{word}` of `{' '.join(ngram)}` is not a 1-gram; add it there or remove the line")
        return [self._numbers[word] for word in ngram], prob, backoff, self.number

    def _check_ends(self) -> None:
        for word in (BOS, EOS):
            if word not in self._numbers:
                raise self._error(
                    f"no {word} among the 1-grams before this line; the model must know where sentences start and end:"
                    f" estimate it from one sentence a line with a tool that adds {BOS} and {EOS}"
                )


def looks_like_arpa(path: Path) -> bool:
    """Whether a file, compressed or not, begins as an ARPA file does."""
    try:
        with open_text(path) as (stream, _):
            return b"\\data\\" in stream.read(_HEAD)
    except (Speech3Error, *UNREADABLE):
        return False


def write_arpa(lm: ArpaLm, path: Path | str) -> None:
    """Write an ARPA file, gzipped if its name ends in ``.gz`` (always to the same bytes)."""
    sizes = np.diff(lm.starts_N)[1:].tolist()
    write_rows(path, lm.vocabulary, sizes, ((lm.rows(order),) for order in range(1, lm.order + 1)))


def write_rows(
    path: Path | str, vocabulary: Sequence[str], sizes: Sequence[int], orders: Iterable[Iterable[Rows]]
) -> None:
    """Write an ARPA file of n-grams, read piece by piece for each order; `sizes` are the numbers of each order."""
    path = Path(path)
    with atomic_path(path) as temporary, temporary.open("wb") as raw:
        lines = _lines(vocabulary, sizes, orders)
        shown = progress(lines, sum(-(-size // _BLOCK) for size in sizes), f"writing {path.name}: blocks")
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0, compresslevel=_PACKED) as packed:
                packed.writelines(line.encode() for line in shown)
        else:
            raw.writelines(line.encode() for line in shown)


def _lines(vocabulary: Sequence[str], sizes: Sequence[int], orders: Iterable[Iterable[Rows]]) -> Iterator[str]:
    yield "\\data\\\n" + "".join(f"ngram {order}={size}\n" for order, size in enumerate(sizes, 1))
    for order, pieces in enumerate(orders, 1):
        yield f"\n\\{order}-grams:\n"
        for piece in pieces:
            for begin in range(0, len(piece.prob_R), _BLOCK):
                yield _block(vocabulary, Rows(*(column[begin : begin + _BLOCK] for column in piece)))
    yield "\n\\end\\\n"


def _block(vocabulary: Sequence[str], rows: Rows) -> str:
    columns = ([vocabulary[number] for number in column] for column in rows.words_RN.T.tolist())
    names = map(" ".join, zip(*columns, strict=True))
    lines = zip(rows.prob_R.tolist(), names, rows.backoff_R.tolist(), strict=True)
    return "".join(
        [f"{prob:.7g}\t{name}" + (f"\t{backoff:.7g}\n" if backoff else "\n") for prob, name, backoff in lines]
    )
