"""The lexicon: words with their pronunciations, the phone inventory, silence; where a user's files have them.

``lang/`` has ``lexicon.txt`` or ``lexiconp.txt``, ``*.arpa``, and ``text`` (or ``lm_train.txt``), compressed or not. It
may come from Kaldi's prepare_lang.sh: then the lexicon is ``phones/align_lexicon.txt``. Sphinx dictionaries, as AN4 and
TED-LIUM have them, have lines ``WORD PH PH ...``, and ``WORD(2) ...`` for a second pronunciation. CMUdict is one, too:
``cmudict-0.7b`` in Latin-1, and ``cmudict.dict`` with comments behind the phones (``# place, danish``).
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import NamedTuple

from speech3.data import NOISE, SYMBOLS, matching_paths, other_format, read_lines
from speech3.errors import DataError, FormatError, MissingError, listed
from speech3.language.notation import check_words, without_notation
from speech3.language.pronounce import Phones
from speech3.runtime import composed, decode, read_bytes, read_utf8, say, write_text

JOINER = "￭"  # where a letter of a spelled word is joined to the letters beside it
_VARIANT = re.compile(r"[(][0-9]+[)]$")
_NOT_SPHINX_WORDS = ("<", "##", ";;")  # <s>, </s>, <unk>; lines of comment, as Sphinx has them
NOT_WORDS = frozenset({"<s>", "</s>", "<unk>", "<UNK>", "<eps>"})
NOISES = frozenset({"SPN", "NSN", "LAU", "spn", "nsn"})  # spoken noise, other noise, laughter in Kaldi's recipes
_JUDGED = 1000  # lines by which a file is recognised
_ALIGN_LEXICON = "align_lexicon.txt"
_PACKED = ("", ".gz", ".bz2", ".xz")  # endings of names; how a file is compressed is read from the file itself
_TEXTS = tuple(f"{name}{packed}" for name in ("text", "lm_train.txt") for packed in _PACKED)
_COMMAS = re.compile(r".[,;|].")
_DISAMBIGUATION = re.compile(r"#\d+")  # of Kaldi's lexicon_disambig.txt
_BRACKETED = re.compile(r"[<\[({].*[>\])}]|![A-Z_]+")  # <noise>, [laughter], !SIL; but "!" may be a click: !xoo
_NUMBER = re.compile(r"(\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
# A single digit is a phone in SAMPA (2, 9); a number may carry the position of a phone in the word (1.0_I).
_NUMBER_NOT_PHONE = re.compile(r"[-+]?(\d+[.,]\d*|[.,]\d+|\d\d+|\d(?=e[-+]?\d))(e[-+]?\d+)?(_[BIES])?", re.IGNORECASE)
_LANG_FILES = "lexicon.txt or lexiconp.txt (word phone phone ...), one *.arpa or *.arpa.gz, text (one sentence a line)"
_ENOUGH_LINES = 100  # in a lexicon of fewer lines, a phone that occurs once is not rare
_SHOWN = 5
_SEPARATORS = frozenset({".", "-", "|", "_", "ˈ", "ˌ", "'", '"', "%", "/", ","})
SILENCE = "SIL"
SPOKEN_NOISE = "SPN"
UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Silences:
    """Silence probabilities of a pronunciation (Chen et al. 2015; the columns of Kaldi's lexiconp_silprob.txt)."""

    after: float  # probability of silence after it
    # `given_silence`, `given_word`: factors by which it follows silence, or directly follows a word, more often than
    # the words before it predict
    given_silence: float = 1.0
    given_word: float = 1.0


@dataclass(frozen=True)
class Pronunciation:
    """One pronunciation of a word; `prob` is relative to the word's most probable one (Kaldi's lexiconp.txt)."""

    word: str
    phones: tuple[str, ...]
    prob: float = 1.0
    silences: Silences | None = None


@dataclass(frozen=True)
class Lexicon:
    """Pronunciations in a fixed order, and the phones they use."""

    pronunciations: tuple[Pronunciation, ...]
    # probability of optional silence before the first word and after each pronunciation without `Silences`
    silence_prob: float = 0.5
    silence_phones: tuple[str, ...] = field(default=(SILENCE,))
    position_dependent: bool = False  # phones are marked with their position in the word; see `mark_positions`
    end: Silences | None = None  # silence probabilities of the end of the sentence; `after` is not used
    # the value of `phones`, if pronunciations were replaced and need not use all phones of the model
    inventory: tuple[str, ...] | None = None
    # further phones of sounds that are not speech, whose states do not depend on their neighbours either
    noise_phones: tuple[str, ...] = (SPOKEN_NOISE,)
    language: str = ""  # espeak-ng's code, by which further words can be pronounced; empty if it is unknown

    @cached_property
    def phones(self) -> tuple[str, ...]:
        """Silence phones first, then the others sorted; phone i is at index i - 1."""
        if self.inventory is not None:
            return self.inventory
        spoken = {phone for pron in self.pronunciations for phone in pron.phones} - set(self.silence_phones)
        return self.silence_phones + tuple(sorted(spoken))

    @cached_property
    def phone_ids(self) -> dict[str, int]:
        return {phone: number for number, phone in enumerate(self.phones, 1)}

    @cached_property
    def by_word(self) -> dict[str, tuple[Pronunciation, ...]]:
        table: dict[str, list[Pronunciation]] = {}
        for pron in self.pronunciations:
            table.setdefault(pron.word, []).append(pron)
        return {word: tuple(prons) for word, prons in table.items()}

    @cached_property
    def word_numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.by_word)}

    @property
    def silence(self) -> int:
        """Number of the phone used for optional silence."""
        return self.phone_ids[self.silence_phones[0]]

    @property
    def context_free(self) -> frozenset[int]:
        """Phones whose states do not depend on their neighbours: silence and noises."""
        return frozenset(n for p, n in self.phone_ids.items() if p in (*self.silence_phones, *self.noise_phones))

    def base_phone(self, phone: str) -> str:
        return re.sub(r"_[BIES]$", "", phone) if self.position_dependent else phone

    def silences(self, pron: Pronunciation) -> Silences:
        """The silence probabilities of a pronunciation; `silence_prob` applies if it has none of its own."""
        return pron.silences or Silences(self.silence_prob)

    def known(self, words: Iterable[str]) -> list[str]:
        """Replace out-of-vocabulary words by `<unk>`.

        Raises Speech3Error: there are such words and the lexicon has no `<unk>`. The message lists the words.
        """
        words = list(words)
        missing = sorted({word for word in words if word not in self.by_word})
        if missing and UNKNOWN not in self.by_word:
            raise MissingError(
                f"not in the lexicon: {listed(missing)}; add them, or add a line `{UNKNOWN} {SPOKEN_NOISE}`"
            )
        return [word if word in self.by_word else UNKNOWN for word in words]


