"""Text as word numbers in blocks of whole sentences, from files with one sentence per line or from Python sequences.

A block is int32 (T,): the words of its sentences, where each sentence ends in the number of `</s>`.
"""

import gzip
import sys
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from speech3.errors import Speech3Error
from speech3.io.progress import progress, say
from speech3.io.unicode_form import composed
from speech3.lm.ngrams import BOS, EOS, UNKNOWN

STDIN = Path("-")
Binary = IO[bytes] | gzip.GzipFile

_BLOCK_BYTES = 1 << 22
_BLOCK_SENTENCES = 1 << 14
_QUIET_SECONDS = 10.0


class Numbers(dict[str, int]):
    """Numbers of words, starting with `<s>` 0 and `</s>` 1; a new word gets the next number, or that of `<unk>`.

    Parameters
    ----------
    vocabulary
        Words that have a number, seen or not; others count as `<unk>`, which gets a number when it is first needed if
        it is not in the vocabulary. If None, every word gets a number.
    """

    def __init__(self, vocabulary: Collection[str] | None = None) -> None:
        words = (BOS, EOS, *sorted(set(vocabulary or ()) - {BOS, EOS}))
        super().__init__((word, number) for number, word in enumerate(words))
        self.closed = vocabulary is not None

    def __missing__(self, word: str) -> int:
        return self.setdefault(UNKNOWN if self.closed else word, len(self))


class Known(dict[str, int]):
    """Numbers of a model's words; other words have the number of `<unk>`, or -1 if the model has no `<unk>`."""

    def __init__(self, numbers: dict[str, int]) -> None:
        super().__init__(numbers)
        self.unknown = numbers.get(UNKNOWN, -1)

    def __missing__(self, word: str) -> int:
        return self.unknown


class Lines(NamedTuple):
    """Some whole lines of a file, the number of the first, and the (compressed) bytes read so far of all files."""

    path: Path
    text: str
    first: int
    done: int


def read_lines(paths: Sequence[Path]) -> Iterator[Lines]:
    """Read lines of text files in blocks; files ending in ``.gz`` are gzipped, and `-` is standard input.

    Raises
    ------
    Speech3Error
        A file cannot be read, is truncated or is not UTF-8 (with the line).
    """
    done = 0
    for path in paths:
        try:
            if path == STDIN:
                for block in _decoded(path, sys.stdin.buffer):
                    yield Lines(path, *block, done)
                continue
            with path.open("rb") as raw:
                place = raw.tell if raw.seekable() else (lambda: 0)  # in a pipe, the progress is not known
                for block in _decoded(path, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw):
                    yield Lines(path, *block, done + place())
                done += place()
        except (EOFError, OSError, zlib.error) as error:
            raise Speech3Error(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def _decoded(path: Path, stream: Binary) -> Iterator[tuple[str, int]]:
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
    try:
        return composed(content.decode("utf-8-sig" if first == 1 else "utf-8"), path)
    except UnicodeDecodeError as error:
        number = first + content.count(b"\n", 0, error.start)
        raise Speech3Error(f"{path}:{number}: not UTF-8 text ({error}); convert it, for instance with iconv") from error


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


def read_tokens(paths: Sequence[Path], numbers: dict[str, int]) -> Iterator[np.ndarray]:
    """Read text files with one sentence per line, in blocks; lines without words are skipped.

    Raises
    ------
    Speech3Error
        What `read_lines` raises, or a line contains `<s>` or `</s>`.
    """
    for lines in shown(read_lines(paths), paths, "reading text"):
        if BOS in lines.text or EOS in lines.text:
            _refuse_ends(lines)
        words = lines.text.replace("\n", f" {EOS} ").split()
        if not lines.text.endswith("\n"):
            words.append(EOS)
        word_T = np.fromiter(map(numbers.__getitem__, words), np.int32, len(words))
        end_T = word_T == numbers[EOS]
        empty_T = end_T & np.concatenate([[True], end_T[:-1]])
        if len(word_T := word_T[~empty_T]):
            yield word_T


def _refuse_ends(lines: Lines) -> None:
    for number, line in enumerate(lines.text.split("\n"), lines.first):
        found = {BOS, EOS}.intersection(line.split())
        if found:
            raise Speech3Error(
                f"{lines.path}:{number}: {' and '.join(sorted(found))} in the text; give the words alone, one sentence"
                f" per line: sed 's:</\\?s>::g' {lines.path}"
            )


def number_sentences(sentences: Iterable[Sequence[str]], numbers: dict[str, int], source: str) -> Iterator[np.ndarray]:
    """Number the words of sentences, in blocks.

    Raises
    ------
    Speech3Error
        A sentence contains `<s>` or `</s>`; `source` is the name of the text in the message.
    """
    remaining = iter(sentences)
    while some := list(islice(remaining, _BLOCK_SENTENCES)):
        words: list[int] = []
        for sentence in some:
            if BOS in sentence or EOS in sentence:
                raise Speech3Error(f"{source}: {BOS} or {EOS} inside a sentence; give the words alone")
            words += map(numbers.__getitem__, sentence)
            words.append(numbers[EOS])
        yield np.array(words, np.int32)
