"""Transcripts and texts: letter case, punctuation, Unicode composition, sentences in files.

Lower case follows the rules of a language (Unicode's SpecialCasing.txt), where they differ from those of English.
Turkish and Azeri have i with a dot and ı without one: I becomes ı, and İ becomes i. In Lithuanian, i and j keep their
dot below another accent. Greek writes ς at the end of words. German ß is SS in capitals, so STRASSE may be straße.

Text for language models has one sentence per line, or is Kaldi's `text`, each line of which begins with the id of its
utterance; files are read in blocks of whole lines. `other_format` knows files that hold transcripts among other things
(tables, subtitles, JSON): read as sentences, their marks, names and times would be taken for words.
"""

import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, NamedTuple

from speech3.data.datadir import SYMBOLS, Fault, read_table, symbols_in
from speech3.data.phones import fold
from speech3.errors import FormatError, SettingError, listed
from speech3.runtime import (
    UNREADABLE,
    check_standard_input,
    composed,
    has_nul,
    not_utf8,
    open_text,
    progress,
    say,
    text_stream,
    to_one_form,
)

# How the file begins or ends, and what it is.
_BEGINNINGS = {
    "#!MLF!#": "an HTK label file",
    "WEBVTT": "WebVTT subtitles",
    "<?xml": "XML",
    "<!DOCTYPE": "XML or HTML",
    "<html": "HTML",
    "<SYSTEM": "sclite's output (SGML)",
    'File type = "ooTextFile': "a TextGrid",
    "\\data\\": "an ARPA language model",
    "@UTF8": "a CHAT transcript",
    "@Begin": "a CHAT transcript",
    "\\_sh ": "a Toolbox file",
}
_ENDINGS = {
    ".json": "JSON", ".jsonl": "JSON", ".csv": "a table (CSV)", ".srt": "subtitles", ".vtt": "subtitles",
    ".mlf": "an HTK label file", ".textgrid": "a TextGrid", ".eaf": "an ELAN file", ".xml": "XML", ".rttm": "RTTM",
    ".sgml": "sclite's output (SGML)", ".pra": "sclite's output", ".docx": "a Word document", ".pdf": "a PDF",
}  # fmt: skip
_TOOLBOX = re.compile(r"\\[A-Za-z_]\w*(?:\s|$)")
_RTTM = ("SPEAKER", "SPKR-INFO", "LEXEME", "NON-LEX", "SEGMENT", "SU", "NOSCORE", "NO_RT_METADATA")
_TABLE_HEADS = """
    sentence text transcript transcription words path client_id utterance utt_id id wav audio file filename wav_filename
    wav_filesize audio_filepath duration speaker speaker_id word phones pronunciation
"""
_SEPARATORS = {"\t": "TSV", ",": "CSV", ";": "CSV", "|": "CSV"}
_DOTLESS = frozenset({"tr", "tur", "az", "aze", "azj", "crh", "gag"})
_LITHUANIAN = frozenset({"lt", "lit"})
_GERMAN = frozenset({"de", "deu", "ger"})
_DOT = "\u0307"
_ACCENTS = "\u0300-\u0306\u0308-\u0314\u033d-\u0344\u034a-\u034c"  # above a letter, without the dot
_WITHOUT_DOT = re.compile(f"([ij\u012f]\u0328?)(?=[{_ACCENTS}])")
_FINAL_SIGMA, _OTHER_SIGMA = re.compile(r"(?<=\w)σ(?![\w'’])"), re.compile(r"ς(?=\w)")
_WORD = re.compile(r"\w+")
STDIN = Path("-")
_BLOCK_BYTES = 1 << 22
_QUIET_SECONDS = 10.0
_JUDGED = 2000  # lines by which a file is recognised as Kaldi's text
_MANY_LINES = 20  # so many lines of plain text would not all begin with different words
_IDS = ("utt2spk", "segments", "wav.scp")  # files of a data directory that list the ids of its text
_MOST = 0.9  # share of a file's lines that must be alike for it to be of a format; the rest are faults
_FIRST_FIELD = re.compile(r"^[^\S\n]*\S+", re.MULTILINE)
TRN_LINE = re.compile(r"(?:(.*?)(?<!\\))\(([^()\s]+)\)\s*")  # sclite's .trn: words, and an utterance id in parentheses
_WRITTEN = tuple(sorted(SYMBOLS | {symbol.upper() for symbol in SYMBOLS}))
_LOOSE_APOSTROPHE = re.compile(r"(?<!\w)'|'(?!\w)")
# Characters typed as an apostrophe. U+02BB and U+02BC are letters in Unicode, so words may begin or end with them.
APOSTROPHES = frozenset("'’‘`´′ꞌʼʻ")
_WITHIN_WORDS = "'-:·"
MARKS = '.,;:!?…"“”„«»()[]¿¡।。、，！？；：؟،'  # that stand beside words and are never letters
_MAYBE_LETTERS = "':·"  # at the edge of a word: an ejective, a long vowel; or punctuation
_SET_APART = re.compile(r"\[[^\]]*\]|<[^>]*>|\{[^}]*\}")  # [laughter], <noise>