def with_garbage(lexicon: Lexicon) -> Lexicon:
    """The lexicon with a word for noise and one for other speech, each with a phone of its own, if it lacks them."""
    garbage = (Pronunciation(NOISE, ("NSN",)), Pronunciation(UNKNOWN, (SPOKEN_NOISE,)))
    lacking = tuple(pron for pron in garbage if pron.word not in lexicon.by_word)
    noises = dict.fromkeys((*lexicon.noise_phones, *(phone for pron in lacking for phone in pron.phones)))
    return replace(lexicon, pronunciations=(*lexicon.pronunciations, *lacking), noise_phones=tuple(noises))


def mark_positions(lexicon: Lexicon) -> Lexicon:
    """Mark phones with their position in the word: begin ``_B``, end ``_E``, internal ``_I``, singleton ``_S``.

    Silence and noises are not marked. (Kaldi marks them too, to align words in lattices.) The letters of a
    spelled word are marked with their place in that word.
    """
    unmarked = {*lexicon.silence_phones, *lexicon.noise_phones}

    def marked(pron: Pronunciation) -> tuple[str, ...]:
        before, after = pron.word.startswith(JOINER), pron.word.endswith(JOINER)
        size = before + len(pron.phones) + after
        places = "S" if size == 1 else "B" + "I" * (size - 2) + "E"
        within = zip(pron.phones, places[before : size - after], strict=True)
        return tuple(phone if phone in unmarked else f"{phone}_{place}" for phone, place in within)

    prons = tuple(replace(pron, phones=marked(pron)) for pron in lexicon.pronunciations)
    return replace(lexicon, pronunciations=prons, position_dependent=True)


