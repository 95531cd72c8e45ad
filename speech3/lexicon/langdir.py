"""A user's language resources: ``lang/`` with ``lexicon.txt`` or ``lexiconp.txt``, ``*.arpa``, ``text``.

The text may be called ``lm_train.txt``; it and the model may be compressed. The directory may come from Kaldi's
prepare_lang.sh: then the lexicon is ``phones/align_lexicon.txt``.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import NamedTuple

from speech3.corpus.paths import matching
from speech3.corpus.symbols import SYMBOLS
from speech3.errors import Speech3Error
from speech3.io.text import UNREADABLE, has_nul, not_utf8, open_text, read_utf8
from speech3.io.unicode_form import composed
from speech3.lexicon.pronounce import Phones
from speech3.lexicon.sphinx import without_variant

NOT_WORDS = frozenset({"<s>", "</s>", "<unk>", "<UNK>", "<eps>"})
NOISES = frozenset({"SPN", "NSN", "LAU", "spn", "nsn"})  # spoken noise, other noise, laughter in Kaldi's recipes
_ALIGN_LEXICON = "align_lexicon.txt"
_PACKED = ("", ".gz", ".bz2", ".xz")  # endings of names; how a file is compressed is read from the file itself
_TEXTS = tuple(f"{name}{packed}" for name in ("text", "lm_train.txt") for packed in _PACKED)
_NO_WORD = re.compile(r"[<\[({].*[>\])}]|![A-Z_]+")  # <noise>, [laughter], !SIL; but "!" may be a click: !xoo
_NUMBER = re.compile(r"(\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
# A single digit is a phone in SAMPA (2, 9); a number may carry the position of a phone in the word (1.0_I).
_NO_PHONE = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d\d+|\d(?=e[-+]?\d))(e[-+]?\d+)?(_[BIES])?", re.IGNORECASE)
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
    endings = tuple(f".arpa{packed}" for packed in _PACKED)
    arpas = [path for path in matching(directory, "*") if path.name.endswith(endings)]
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


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a file that `read_utf8` could read, one after another; raises what it raises."""
    number = 1
    try:
        with open_text(path) as (stream, _):
            for number, line in enumerate(stream, 1):
                if b"\0" in line:
                    raise has_nul(path, line, number)
                yield composed(line.decode("utf-8"), path)
    except UnicodeDecodeError as error:
        raise not_utf8(path, b"", error, number) from error
    except UNREADABLE as error:
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