def other_format(path: Path | str, lines: Sequence[str]) -> str:
    """What a file is, by its name and its first lines, if it is of such a format; else empty.

    >>> other_format("corpus", ['{"audio_filepath": "a.wav", "text": "one two"}'])
    'JSON'
    """
    text = "\n".join(lines)
    filled = [line.strip() for line in lines if line.strip()]
    first = filled[0] if filled else ""
    what = _ENDINGS.get(Path(path).suffix.lower(), "")
    what = what or next((name for begin, name in _BEGINNINGS.items() if first.startswith(begin)), "")
    if "\0" in text:
        return "binary"
    if what:
        return what
    if first[:1] in ("{", "[") and _is_json(text, first):
        return "JSON"
    if any(re.match(r"\d+:\d\d:\d\d[,.]\d+ --> ", line) for line in filled[:10]):
        return "subtitles"
    if len(filled) > 1 and all(map(_TOOLBOX.match, filled)):
        return "a Toolbox file"
    fields = [line.split() for line in filled if not line.startswith(";;")]
    if fields and all(len(row) >= 8 and row[0] in _RTTM for row in fields):
        return "RTTM"
    return next(
        (f"a table with a heading ({name})" for mark, name in _SEPARATORS.items() if _is_table(filled, mark)), ""
    )


def _is_table(lines: Sequence[str], mark: str) -> bool:
    head = lines[0].split(mark) if lines else []
    names = _TABLE_HEADS.split()
    known = sum(name.strip(' "').lower() in names for name in head)
    return known > 1 and all(line.count(mark) >= len(head) - 1 for line in lines)


def _is_json(text: str, first: str) -> bool:
    for part in (first, text):
        try:
            value = json.loads(part)
        except ValueError:
            continue
        if isinstance(value, dict) or (
            isinstance(value, list) and any(isinstance(x, dict | list | str) for x in value)
        ):
            return True
    return False


def parse_steps(text: str) -> tuple[str, ...]:
    """Split ``nfkc,lower,punct`` into its steps; an unknown one is an error."""
    steps = tuple(step for step in re.split(r"[,\s]+", text) if step)
    for step in steps:
        if step not in _STEPS:
            raise SettingError(f"--normalize: unknown step {step!r}; choose from {', '.join(_STEPS)}")
    return steps