def read_lexicon(path: Path | str, silence_prob: float = 0.5) -> Lexicon:
    """Read ``word phone phone ...`` lines (Kaldi's lexicon.txt), or ``word prob phone ...`` lines (lexiconp.txt).

    A file whose name ends in ``_silprob.txt`` has four numbers after the word: its probability and the three of
    `Silences`. Phones of noises are those with the names that Kaldi's recipes use for them (`NOISES`), those that only
    symbols such as ``[breath]`` and ``<sil>`` have, and those that ``silence_phones.txt`` beside the lexicon lists,
    except those that ``nonsilence_phones.txt`` lists.

    Raises Speech3Error: the file is missing, empty, not UTF-8, or has a word without phones, with only silence or with
    impossible probabilities.
    """
    path = Path(path)
    if not path.exists():
        raise MissingError(f"{path}: no such lexicon")
    seen: dict[tuple[str, tuple[str, ...]], Pronunciation] = {}
    for line in lexicon_lines(read_lexicon_text(path), path):
        pron = _pronunciation(line, path)
        if set(pron.phones) == {SILENCE}:
            if is_word(pron.word) and pron.word.upper() != SILENCE:
                raise DataError(
                    f"{path}:{line.number}: {pron.word} is pronounced as silence, {' '.join(pron.phones)}; write its"
                    " phones, or remove the line"
                )
            continue  # Kaldi's `!SIL SIL` or `<sil> SIL`; graphs insert optional silence
        seen.setdefault((pron.word, pron.phones), pron)
    if not seen:
        raise DataError(f"{path}: the lexicon is empty")
    used = dict.fromkeys(phone for pron in seen.values() for phone in pron.phones)
    silent, spoken = listed_phones(path)
    in_words = {phone for pron in seen.values() if is_word(pron.word) for phone in pron.phones}
    unsaid = used.keys() - in_words if in_words else set()
    noises = (phone for phone in used if phone in (NOISES | silent | unsaid) - spoken - {SILENCE})
    return Lexicon(tuple(seen.values()), silence_prob, noise_phones=tuple(noises))


class LexiconLine(NamedTuple):
    """A line of a lexicon: its number in the file, the word, the numbers after it (none, one or four), the phones."""

    number: int
    word: str
    values: tuple[float, ...]
    phones: Phones


def _pronunciation(line: LexiconLine, path: Path) -> Pronunciation:
    if len(line.values) < 4:
        return Pronunciation(line.word, line.phones, line.values[0] if line.values else 1.0)
    prob, after, given_silence, given_word = line.values
    if not (0 < prob <= 1 and 0 < after < 1 and 0 < given_silence < math.inf and 0 < given_word < math.inf):
        raise FormatError(
            f"{path}:{line.number}: {line.word}: impossible numbers {' '.join(f'{value:g}' for value in line.values)};"
            " write probabilities between 0 and 1 and factors above 0"
        )
    return Pronunciation(line.word, line.phones, prob, Silences(after, given_silence, given_word))


def write_lexicon(lexicon: Lexicon, path: Path | str) -> None:
    """Write ``word prob phone phone ...``, with three more numbers if the name ends in ``_silprob.txt``."""
    lines = []
    for pron in lexicon.pronunciations:
        numbers = [pron.prob]
        if str(path).endswith("_silprob.txt"):
            silences = lexicon.silences(pron)
            numbers += [silences.after, silences.given_silence, silences.given_word]
        lines.append(f"{pron.word} {' '.join(f'{number:.6g}' for number in numbers)} {' '.join(pron.phones)}\n")
    write_text(path, "".join(lines))


