"""Text for language models: files with one sentence per line, or Kaldi's `text`, in blocks of whole lines.

In Kaldi's `text` each line begins with the id of its utterance, which is not a word.
"""

import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

from speech3.corpus.symbols import SYMBOLS, symbols_in
from speech3.corpus.tables import Fault, read_table
from speech3.errors import Speech3Error
from speech3.io.progress import progress, say
from speech3.io.text import UNREADABLE, has_nul, not_utf8, open_text, text_stream
from speech3.io.unicode_form import composed

STDIN = Path("-")

_BLOCK_BYTES = 1 << 22
_QUIET_SECONDS = 10.0
_JUDGED = 2000  # lines by which a file is recognised as Kaldi's text
_MANY_LINES = 20  # so many lines of plain text would not all begin with different words
_IDS = ("utt2spk", "segments", "wav.scp")  # files of a data directory that list the ids of its text
_FIRST_FIELD = re.compile(r"^[^\S\n]*\S+", re.MULTILINE)
_WRITTEN = tuple(sorted(SYMBOLS | {symbol.upper() for symbol in SYMBOLS}))


class Lines(NamedTuple):
    """Some whole lines of a file, the number of the first, and the (compressed) bytes read so far of all files."""

    path: Path
    text: str
    first: int
    done: int


def read_lines(paths: Sequence[Path]) -> Iterator[Lines]:
    """Read the lines of text files in blocks, as they are; `-` is standard input.

    Raises
    ------
    Speech3Error
        A file cannot be read, is truncated or is not text (with the line).
    """
    done = 0
    for path in paths:
        try:
            if path == STDIN:
                for block in _decoded(path, text_stream(sys.stdin.buffer, path)):
                    yield Lines(path, *block, done)
                continue
            with open_text(path) as (stream, place):
                for block in _decoded(path, stream):
                    yield Lines(path, *block, done + place())
                done += place()
        except UNREADABLE as error:
            raise Speech3Error(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def _decoded(path: Path, stream: IO[bytes]) -> Iterator[tuple[str, int]]:
    rest, first = b"", 1
    while content := stream.read(_BLOCK_BYTES):
        end = content.rfind(b"\n") + 1
        if end:
            yield _text(path, rest + content[:end], first), first
            first += (rest + content[:end]).count(b"\n")
            rest = b""
        rest += content[end:]
    if rest:
        yield _text(path, rest, first), first


def _text(path: Path, content: bytes, first: int) -> str:
    if b"\0" in content:
        raise has_nul(path, content, first)
    try:
        # Byte order marks remain where files were joined.
        return composed(content.decode("utf-8").replace("\ufeff", ""), path)
    except UnicodeDecodeError as error:
        raise not_utf8(path, content, error, first) from error


def read_sentences(paths: Sequence[Path], forbidden: Iterable[str] = ()) -> Iterator[Lines]:
    """Read sentences in blocks of lines; the utterance ids of Kaldi's `text` are removed, which is said once.

    Parameters
    ----------
    forbidden
        Further words that may not occur, besides `SYMBOLS`.

    Raises
    ------
    Speech3Error
        What `read_lines` raises, or a line contains a symbol.
    """
    forbidden, with_ids, file = frozenset(forbidden), False, None
    for lines in read_lines(paths):
        if lines.first == 1 or lines.path != file:
            file, with_ids = lines.path, begin_with_ids(_first_lines(lines.text), lines.path)
        if with_ids:
            lines = lines._replace(text=_FIRST_FIELD.sub("", lines.text))
        if any(symbol in lines.text for symbol in (*_WRITTEN, *forbidden)):
            _refuse_symbols(lines, forbidden)
        yield lines


def sentences(path: Path, forbidden: Iterable[str] = ()) -> Iterator[list[str]]:
    """The words of each sentence of a file, without empty ones; raises what `read_sentences` raises."""
    for lines in read_sentences([path], forbidden):
        yield from (words for line in lines.text.split("\n") if (words := line.split()))


def _first_lines(text: str) -> list[str]:
    lines = text.split("\n", _JUDGED)[:_JUDGED]
    return lines if lines[-1].strip() else lines[:-1]


def _refuse_symbols(lines: Lines, forbidden: frozenset[str]) -> None:
    for number, line in enumerate(lines.text.split("\n"), lines.first):
        words = line.split()
        found = sorted({*symbols_in(words), *forbidden.intersection(words)})
        if found:
            shown = "|".join(found)
            raise Speech3Error(
                f"{lines.path}:{number}: {' and '.join(found)} in the text, which nobody can say; give the words alone,"
                f" one sentence per line: sed -E 's:(^| )({shown})( |$): :g' {lines.path}"
            )


def begin_with_ids(lines: Sequence[str], path: Path) -> bool:
    """Does each line of a file begin with an utterance id, as in Kaldi's `text`? If so, that is said.

    The ids are those of the data directory in which the file is, or differ from line to line, have digits or
    underscores, and are not among the other words. Outside a data directory, a file with an empty line is plain text.
    """
    rows = [line.split(maxsplit=1) for line in lines]
    ids = [row[0] for row in rows if row]
    all_differ = len(rows) == len(ids) == len(set(ids))
    found = bool(ids) and (_listed_beside(ids, path) or (all_differ and _are_ids(ids, rows, lines)))
    if found:
        _say_ids(path, ids[0])
    return found


def _listed_beside(ids: Sequence[str], path: Path) -> bool:
    """Does the data directory list most of the ids?"""
    if path == STDIN:
        return False
    for name in _IDS:
        ignored: list[Fault] = []
        if table := read_table(path.parent / name, ignored):
            return 2 * sum(key in table.entries for key in ids) > len(ids)
    return False


def _are_ids(ids: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str]) -> bool:
    # More is asked than of references and hypotheses, whose ids must agree: lists of commands are not Kaldi's text.
    if len(ids) < 2 or 2 * sum(len(row) > 1 for row in rows) < len(rows) or not looks_like_ids(ids, lines):
        return False
    numbered = sum(bool(re.search(r"[\d_]", name)) for name in ids)
    return numbered >= 0.9 * len(ids) or (len(ids) >= _MANY_LINES and all("-" in name for name in ids))