def listed_phones(lexicon: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The phones that Kaldi's files beside a lexicon list as silences, and those that they list as speech.

    The files are ``silence_phones.txt`` and ``nonsilence_phones.txt`` of a dictionary, ``silence.txt`` and
    ``nonsilence.txt`` in ``phones/`` of a lang directory. Word positions are removed where `read_lexicon_text` does so.
    """
    compiled = lexicon.name == _ALIGN_LEXICON
    names = ("silence.txt", "nonsilence.txt") if compiled else ("silence_phones.txt", "nonsilence_phones.txt")
    positions = compiled and (lexicon.parent / "word_boundary.txt").exists()

    def phones(path: Path) -> frozenset[str]:
        found = read_utf8(path).split() if path.is_file() else []
        return frozenset(re.sub(r"_[BIES]$", "", phone) if positions else phone for phone in found)

    silent, spoken = (phones(lexicon.parent / name) for name in names)
    return silent, spoken


class LexiconLine(NamedTuple):
    """A line of a lexicon: its number in the file, the word, the numbers after it (none, one or four), the phones."""

    number: int
    word: str
    values: tuple[float, ...]
    phones: Phones


def lexicon_rows(text: str) -> list[tuple[int, list[str]]]:
    """The fields of each line of a lexicon with its number, the word first; not blank lines and comments.

    Comments as in CMUdict: lines that begin with ``;;`` or ``#``, and what follows a ``#`` between spaces. A word may
    begin with ``#``, too (``#HASH-MARK``); its phones are those of other words. The second pronunciation ``WORD(2)`` of
    a word counts as one of ``WORD``.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith(";;") or not fields[0].strip("#"):
            continue
        if "#" in fields[2:]:
            fields = fields[: fields.index("#", 2)]
        rows.append((number, fields))
    if any(fields[0].startswith("#") for _, fields in rows):
        phones = {phone for _, fields in rows if not fields[0].startswith("#") for phone in fields[1:]}
        if phones:  # a list of words has none
            rows = [row for row in rows if not row[1][0].startswith("#") or _is_entry(row[1], phones)]
    words = {fields[0] for _, fields in rows}
    for _, fields in rows:
        if (word := without_variant(fields[0])) in words:
            fields[0] = word
    return rows


def _is_entry(fields: list[str], phones: set[str]) -> bool:
    """Is a line that begins with ``#`` an entry, not a comment?"""
    return fields[0] in SYMBOLS or not phones.isdisjoint(fields[1:])


def lexicon_lines(text: str, path: Path) -> Iterator[LexiconLine]:
    """Lines ``word phone phone ...`` (Kaldi's lexicon.txt) or ``word prob phone phone ...`` (lexiconp.txt).

    A file whose name ends in ``lexiconp.txt`` has one number after each word, one whose name ends in ``_silprob.txt``
    four. In any other, what looks like a probability is one, except a 1 where no line has another probability and some
    have none: that is a phone in SAMPA. Where lines have four numbers, as MFA's dictionaries and lexiconp_silprob.txt
    under another name, the first is the probability; the others, those of silence, are left out.

    Raises
    ------
    Speech3Error
        A word has no phones or lacks its numbers, a phone is a number, a symbol such as `<s>` has phones that are not
        silence, or there is no word.
    """
    rows = lexicon_rows(text)
    fixed = 4 if path.name.endswith("_silprob.txt") else 1 if path.name.endswith("lexiconp.txt") else None
    columns = fixed != 4 and any(_numbers(fields) >= 4 for _, fields in rows)
    sampa = fixed is None and not columns and _has_phone_1(fields for _, fields in rows)
    no_phones = set(filter(_NO_PHONE.fullmatch, {field for _, fields in rows for field in fields[1:]}))
    for number, (word, *rest) in rows:
        word = composed(word, path)  # only the word: models have their phones as they were written
        if columns:
            count = _count_of_columns([word, *rest], path, number)
        else:
            count = int(len(rest) > 1 and not sampa and _is_probability(rest[0])) if fixed is None else fixed
        try:
            values = tuple(float(field) for field in rest[:count])
        except ValueError:
            values = ()
        if (fixed == 1 or (columns and count)) and not (values and 0 < values[0] <= 1):
            raise Speech3Error(
                f"{path}:{number}: {word} needs a probability above 0 and up to 1 before its phones, as {path.name} has"
            )
        if len(values) < count:
            raise Speech3Error(
                f"{path}:{number}: {word} needs four numbers before its phones: its probability, that of silence after"
                " it, and the factors for a preceding silence and a preceding word"
            )
        phones = tuple(rest[count:])
        if not phones:
            raise Speech3Error(f"{path}:{number}: {word} has no phones; add its pronunciation or remove the line")
        if strange := [phone for phone in phones if phone in no_phones]:
            raise Speech3Error(
                f"{path}:{number}: {word}: {strange[0]} is a number, not a phone; after a word there may be no number,"
                " one (its probability) or four (with those of silence): correct the line, or rename the phone"
            )
        if word.lower() in SYMBOLS:
            if len(phones) > 1:
                raise Speech3Error(f"{path}:{number}: {word} is a symbol, not a word that is said; remove the line")
            if word != "!SIL":  # of Sphinx's dictionaries: <s> SIL
                continue
        yield LexiconLine(number, word, values[:1] if columns else values, phones)
    if not rows:
        raise Speech3Error(f"{path}: the lexicon is empty")


def _numbers(fields: list[str]) -> int:
    """How many numbers follow the word; 0 if all of them may be phones of SAMPA, which are digits."""
    leading = list(takewhile(_NUMBER.fullmatch, fields[1:-1]))
    return 0 if all(map(str.isdigit, leading)) else len(leading)


def _count_of_columns(fields: list[str], path: Path, number: int) -> int:
    """The numbers after a word in a dictionary of MFA, some words of which may have fewer or none."""
    found = _numbers(fields)
    if found in (2, 3):
        raise Speech3Error(
            f"{path}:{number}: {fields[0]} has {found} numbers before its phones; give none, one (its probability) or"
            " four (with those of silence)"
        )
    return min(found, 4)


def _has_phone_1(rows: Iterable[list[str]]) -> bool:
    firsts = [fields[1] for fields in rows if len(fields) > 2]
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