def lexicon_lines(text: str, path: Path) -> Iterator[LexiconLine]:
    """Lines ``word phone phone ...`` (Kaldi's lexicon.txt) or ``word prob phone phone ...`` (lexiconp.txt).

    A file whose name ends in ``lexiconp.txt`` has one number after each word, one whose name ends in ``_silprob.txt``
    four. In any other, what looks like a probability is one, except a 1 where no line has another probability and some
    have none: that is a phone in SAMPA. Where lines have four numbers, as MFA's dictionaries and lexiconp_silprob.txt
    under another name, the first is the probability; the others, those of silence, are left out.

    Slashes, brackets, quotes and commas that most lines have are no parts of phones (`without_notation`).

    Raises Speech3Error: a word has no phones or lacks its numbers, phones are not separated, a phone is a number, a
    symbol such as `<s>` has phones that are not silence, or there is no word.
    """
    # What the numbers after words mean, in the whole file.
    if what := other_format(path, text.split("\n", _JUDGED)[:_JUDGED]):
        raise FormatError(f"{path}: is {what}, not a lexicon; write one line `word phone phone ...` for each word")
    rows = lexicon_rows(text)
    if rows and sum(bool(_COMMAS.search(word)) for _, (word, *_) in rows) > 0.8 * len(rows):
        raise FormatError(
            f"{path}: its words have commas, semicolons or bars in them ({rows[0][1][0]}): separate the word and each"
            " phone by spaces or tabs"
        )
    check_words(text, rows, path)
    rows, removed = without_notation(rows, path)
    if removed:
        _say_once(f"{path}: {' and '.join(removed)} are left out")
    fixed = 4 if path.name.endswith("_silprob.txt") else 1 if path.name.endswith("lexiconp.txt") else None
    columns = fixed != 4 and any(_numbers(fields) >= 4 for _, fields in rows)
    if columns:
        _say_once(
            f"{path}: four numbers after a word: the first is used, the probability of its pronunciation; the others,"
            " of silence, are not (in recipes, hmm.lexicon_probs=true estimates them)"
        )
    sampa = fixed is None and not columns and _has_phone_1(fields for _, fields in rows)
    no_phones = set(filter(_NUMBER_NOT_PHONE.fullmatch, {field for _, fields in rows for field in fields[1:]}))
    # Each line: its numbers, then its phones.
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
            raise FormatError(
                f"{path}:{number}: {word} needs a probability above 0 and up to 1 before its phones, as {path.name} has"
            )
        if len(values) < count:
            raise FormatError(
                f"{path}:{number}: {word} needs four numbers before its phones: its probability, that of silence after"
                " it, and the factors for a preceding silence and a preceding word"
            )
        phones = tuple(rest[count:])
        if not phones:
            raise FormatError(f"{path}:{number}: {word} has no phones; add its pronunciation or remove the line")
        if strange := [phone for phone in phones if phone in no_phones]:
            raise FormatError(
                f"{path}:{number}: {word}: {strange[0]} is a number, not a phone; after a word there may be no number,"
                " one (its probability) or four (with those of silence): correct the line, or rename the phone"
            )
        if marks := [phone for phone in phones if _DISAMBIGUATION.fullmatch(phone)]:
            raise FormatError(
                f"{path}:{number}: {word}: {marks[0]} is a disambiguation symbol of Kaldi, not a phone; pass the"
                " dictionary's lexicon.txt in place of this file"
            )
        if word.lower() in SYMBOLS:
            if len(phones) > 1:
                raise FormatError(f"{path}:{number}: {word} is a symbol, not a word that is said; remove the line")
            if word != "!SIL":  # of Sphinx's dictionaries: <s> SIL
                continue
        yield LexiconLine(number, word, values[:1] if columns else values, phones)
    if not rows:
        raise DataError(f"{path}: the lexicon is empty")