def lower_case(text: str, language: str = "", spellings: Mapping[str, str] | None = None) -> str:
    """A text in lower case, composed (NFC).

    `language` is its code, such as ``tr``, ``tr-TR`` or an espeak-ng voice, empty if it is not known. `spellings` has
    the spelling of words that are in capitals, as `words_with_sharp_s` finds it.
    """
    if text.isascii() and (text.islower() or (not language and not spellings)):
        return text.lower()
    text = unicodedata.normalize("NFC", text)
    if spellings:
        text = _WORD.sub(lambda word: spellings.get(word[0].lower(), word[0]) if word[0].isupper() else word[0], text)
    code = _code(language)
    if code in _DOTLESS:
        text = text.replace("I", "ı")
    text = text.replace("İ", "i").lower()  # Python's lower would leave a combining dot on the i
    text = _OTHER_SIGMA.sub("σ", _FINAL_SIGMA.sub("ς", text))
    if code in _LITHUANIAN:
        text = _WITHOUT_DOT.sub(rf"\1{_DOT}", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", text)


def upper_case(text: str, language: str = "") -> str:
    """A text in upper case, composed (NFC); `language` as for `lower_case`."""
    dotted = text.replace("i", "İ") if _code(language) in _DOTLESS else text
    return unicodedata.normalize("NFC", dotted.upper())


def normalize_text(text: str, steps: Sequence[str], lower: Callable[[str], str] = lower_case) -> str:
    """Apply `steps` in their order and join the words with single spaces.

    ``nfkc`` is Unicode's compatibility composition, ``lower`` changes to lower case (by `lower`: `lower_case` with the
    language, if that is known), and ``punct`` replaces each character of Unicode's punctuation classes with a space,
    except an apostrophe between letters or digits (typographic ones become ASCII). Symbols such as ``<``, ``$`` and
    ``+`` are not punctuation in Unicode, so ``<unk>`` is kept. ``phones48`` and ``phones39`` fold TIMIT's phones to Lee
    and Hon's classes. An unknown step is an error.
    """
    if isinstance(steps, str):
        raise SettingError(f"normalize={steps!r}: pass a list of steps, [{steps!r}]")
    for step in steps:
        if step not in _STEPS:
            raise SettingError(f"normalisation: unknown step {step!r}; choose from {', '.join(_STEPS)}")
        text = lower(text) if step == "lower" else _STEPS[step](text)
    return " ".join(text.split())


class _Table(dict[int, str]):
    """For str.translate: `apostrophes` become ASCII, other punctuation becomes a space, except what is in `kept`."""

    def __init__(self, apostrophes: Container[str], kept: str) -> None:
        self._apostrophes, self._kept = apostrophes, kept

    def __missing__(self, code: int) -> str:
        value = letter = chr(code)
        if letter in self._apostrophes:
            value = "'"
        elif unicodedata.category(letter).startswith("P") and letter not in self._kept:
            value = " "
        self[code] = value
        return value


_PUNCTUATION = _Table("'\u2019", "")  # loose apostrophes are left to `_LOOSE_APOSTROPHE`
_MARKS = _Table([mark for mark in APOSTROPHES if unicodedata.category(mark) != "Lm"], _WITHIN_WORDS)
_STEPS: dict[str, Callable[[str], str]] = {
    "nfkc": lambda text: unicodedata.normalize("NFKC", text),
    "lower": lower_case,
    "punct": lambda text: _LOOSE_APOSTROPHE.sub(" ", text.translate(_PUNCTUATION)),
    "phones48": lambda text: fold(text, 48),
    "phones39": lambda text: fold(text, 39),
}


def words_with_sharp_s(texts: Iterable[str], language: str) -> dict[str, str]:
    """Words of German texts that occur with ß in lower case, by their spelling with ss; not those that have both.

    Of "Die Straße" and "DIE STRASSE" it is {"strasse": "straße"}.
    """
    if _code(language) not in _GERMAN:
        return {}
    words = {word.lower() for text in texts for word in _WORD.findall(text) if not word.isupper()}
    with_ss = {word for word in words if "ss" in word}
    return {plain: word for word in words if "ß" in word and (plain := word.replace("ß", "ss")) not in with_ss}


def case_doubts(texts: Iterable[str]) -> str:
    """What is not known of these texts in mixed case, if their language is not: a sentence, or nothing."""
    dotless = dotted = sharp = capitals = ""
    for text in texts:
        if text.isascii() and text.islower():
            continue
        for word in unicodedata.normalize("NFC", text).split():
            if re.search("[ıİ]", word):
                dotless = dotless or word
            if "I" in word or "İ" in word:
                dotted = dotted or word
            if "ß" in word:
                sharp = sharp or word
            if "SS" in word and word.isupper():
                capitals = capitals or word
    if dotless and dotted:
        return (
            f"the language of the text is not known, but it has ı or İ ({dotless}): in Turkish or Azeri, I would become"
            f" ı, but it becomes i (as in {dotted}); set the language, as in lang=tr"
        )
    if sharp and capitals:
        return (
            f"the language of the text is not known, but it has ß ({sharp}) and SS in capitals ({capitals}), which"
            " becomes ss; set the language: lang=de"
        )
    return ""


def _code(language: str) -> str:
    """``tr`` for ``tr``, ``TR_tr``, ``tr-Latn`` and espeak-ng's ``trk/tr``."""
    return re.split("[-_]", language.rpartition("/")[2].lower())[0]


def has_case_rules(language: str) -> bool:
    """Whether capitals of a language have lower-case letters of their own."""
    return _code(language) in _DOTLESS | _LITHUANIAN | _GERMAN


def plain_words(text: str, graphemes: Sequence[str] = (), language: str = "") -> str:
    """The words of a transcript in ordinary spelling: in lower case, without punctuation, composed (NFC).

    Apostrophes, hyphens, colons and middle dots stay between letters, where orthographies use them; an apostrophe there
    becomes ASCII. What is in square, angle or curly brackets becomes one word in brackets: ``[laughs loudly]`` becomes
    ``[laughs_loudly]``. NFKC is not used, since it would turn the sign of aspiration, U+02B0, into ``h``.

    Where one of the `graphemes` (`speech3.language.read_graphemes`) matches, also at the edge of a word, its characters
    are kept: with ``k'`` and ``!`` in the list, ``'K'ak'' !a?`` becomes ``k'ak' !a``. `language` is as for
    `lower_case`.
    """
    listed = _matching(tuple(graphemes))
    words: list[str] = []
    end = 0
    for apart in _SET_APART.finditer(text):
        words += _plain(text[end : apart.start()], listed, language)
        words.append("_".join(lower_case(apart.group(), language).split()))
        end = apart.end()
    return " ".join([*words, *_plain(text[end:], listed, language)])


def words_in_spelling(
    text: str, vocabulary: Collection[str], folded: Mapping[str, str], language: str = ""
) -> list[str]:
    """The words of a text, in the spelling of a vocabulary where it has them, else as `plain_words`.

    `folded`: the words of the vocabulary by their case-folded forms (`case_folded`).
    """
    found: list[str] = []
    for token in text.split():
        if token in vocabulary:
            found.append(token)
            continue
        words = plain_words(token, (), language).split()
        found += [word if word in vocabulary else folded.get(case_fold(word), word) for word in words]
    return found


def case_folded(vocabulary: Collection[str]) -> dict[str, str]:
    """The words by their case-folded forms; of several with the same form, the first in alphabetical order."""
    return {case_fold(word): word for word in sorted(vocabulary, reverse=True)}


def case_fold(word: str) -> str:
    """Case-folded, and with one apostrophe in place of its typographic variants."""
    return word.casefold() if word.isascii() else "".join("'" if c in APOSTROPHES else c for c in word.casefold())


def marked_at_edge(text: str) -> list[str]:
    """Words that `plain_words` takes an apostrophe, a colon or a middle dot from, at one edge only: not quotations."""
    found = []
    for written in _composed(_SET_APART.sub(" ", text)).translate(_MARKS).split():
        word = written.strip(_WITHIN_WORDS)
        before, _, after = written.partition(word) if word else ("", "", "")
        if any((mark in before) != (mark in after) for mark in _MAYBE_LETTERS):
            found.append(written)
    return found


def _plain(text: str, listed: re.Pattern[str] | None, language: str) -> list[str]:
    composed = _composed(text, language)
    changed, kept = composed.translate(_MARKS), set[int]()
    if listed:
        typed = "".join("'" if letter in APOSTROPHES else letter for letter in composed)
        kept = {place for match in listed.finditer(typed) for place in range(*match.span())}
        changed = "".join(typed[place] if place in kept else letter for place, letter in enumerate(changed))
    words = []
    for match in re.finditer(r"\S+", changed):
        first, end = match.span()
        while first < end and changed[first] in _WITHIN_WORDS and first not in kept:
            first += 1
        while first < end and changed[end - 1] in _WITHIN_WORDS and end - 1 not in kept:
            end -= 1
        words.append(changed[first:end])
    return [re.sub("(?<=.)[ʼʻ](?=.)", "'", word) for word in words if word]


def _composed(text: str, language: str = "") -> str:
    return to_one_form(lower_case(text, language))


@cache
def _matching(graphemes: tuple[str, ...]) -> re.Pattern[str] | None:
    longest_first = sorted(graphemes, key=lambda grapheme: (-len(grapheme), grapheme))
    return re.compile("|".join(map(re.escape, longest_first))) if graphemes else None


class Lines(NamedTuple):
    """Some whole lines of a file, the number of the first, and the (compressed) bytes read so far of all files."""

    path: Path
    text: str
    first: int
    done: int


def read_lines(paths: Sequence[Path]) -> Iterator[Lines]:
    """Read the lines of text files in blocks, as they are; `-` is standard input."""
    done = 0
    for path in paths:
        try:
            if path == STDIN:
                check_standard_input("pipe text into it, or pass a file")
                for block in _decoded(path, text_stream(sys.stdin.buffer, path)):
                    yield Lines(path, *block, done)
                continue
            with open_text(path) as (stream, place):
                for block in _decoded(path, stream):
                    yield Lines(path, *block, done + place())
                done += place()
        except UNREADABLE as error:
            raise FormatError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


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
    """Read sentences in blocks of lines; the utterance ids of Kaldi's `text` and of .trn are left out, which is said.

    A line that contains one of `SYMBOLS` or of the `forbidden` words is an error, and so is one without an id where the
    others end with one.
    """
    forbidden, with_ids, before_ids, file = frozenset(forbidden), False, False, None
    for lines in read_lines(paths):
        if lines.first == 1 or lines.path != file:
            file, first = lines.path, _first_lines(lines.text)
            if what := other_format(file, first):
                raise FormatError(f"{file}: is {what}, not sentences; write one sentence per line, words alone")
            before_ids = end_with_ids(first, file)
            with_ids = not before_ids and begin_with_ids(first, file)
        if with_ids:
            lines = lines._replace(text=_FIRST_FIELD.sub("", lines.text))
        if before_ids:
            lines = lines._replace(text="\n".join(_without_trn_ids(lines)))
        if any(symbol in lines.text for symbol in (*_WRITTEN, *forbidden)):
            _refuse_symbols(lines, forbidden)
        yield lines


def sentences_of_file(path: Path, forbidden: Iterable[str] = ()) -> Iterator[list[str]]:
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
            raise FormatError(
                f"{lines.path}:{number}: {' and '.join(found)} in the text, which nobody can say; use words alone,"
                f" one sentence per line: sed -E 's:(^| )({shown})( |$): :g' {lines.path}"
            )


def begin_with_ids(lines: Sequence[str], path: Path) -> bool:
    """Whether each line of a file begins with an utterance id, as in Kaldi's `text`. If so, that is said.

    The ids are those of the data directory in which the file is, or differ from line to line, have digits or
    underscores, and are not among the other words. Outside a data directory, a file with an empty line is plain text.
    """
    rows = [line.split(maxsplit=1) for line in lines]
    ids = [row[0] for row in rows if row]
    all_differ = len(rows) == len(ids) == len(set(ids))
    listed_beside = bool(ids) and _listed_beside(ids, path)
    found = listed_beside or (bool(ids) and all_differ and _are_ids(ids, rows, lines))
    if found:
        odd = () if listed_beside else tuple(name for name in ids if not re.search(r"[\d_-]", name))
        _say_ids(path, ids[0], odd)
    return found


def end_with_ids(lines: Sequence[str], path: Path) -> bool:
    """Whether the lines of a file end with an utterance id in parentheses, as in .trn. If so, that is said.

    Either the file's name says so, or nearly all that is in parentheses looks like an id, with digits beside letters:
    `call mom (home)` and `heat (1995)` are sentences.
    """
    body = [line for line in lines if line.strip() and not line.lstrip().startswith(";;")]
    ids = [match[2] for line in body if (match := TRN_LINE.fullmatch(line))]
    named = path.suffix.lower() == ".trn" and len(ids) > 0
    like = [name for name in ids if re.search(r"\d", name) and re.search(r"[^\W\d]|[_-]", name)]
    if named or (len(ids) == len(body) > 1 and len(like) >= _MOST * len(ids) and len(set(ids)) >= _MOST * len(ids)):
        _say_trn_ids(path, ids[0])
        return True
    return False


def _without_trn_ids(lines: Lines) -> Iterator[str]:
    for number, line in enumerate(lines.text.split("\n"), lines.first):
        match = TRN_LINE.fullmatch(line)
        comment = line.lstrip().startswith(";;")
        if line.strip() and not match and not comment:
            raise FormatError(
                f"{lines.path}:{number}: `{line.strip()[:60]}` does not end in an utterance id in parentheses, as the"
                " other lines do; add it, or remove the ids of the others"
            )
        yield match[1] if match else ""


@lru_cache  # a text may be read several times
def _say_trn_ids(path: Path, first: str) -> None:
    say(f"{path}: each line ends with an utterance id (({first}), ...), as in .trn; the ids are left out")


def _listed_beside(ids: Sequence[str], path: Path) -> bool:
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
    """Whether the first fields of lines are ids, and not the first words of sentences."""
    # Ids contain digits or underscores, are sorted or are many; first words of sentences also occur within sentences.
    elsewhere = {word for line in lines for word in line.split()[1:]}
    if 2 * sum(name in elsewhere for name in ids) > len(ids):
        return False
    if 2 * sum(bool(re.search(r"[\d_-]", name)) for name in ids) >= len(ids) or len(ids) >= _MANY_LINES:
        return True
    return len(ids) > 1 and list(ids) == sorted(ids) and len({len(name) for name in ids}) == 1


@lru_cache  # a text may be read several times
def _say_ids(path: Path, first: str, odd: tuple[str, ...]) -> None:
    say(f"{path}: each line begins with an utterance id ({first}, ...), as in Kaldi's text; the ids are left out")
    if odd:
        say(f"{path}: {len(odd)} of them look like words ({listed(odd, 3)}); if they are, give these lines an id, too")


def with_progress(blocks: Iterable[Lines], paths: Sequence[Path], label: str) -> Iterator[Lines]:
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
