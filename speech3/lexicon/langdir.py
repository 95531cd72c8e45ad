"""A user's language resources: ``lang/`` with ``lexicon.txt`` or ``lexiconp.txt``, ``*.arpa[.gz]``, ``text``.

The text may be gzipped, or be called ``lm_train.txt``. The directory may come from Kaldi's prepare_lang.sh: then the
lexicon is ``phones/align_lexicon.txt``.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import NamedTuple

from speech3.errors import Speech3Error
from speech3.io.unicode_form import composed
from speech3.lexicon.pronounce import Phones

NOT_WORDS = frozenset({"<s>", "</s>", "<unk>", "<UNK>", "<eps>"})
_ALIGN_LEXICON = "align_lexicon.txt"
_TEXTS = ("text", "text.gz", "lm_train.txt", "lm_train.txt.gz")
_NO_WORD = re.compile(r"[<\[({].*[>\])}]|![A-Z_]+")  # <noise>, [laughter], !SIL; but "!" may be a click: !xoo
_KNOWN = "lexicon.txt or lexiconp.txt (word phone phone ...), one *.arpa or *.arpa.gz, text (one sentence a line)"


@dataclass(frozen=True)
class LangDir:
    """Files of ``lang/``; None for those that do not exist."""

    lexicon: Path | None
    arpa: Path | None
    text: Path | None


def find(directory: Path) -> LangDir:
    """Find the files of ``lang/``; there are none if there is no such directory.

    Raises
    ------
    Speech3Error
        The directory contains none of the files, or several language models.
    """
    if not directory.is_dir():
        return LangDir(None, None, None)
    names = ("lexiconp.txt", "lexicon.txt", f"phones/{_ALIGN_LEXICON}")
    lexicons = [directory / name for name in names if (directory / name).is_file()]
    arpas = sorted(path for path in directory.iterdir() if path.name.endswith((".arpa", ".arpa.gz")))
    text = next((directory / name for name in _TEXTS if (directory / name).is_file()), None)
    if len(arpas) > 1:
        raise Speech3Error(
            f"{directory}: contains {len(arpas)} language models ({', '.join(path.name for path in arpas)}); keep one"
        )
    if not (lexicons or arpas or text):
        kaldi = f"; this is a lang directory of Kaldi without phones/{_ALIGN_LEXICON}: add its lexicon.txt"
        hint = kaldi if (directory / "phones.txt").exists() else "; or remove the directory"
        raise Speech3Error(f"{directory}: contains none of {_KNOWN}{hint}")
    return LangDir(lexicons[0] if lexicons else None, arpas[0] if arpas else None, text)


def is_word(entry: str) -> bool:
    """Is an entry of a lexicon a word, not a noise or a silence?"""
    return entry not in NOT_WORDS and not _NO_WORD.fullmatch(entry)


def read_utf8(path: Path, otherwise: str = "") -> str:
    """Text of a file, gzipped if its name ends in ``.gz``.

    Parameters
    ----------
    otherwise
        The encoding of files that are not UTF-8; none: they are errors.

    Raises
    ------
    Speech3Error
        It is not UTF-8 or cannot be read.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, OSError, zlib.error) as error:
        raise Speech3Error(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if otherwise:
            return content.decode(otherwise)
        raise Speech3Error(f"{path}: not UTF-8 text ({error}); convert it, for instance with iconv") from error


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a file that `read_utf8` could read, one after another; raises what it raises."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8-sig")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8-sig") as stream
        ):
            for line in stream:
                yield composed(line, path)
    except UnicodeDecodeError as error:
        raise Speech3Error(f"{path}: not UTF-8 text ({error}); convert it, for instance with iconv") from error
    except (EOFError, OSError, zlib.error) as error:
        raise Speech3Error(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def arpa_words(path: Path) -> list[str]:
    """The words of an ARPA file, without symbols such as `<s>`; the file is read to the end of its 1-grams, unchecked.

    Raises
    ------
    Speech3Error
        As `read_utf8`.
    """
    from_unigrams = dropwhile(lambda line: line.strip() != "\\1-grams:", text_lines(path))
    unigrams = takewhile(lambda line: not line.startswith("\\"), islice(from_unigrams, 1, None))
    return [row[1] for row in map(str.split, unigrams) if len(row) > 1 and row[1] not in NOT_WORDS]


def read_lexicon_text(path: Path) -> str:
    """Lines ``word phone ...`` of a lexicon; word positions and silences of Kaldi's align_lexicon.txt are removed.

    Words are composed (NFC), phones are as they are written.

    Raises
    ------
    Speech3Error
        As `read_utf8`.
    """
    text = re.sub(r"(?m)^[^\S\n]*\S+", lambda word: composed(word[0], path), read_utf8(path))
    if path.name != _ALIGN_LEXICON:
        return text
    positions = (path.parent / "word_boundary.txt").exists()
    silence = path.parent / "optional_silence.txt"
    silences = read_utf8(silence).split() if silence.exists() else []
    lines = []
    for word, _, *phones in (line.split() for line in text.splitlines() if len(line.split()) > 2):
        bare = [re.sub(r"_[BIES]$", "", phone) if positions else phone for phone in phones]
        if word != "<eps>" and bare != silences:
            lines.append(" ".join([word, *bare]))
    return "\n".join(lines)


class LexiconLine(NamedTuple):
    """A line of a lexicon: its number in the file, the word, the numbers after it (none, one or four), the phones."""

    number: int
    word: str
    values: tuple[float, ...]
    phones: Phones


def lexicon_lines(text: str, path: Path) -> Iterator[LexiconLine]:
    """Lines ``word phone phone ...`` (Kaldi's lexicon.txt) or ``word prob phone phone ...`` (lexiconp.txt).

    A file whose name ends in ``lexiconp.txt`` has one number after each word, one whose name ends in ``_silprob.txt``
    four. In any other, what looks like a probability is one, except a 1 where no line has another probability and some
    have none: that is a phone in SAMPA.

    Raises
    ------
    Speech3Error
        A word has no phones or lacks its numbers, or there is no word.
    """
    fixed = 4 if path.name.endswith("_silprob.txt") else 1 if path.name.endswith("lexiconp.txt") else None
    sampa = fixed is None and _has_phone_1(text)
    words = 0
    for number, line in enumerate(text.splitlines(), 1):
        word, *rest = line.split() or [""]
        if not word:
            continue
        word = composed(word, path)  # only the word: models have their phones as they were written
        words += 1
        count = int(len(rest) > 1 and not sampa and _is_probability(rest[0])) if fixed is None else fixed
        try:
            values = tuple(float(field) for field in rest[:count])
        except ValueError:
            values = ()
        if fixed == 1 and not (values and 0 < values[0] <= 1):
            raise Speech3Error(
                f"{path}:{number}: {word} needs a probability above 0 and up to 1 before its phones, as {path.name} has"
            )
        if len(values) < count:
            raise Speech3Error(
                f"{path}:{number}: {word} needs four numbers before its phones: its probability, that of silence after"
                " it, and the factors for a preceding silence and a preceding word"
            )
        if not rest[count:]:
            raise Speech3Error(f"{path}:{number}: {word} has no phones; add its pronunciation or remove the line")
        yield LexiconLine(number, word, values, tuple(rest[count:]))
    if not words:
        raise Speech3Error(f"{path}: the lexicon is empty")


def _has_phone_1(text: str) -> bool:
    firsts = [fields[1] for line in text.splitlines() if len(fields := line.split()) > 2]
    probabilities = [field for field in firsts if _is_probability(field)]
    return len(probabilities) < len(firsts) and set(probabilities) == {"1"}


def _is_probability(field: str) -> bool:
    try:
        return field[0].isdigit() and 0 < float(field) <= 1
    except ValueError:
        return False


def entries(text: str, path: Path) -> dict[str, list[Phones]]:
    """Pronunciations of each word of a lexicon; probabilities of lexiconp.txt are ignored.

    Raises
    ------
    Speech3Error
        As `lexicon_lines`.
    """
    table: dict[str, list[Phones]] = {}
    for line in lexicon_lines(text, path):
        table.setdefault(line.word, []).append(line.phones)
    return table