def warnings(lines: Sequence[LexiconLine], path: Path) -> list[str]:
    """What is doubtful in a lexicon: phones that occur once, with their lines; separators that stand as phones.

    Marks of stress and syllables are separators in IPA and X-SAMPA if spaces are around them.
    """
    words = [line for line in lines if is_word(line.word) and NOISES.isdisjoint(line.phones)]
    counts = Counter(phone for line in words for phone in line.phones)
    found = []
    if len(words) >= _ENOUGH_LINES:
        once = [(line, phone) for line in words for phone in line.phones if counts[phone] == 1]
        found += [
            f"{path}:{line.number}: {line.word}: no other word has the phone {phone}; correct it if it is a slip"
            for line, phone in once[:_SHOWN]
        ]
        if len(once) > _SHOWN:
            found.append(f"{path}: {len(once) - _SHOWN} more phones occur once")
    for mark in sorted(_SEPARATORS & counts.keys()):
        first = next(line for line in words if mark in line.phones)
        found.append(
            f"{path}:{first.number}: {first.word}: {mark} is a phone of its own here, in {counts[mark]:,} places;"
            " remove it if it only separates syllables or marks stress"
        )
    return found


def say_doubtful(lines: Sequence[LexiconLine], path: Path) -> None:
    _say_once("\n".join(f"warning: {each}" for each in warnings(lines, path)))


@lru_cache  # a lexicon may be read several times
def _say_once(text: str) -> None:
    if text:
        say(text)


def lexicon_entries(text: str, path: Path) -> dict[str, list[Phones]]:
    """Pronunciations of each word of a lexicon; probabilities of lexiconp.txt are ignored."""
    table: dict[str, list[Phones]] = {}
    for line in lexicon_lines(text, path):
        table.setdefault(line.word, []).append(line.phones)
    return table


def lexicon_rows(text: str) -> list[tuple[int, list[str]]]:
    """The fields of each line of a lexicon with its number, the word first; not blank lines and comments.

    Comments as in CMUdict: lines that begin with ``;;`` or ``#``, and what follows a ``#`` between spaces. A word may
    begin with ``#``, too (``#HASH-MARK``); its phones are those of other words. The second pronunciation ``WORD(2)`` of
    a word counts as one of ``WORD``, and so does the first if it is ``WORD(1)``.
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
    forms = Counter(map(without_variant, {fields[0] for _, fields in rows}))
    for _, fields in rows:
        if (word := without_variant(fields[0])) and forms[word] > 1:
            fields[0] = word
    return rows


def _is_entry(fields: list[str], phones: set[str]) -> bool:
    return fields[0] in SYMBOLS or not phones.isdisjoint(fields[1:])


def _numbers(fields: list[str]) -> int:
    """How many numbers follow the word; 0 if all of them may be phones of SAMPA, which are digits."""
    leading = list(takewhile(_NUMBER.fullmatch, fields[1:-1]))
    return 0 if all(map(str.isdigit, leading)) else len(leading)


def _digits(fields: list[str]) -> int:
    """Four or more if so many whole numbers follow the word, which then are no phones of SAMPA."""
    count = len(list(takewhile(str.isdigit, fields[1:-1])))
    return count if count >= 4 else 0


def _count_of_columns(fields: list[str], path: Path, number: int) -> int:
    """The numbers after a word in a dictionary of MFA, some words of which may have fewer or none."""
    found = _numbers(fields) or _digits(fields)
    if found in (2, 3):
        raise FormatError(
            f"{path}:{number}: {fields[0]} has {found} numbers before its phones; write none, one (its probability) or"
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


def is_word(entry: str) -> bool:
    """Is an entry of a lexicon a word, not a noise or a silence?"""
    return entry not in NOT_WORDS and not _BRACKETED.fullmatch(entry)


def without_variant(word: str) -> str:
    """``TOMATO`` of ``TOMATO(2)``."""
    return _VARIANT.sub("", word)


def read_dictionary(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Words with their phones, a word as often as it has pronunciations; ``<s>``, ``</s>`` and ``<unk>`` left out.

    Raises Speech3Error: the file cannot be read.
    """
    lines = read_utf8(path, otherwise="latin-1").splitlines()
    rows = (line.partition(" #")[0].split() for line in lines)  # `#HASH-MARK HH AE1 SH ...` is a word
    return [
        (without_variant(word), tuple(phones))
        for word, *phones in (row for row in rows if row)
        if phones and not word.startswith(_NOT_SPHINX_WORDS)
    ]