def looks_like_ids(ids: Sequence[str], lines: Sequence[str]) -> bool:
    """Are the first fields of lines ids, and not the first words of sentences?"""
    # Ids contain digits or underscores, are sorted or are many; first words of sentences also occur within sentences.
    elsewhere = {word for line in lines for word in line.split()[1:]}
    if 2 * sum(name in elsewhere for name in ids) > len(ids):
        return False
    if 2 * sum(bool(re.search(r"[\d_-]", name)) for name in ids) >= len(ids) or len(ids) >= _MANY_LINES:
        return True
    return len(ids) > 1 and list(ids) == sorted(ids) and len({len(name) for name in ids}) == 1


@lru_cache  # a text may be read several times
def _say_ids(path: Path, first: str) -> None:
    say(f"{path}: each line begins with an utterance id ({first}, ...), as in Kaldi's text; the ids are left out")


def shown(blocks: Iterable[Lines], paths: Sequence[Path], label: str) -> Iterator[Lines]:
    """Pass blocks of lines through and show progress: megabytes of files, or characters of standard input."""
    if STDIN not in paths:
        total = sum(path.stat().st_size for path in paths if path.exists())
        yield from progress(blocks, total >> 20, f"{label}, MB", place=lambda lines: (lines.done >> 20, ""))
        return
    size, following = 0, time.monotonic() + _QUIET_SECONDS
    for lines in blocks:
        yield lines
        size += len(lines.text)
        if time.monotonic() >= following:
            say(f"{label}: {size / 1e6:.0f} million characters")
            following = time.monotonic() + _QUIET_SECONDS