def lexicon_text(entries: list[tuple[str, tuple[str, ...]]]) -> str:
    return "".join(f"{word} {' '.join(phones)}\n" for word, phones in entries)


@dataclass(frozen=True)
class LangDir:
    """Files of ``lang/``; None for those that do not exist."""

    lexicon: Path | None
    arpa: Path | None
    text: Path | None


def find_lang(directory: Path) -> LangDir:
    """Find the files of ``lang/``; there are none if there is no such directory.

    Raises Speech3Error: the directory contains none of the files, or several language models.
    """
    if not directory.is_dir():
        return LangDir(None, None, None)
    names = ("lexiconp.txt", "lexicon.txt", f"phones/{_ALIGN_LEXICON}")
    lexicons = [directory / name for name in names if (directory / name).is_file()]
    endings = tuple(f".arpa{packed}" for packed in _PACKED)
    arpas = [path for path in matching_paths(directory, "*") if path.name.endswith(endings)]
    text = next((directory / name for name in _TEXTS if (directory / name).is_file()), None)
    if len(arpas) > 1:
        raise DataError(
            f"{directory}: contains {len(arpas)} language models ({', '.join(path.name for path in arpas)}); keep one"
        )
    if not (lexicons or arpas or text):
        kaldi = f"; this is a lang directory of Kaldi without phones/{_ALIGN_LEXICON}: add its lexicon.txt"
        hint = kaldi if (directory / "phones.txt").exists() else "; or remove the directory"
        raise DataError(f"{directory}: contains none of {_LANG_FILES}{hint}")
    return LangDir(lexicons[0] if lexicons else None, arpas[0] if arpas else None, text)


def read_lexicon_text(path: Path) -> str:
    """Lines ``word phone ...`` of a lexicon; word positions and silences of Kaldi's align_lexicon.txt are removed.

    Words are composed (NFC), phones are as they are written. CMUdict, which begins with ``;;;``, may be in Latin-1.
    """
    content = read_bytes(path)
    text = decode(content, path, "latin-1" if content.startswith(b";;;") else "")  # as cmudict-0.7b is
    text = re.sub(r"(?m)^[^\S\n]*\S+", lambda word: composed(word[0], path), text)
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
    compiled = lexicon.parent if lexicon.name == _ALIGN_LEXICON else lexicon.parent / "phones"
    positions = (compiled / "word_boundary.txt").exists()

    def phones(name: str) -> frozenset[str]:
        beside, listed = lexicon.parent / f"{name}_phones.txt", compiled / f"{name}.txt"
        plain = read_utf8(beside).split() if beside.is_file() else []
        placed = read_utf8(listed).split() if listed.is_file() else []
        return frozenset([*plain, *(re.sub(r"_[BIES]$", "", phone) if positions else phone for phone in placed)])

    return phones("silence"), phones("nonsilence")


def arpa_words(path: Path) -> list[str]:
    """The words of an ARPA file, without symbols such as `<s>`; little is read behind its 1-grams."""
    lines = (line for block in read_lines([path]) for line in block.text.split("\n"))
    from_unigrams = dropwhile(lambda line: line.strip() != "\\1-grams:", lines)
    unigrams = takewhile(lambda line: not line.startswith("\\"), islice(from_unigrams, 1, None))
    return [row[1] for row in map(str.split, unigrams) if len(row) > 1 and row[1] not in NOT_WORDS]
