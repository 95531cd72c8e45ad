"""References and hypotheses: Kaldi text (`utterance words ...`), plain sentences, or the formats of sclite.

A reference may allow several texts, scored as NIST's sclite -D does: alternatives, no word, optional words.

    i've { um / uh / @ } as far as (i'm) concerned

Of the texts that it allows, the one nearest to the hypothesis is scored. sclite's costs are 4 for a substitution, 3 for
a deletion or insertion, 2 for an optional word that is left out, which then counts as correct.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Literal

import jiwer

from speech3.data import NOISE, OTHER_SPEECH, looks_like_ids, normalize_text
from speech3.errors import DataError, FormatError, MismatchError, MissingError, SettingError, counted, listed
from speech3.evaluate import formats
from speech3.evaluate.formats import Line, Sclite
from speech3.runtime import composed, read_utf8

_MOST = 1024  # texts of one utterance
_SUBSTITUTED, _WRONG, _LEFT_OUT = 4, 3, 2
Token = tuple[str, bool]  # a word, and whether it is optional
Allowed = list[list[Token]]  # the texts that a reference allows
Reading = Literal["kaldi", "plain", "trn", "stm", "ctm"]
# Scripts written without spaces between words: CJK (with its punctuation and 〇), kana, Bopomofo, Thai, Lao, Burmese,
# Khmer. A space next to one of their letters only shows how the text was segmented into words.
_UNSPACED = "\u3001-\u30ff\u3105-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED += "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_NO_SPACE = re.compile(rf"(?<=[{_UNSPACED}]) | (?=[{_UNSPACED}])")
PHONE_CLASSES = ("phones39",)  # the normalisation for phone error rates
NOT_SCORED = frozenset({NOISE, OTHER_SPEECH})  # they stand for sounds, or for words that nobody knows


def allowed(line: Line) -> Allowed:
    """All texts that a reference allows; braces that are not balanced, and too many texts, are errors."""
    fields = re.sub(r"([{}])", r" \1 ", line.text).split()
    found, end = _sequence(fields, 0, line, depth=0)
    assert end == len(fields)
    return found


def is_simple(text: str) -> bool:
    """Whether a text allows only itself."""
    return not re.search(r"[{}]|(?:^|\s)(?:@|\(\S+\))(?=\s|$)", text)


def _sequence(fields: list[str], place: int, line: Line, depth: int) -> tuple[Allowed, int]:
    """The texts from a place to the end of the line, or of an alternative, and the place after them."""
    parts: list[Allowed] = []
    while place < len(fields):
        field = fields[place]
        if depth and field in ("/", "}"):
            break
        place += 1
        if field == "{":
            choices, place = _choices(fields, place, line, depth)
            parts.append(choices)
        elif field == "}":
            raise FormatError(f"{line.where}: a closing brace without an opening one; correct the alternatives")
        elif depth and "/" in field:
            raise FormatError(f"{line.where}: `{field}` in alternatives: write spaces around /, as in {{ um / uh }}")
        elif field != "@":
            optional = field.startswith("(") and field.endswith(")") and len(field) > 2
            parts.append([[(field[1:-1], True) if optional else (field, False)]])
        total = 1
        for part in parts:
            total *= len(part)
        if total > _MOST:
            raise FormatError(f"{line.where}: alternatives allow more than {_MOST:,} texts; split the utterance")
    return [[token for part in chosen for token in part] for chosen in product(*parts)], place


def _choices(fields: list[str], place: int, line: Line, depth: int) -> tuple[Allowed, int]:
    choices: Allowed = []
    while True:
        found, place = _sequence(fields, place, line, depth + 1)
        choices += found
        if place == len(fields):
            raise FormatError(f"{line.where}: alternatives without a closing brace; add it")
        place += 1
        if fields[place - 1] == "}":
            return choices, place


def resolve(
    references: Mapping[str, Line], hypothesis: Mapping[str, str], normalize: Callable[[str], str] = str
) -> tuple[dict[str, str], dict[str, str]]:
    """The texts to be compared: of each reference the nearest text, and the hypothesis.

    Optional words that were left out are in both, since they count as correct. `normalize` is applied to words before
    they are compared here, and stays in what is returned.
    """
    chosen, heard = {}, dict(hypothesis)
    for name, line in references.items():
        if is_simple(line.text):
            chosen[name] = line.text
            continue
        hyp = normalize(hypothesis.get(name, "")).split()
        texts = [
            [(part, optional) for word, optional in text for part in normalize(word).split()] for text in allowed(line)
        ]
        aligned = [_align(text, hyp) for text in texts]
        best = min(range(len(texts)), key=lambda number: aligned[number][0])
        chosen[name] = " ".join(word for word, _ in texts[best])
        if name in hypothesis:
            heard[name] = " ".join(aligned[best][1])
    return chosen, heard


def _align(ref: list[Token], hyp: list[str]) -> tuple[int, list[str]]:
    """The cost of the cheapest alignment, and the hypothesis with the optional words that it left out."""
    row = [_WRONG * count for count in range(len(hyp) + 1)]
    rows = [row]
    for word, optional in ref:
        without = _LEFT_OUT if optional else _WRONG
        now = [row[0] + without]
        for place, (before, above) in enumerate(pairwise(row)):
            same = before + (0 if word == hyp[place] else _SUBSTITUTED)
            now.append(min(same, above + without, now[place] + _WRONG))
        rows.append(row := now)
    heard: list[str] = []
    i, j = len(ref), len(hyp)
    while i or j:
        word, optional = ref[i - 1] if i else ("", False)
        if i and j and rows[i][j] == rows[i - 1][j - 1] + (0 if word == hyp[j - 1] else _SUBSTITUTED):
            i, j = i - 1, j - 1
            heard.append(hyp[j])
        elif i and rows[i][j] == rows[i - 1][j] + (_LEFT_OUT if optional else _WRONG):
            i -= 1
            heard += [word] * optional
        else:
            j -= 1
            heard.append(hyp[j])
    return rows[-1][-1], heard[::-1]


def scored_words(text: str) -> str:
    """The words of a text that count in an error rate: all but `NOT_SCORED`, in any letter case."""
    return " ".join(word for word in text.split() if word.lower() not in NOT_SCORED) if "<" in text else text


def characters(text: str) -> str:
    """The characters that CER counts: words joined by single spaces, without spaces in scripts that do not use them.

    So ``三 百`` and ``三百`` are the same two characters, as in Kaldi's recipes for Mandarin, and ``a cat`` is five.
    """
    return _NO_SPACE.sub("", " ".join(text.split()))


def character_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """CER over all utterances, a fraction."""
    return float(jiwer.cer([characters(text) for text in references], [characters(text) for text in hypotheses]))


def phone_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """PER over all utterances, a fraction; phones are first mapped to `PHONE_CLASSES`."""
    folded = [[normalize_text(text, PHONE_CLASSES) for text in side] for side in (references, hypotheses)]
    return float(jiwer.wer(folded[0], folded[1]))


ERROR_RATES: dict[str, Callable[[list[str], list[str]], float]]
ERROR_RATES = {"WER": jiwer.wer, "CER": character_error_rate, "PER": phone_error_rate}


def _lines(path: Path | str) -> list[str]:
    # Not splitlines(): a vertical tab or U+2028 in a transcript does not end the line.
    lines = composed(read_utf8(path), path).split("\n")
    if not lines[-1].strip():
        lines.pop()
    return lines


def _parse_kaldi(path: Path | str, lines: list[str]) -> dict[str, str]:
    entries: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not (fields := line.split(maxsplit=1)):
            continue
        if fields[0] in entries:
            raise FormatError(f"{path}:{number}: utterance {fields[0]} occurs a second time; keep one of the two lines")
        entries[fields[0]] = fields[1].strip() if len(fields) > 1 else ""
    return entries


def read_text(path: Path | str) -> dict[str, str]:
    """Read a Kaldi text file: utterance id to its words; a line with only an id is an utterance without words.

    Raises `Speech3Error`: the file is missing, not UTF-8, of another format, or names an utterance twice.
    """
    lines = _lines(path)
    if kind := formats.format_of(path, lines):
        raise FormatError(f"{path}: is in the format .{kind}; pass Kaldi text, `utterance words ...`")
    return _parse_kaldi(path, lines)


def _are_ids(ids: Sequence[str], of_reference: Sequence[str], lines: list[str]) -> bool:
    """Whether all first fields are ids for certain: different, with digits, of the reference, and nowhere else."""
    elsewhere = {word for line in lines for word in line.split()[1:]}
    digits = all(re.search(r"\d", name) and re.search(r"[^\W\d]|[_-]", name) for name in ids)
    shared = len(set(ids) & set(of_reference))
    return digits and len(set(ids)) >= 0.9 * len(ids) and 2 * shared >= len(set(ids)) and not elsewhere & set(ids)


def _guess(paths: Sequence[Path | str], files: list[list[str]]) -> Reading:
    firsts = [[line.split(maxsplit=1)[0] for line in lines if line.strip()] for lines in files]
    if all(_are_ids(ids, firsts[0], lines) for ids, lines in zip(firsts, files, strict=True)):
        return "kaldi"  # although a line may be blank, or an id repeated, which is an error then
    certain = [len(ids) > 1 and _are_ids(ids, ids, lines) for ids, lines in zip(firsts, files, strict=True)]
    for one, other in product(range(len(paths)), repeat=2):
        if certain[one] and not certain[other] and not set(firsts[one]) & set(firsts[other]):
            raise MismatchError(
                f"{paths[one]}: each line begins with an utterance id ({firsts[one][0]}, ...), which is not so in"
                f" {paths[other]}; pass both files with ids, or both without, or set --format plain to score all words"
            )
    if all(map(_have_spaced_ids, files)):
        id_ = " ".join(next(line for line in files[0] if line.strip()).split()[:2])
        raise FormatError(
            f"{paths[0]}: its lines seem to begin with utterance ids that contain a space (`{id_}`); write ids without"
            " spaces (utt_1), or set --format plain to score all words"
        )
    repeated = any(len(set(ids)) < len(ids) for ids in firsts)
    if repeated or any(not line.strip() for lines in files for line in lines):
        return "plain"  # a sentence may be empty, but a line of Kaldi text may not
    shared = [len(set(firsts[0]) & set(ids)) for ids in firsts[1:]]
    overlap = all(2 * count >= min(len(ids), len(firsts[0])) for count, ids in zip(shared, firsts[1:], strict=True))
    alike = [looks_like_ids(ids, lines) for ids, lines in zip(firsts, files, strict=True)]
    if overlap and (all(alike) or any(len(lines) != len(files[0]) for lines in files)):
        return "kaldi"
    if all(alike) and not overlap:
        raise MismatchError(
            f"{paths[0]} and {paths[1]}: both look like Kaldi text, but fewer than half of their utterance ids agree "
            f"({firsts[0][0]}, {firsts[1][0]}); pass files of the same set, with the same ids"
            + ("" if all(map(_seem_ids, files)) else ", or set --format plain if these are words")
        )
    return "plain"


def _seem_ids(lines: Sequence[str]) -> bool:
    """Whether the first words of nearly all lines have digits, among other characters, and occur only once."""
    counts = Counter(word for line in lines for word in line.split())
    firsts = [line.split()[0] for line in lines if line.strip()]
    like = [name for name in firsts if re.search(r"\d", name) and re.search(r"[^\W\d]|[_-]", name)]
    return len(firsts) > 1 and sum(counts[name] == 1 for name in like) >= 0.9 * len(firsts)


def _have_spaced_ids(lines: list[str]) -> bool:
    """Whether all lines begin with one word and then a number, different in each line, as in ``utt 1 hello``."""
    heads = [line.split()[:2] for line in lines if line.strip()]
    numbers = {head[1] for head in heads if len(head) == 2 and head[1].isdecimal()}
    names = {head[0] for head in heads if not head[0].isdecimal()}
    return len(names) == 1 < len(heads) == len(numbers)


def _plain(paths: Sequence[Path | str], files: list[list[str]]) -> list[dict[str, str]]:
    texts = []
    for path, lines in zip(paths, files, strict=True):
        while len(lines) > len(files[0]) and not lines[-1].strip():
            lines.pop()
        if len(lines) != len(files[0]):
            raise MismatchError(
                f"{path} has {len(lines)} lines, {paths[0]} has {len(files[0])}: files of plain text must have one "
                "sentence per line and the same number of lines; in Kaldi text each line must begin with an utterance "
                "id that is in both files (--format)"
            )
        texts.append({f"line-{number}": line.strip() for number, line in enumerate(lines, 1)})
    return texts


@dataclass(frozen=True)
class Texts:
    """What is compared."""

    # utterance to text, for each hypothesis: they differ if references allow several texts
    references: list[dict[str, str]]
    hypotheses: list[dict[str, str]]
    readings: tuple[Reading, ...]  # how each file was read, the reference first
    speakers: dict[str, str] | None = None  # those that the reference names; None if its format has none
    notes: tuple[str, ...] = ()  # what the user should know about the reading


def read_all(
    paths: Sequence[Path | str],
    reading: Reading | Literal["auto"] = "auto",
    normalize: Callable[[str], str] = str,
) -> Texts:
    """Read a reference and hypotheses, each by its own format.

    Parameters
    ----------
    paths
        The reference first.
    reading
        For all files. ``kaldi``: each line is an utterance id and its words. ``plain``: one sentence per line; the n-th
        line of one file is compared with the n-th of the other. Or a format of sclite: ``trn`` or ``ctm``, or ``stm``
        for a reference with CTM files as hypotheses. ``auto``: by the names and the content of the files; Kaldi text if
        the first fields of the lines are unique in each file, look like ids and agree in most lines.
    normalize
        Is applied to words before alternatives in the reference are compared with a hypothesis.

    Raises
    ------
    Speech3Error
        A file is missing, empty, or of an unknown or mixed format; ids are repeated, or the files have too few in
        common; plain files differ in their number of lines; a hypothesis has alternatives.
    """
    # The format of each file.
    files = [_lines(path) for path in paths]
    kinds: list[Sclite | None] = [None] * len(paths)
    if reading == "auto":
        kinds = [formats.format_of(path, lines) for path, lines in zip(paths, files, strict=True)]
    elif reading == "trn":
        kinds = ["trn"] * len(paths)
    elif reading in ("stm", "ctm"):
        kinds = [reading if place == 0 else "ctm" for place in range(len(paths))]
    for path, lines in zip(paths, files, strict=True):
        if not (formats.numbered(lines) if any(kinds) else any(line.strip() for line in lines)):
            raise DataError(
                f"{path}: is empty, so there is nothing to score; if it is a hypothesis, nothing was decoded: decode"
                " again"
            )
    if not any(kinds):
        # Kaldi text or plain text.
        taken: Reading = _guess(paths, files) if reading == "auto" else reading
        texts = _plain(paths, files) if taken == "plain" else list(map(_parse_kaldi, paths, files))
        for path, lines in zip(paths, files, strict=True) if reading == "auto" else ():
            _refuse_sclite_marks(path, lines, taken)
        notes = [
            f"{path}: its lines seem to begin with utterance ids ({' '.join(lines).split()[0]}, ...), which are scored"
            " as words; remove them, or leave out --format plain"
            for path, lines in zip(paths, files, strict=True)
            if taken == "plain" and _seem_ids(lines)
        ]
        return Texts([texts[0]] * (len(texts) - 1), texts[1:], (taken,) * len(texts), notes=tuple(notes))
    readings: tuple[Reading, ...] = tuple(kind or "kaldi" for kind in kinds)
    _check_pairs(paths, readings)
    if readings[0] == "stm":
        return _with_stm(paths, files, readings, normalize)
    by_channel = set(readings) == {"ctm"}
    if None in kinds:
        _check_ids(paths, files, kinds)
    read = [_lines_of(path, lines, kind, by_channel) for path, lines, kind in zip(paths, files, readings, strict=True)]
    for path, found in zip(paths[1:], read[1:], strict=True):
        shared = len(read[0].keys() & found.keys())
        if 2 * shared < min(len(read[0]), len(found)):
            ids = next(iter(read[0]), "none"), next(iter(found), "none")
            raise MismatchError(
                f"{paths[0]} ({readings[0]}) and {path} ({readings[paths.index(path)]}): fewer than half of their"
                f" utterance ids agree ({', '.join(ids)}); pass files of the same set, each line with its utterance id"
            )
    return _compared(read[0], read[1:], readings, normalize)


def read_ids(path: Path | str) -> dict[str, str]:
    """Read Kaldi text or .trn, whichever it is: utterance id to its words."""
    lines = _lines(path)
    kind = formats.format_of(path, lines)
    if kind is None:
        return _parse_kaldi(path, lines)
    if kind != "trn":
        raise SettingError(f"{path}: .{kind} has no utterance ids; pass Kaldi text or .trn")
    found = formats.parse_trn(path, lines)
    _refuse_alternatives(found, "one text for each utterance is needed here")
    return {name: line.text for name, line in found.items()}


def _refuse_sclite_marks(path: Path | str, lines: Sequence[str], reading: Reading) -> None:
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith(formats.COMMENT):
            problem = "a comment of sclite's formats"
        elif re.search(r"\{[^{}]*\s/\s[^{}]*\}", line):
            problem = "alternatives in braces"
        else:
            continue
        raise FormatError(
            f"{path}:{number}: {problem}, but the file is read as {reading} text, which has none; name a file .trn or"
            f" .stm if it is one, correct the line, or set --format {reading} to score it as it is"
        )


def _refuse_alternatives(found: Mapping[str, Line], why: str) -> None:
    for line in found.values():
        if not is_simple(line.text):
            raise FormatError(f"{line.where}: has alternatives or optional words; {why}")


def _check_pairs(paths: Sequence[Path | str], readings: Sequence[Reading]) -> None:
    for path, kind in zip(paths[1:], readings[1:], strict=True):
        if kind == "stm":
            raise SettingError(f"{path}: .stm is a format of references; pass the hypothesis as .ctm")
        if readings[0] == "stm" and kind != "ctm":
            raise SettingError(
                f"{path}: the segments of {paths[0]} (.stm) have times instead of utterance ids; pass the hypothesis as"
                " .ctm, whose words have times"
            )


def _check_ids(paths: Sequence[Path | str], files: Sequence[list[str]], kinds: Sequence[Sclite | None]) -> None:
    """Raise an error for a file of no known format whose lines do not begin with the ids of one that has a format."""
    known = next(place for place, kind in enumerate(kinds) if kind)
    ids = _lines_of(paths[known], files[known], kinds[known] or "kaldi", by_channel=False).keys()
    for path, lines, kind in zip(paths, files, kinds, strict=True):
        firsts = [line.split()[0] for line in lines if line.strip()]
        if kind is None and 2 * sum(name in ids for name in firsts) < min(len(firsts), len(ids)):
            raise MismatchError(
                f"{path}: fewer than half of its lines begin with an utterance id of {paths[known]} (.{kinds[known]}),"
                " and it is of no other format with ids; pass both files in one format"
            )


def _lines_of(path: Path | str, lines: list[str], kind: Reading, by_channel: bool) -> dict[str, Line]:
    """The texts of a file that is no STM; those of a CTM by its recordings, and their channels if `by_channel`."""
    if kind == "trn":
        return formats.parse_trn(path, lines)
    if kind == "kaldi":
        return {name: Line(text, f"{path}: {name}") for name, text in _parse_kaldi(path, lines).items()}
    found: dict[str, Line] = {}
    for (file, channel), words in formats.parse_ctm(path, lines).items():
        name = f"{file}-{channel}" if by_channel else file
        if name in found:
            raise FormatError(f"{path}: {file} has several channels, which the other files do not have")
        found[name] = Line(" ".join(word.text for word in words), words[0].where)
    return found


def _with_stm(
    paths: Sequence[Path | str],
    files: list[list[str]],
    readings: tuple[Reading, ...],
    normalize: Callable[[str], str],
) -> Texts:
    segments = formats.parse_stm(paths[0], files[0])
    scored = [segment for segment in segments if segment.text is not None]
    places = {(segment.file, segment.channel) for segment in segments}
    hypotheses, notes = [], []
    for path, lines in zip(paths[1:], files[1:], strict=True):
        words = formats.parse_ctm(path, lines)
        if not places & words.keys():
            one, other = " ".join(next(iter(sorted(places)))), " ".join(next(iter(words)))
            raise MismatchError(
                f"{path}: has no recording and channel of {paths[0]} ({other}; {one}); pass files of the same set"
            )
        if absent := sorted(words.keys() - places):
            notes.append(f"{path}: not scored, since the reference does not have them: {listed(map(' '.join, absent))}")
        divided = formats.by_segments(segments, words)
        heard = ((name, track, track[0].where if track else str(path)) for name, track in divided.items())
        hypotheses.append({name: Line(" ".join(word.text for word in track), where) for name, track, where in heard})
    if len(scored) < len(segments):
        notes.append(f"marked {formats.IGNORED[0]} and not scored: {counted(len(segments) - len(scored), 'segment')}")
    if both := formats.overlapping(segments):
        notes.append(
            f"{len(both)} segments begin before the one before them ends ({listed((each.where for each in both), 3)});"
            " words are divided by their times, as sclite does, which may be wrong there"
        )
    references = {segment.name: Line(segment.text or "", segment.where) for segment in scored}
    found = _compared(references, hypotheses, readings, normalize)
    speakers = {segment.name: segment.speaker for segment in scored}
    return Texts(found.references, found.hypotheses, readings, speakers, (*notes, *found.notes))


def _compared(
    reference: dict[str, Line],
    hypotheses: list[dict[str, Line]],
    readings: tuple[Reading, ...],
    normalize: Callable[[str], str],
) -> Texts:
    for kind, found in zip(readings[1:], hypotheses, strict=True):
        if kind != "kaldi":
            _refuse_alternatives(found, "a hypothesis is one text")
    several = {name for name, line in reference.items() if readings[0] != "kaldi" and not is_simple(line.text)}
    known = {*NOT_SCORED, *(word for line in reference.values() for word in line.text.split())}
    notes: list[str] = []
    chosen, heard = [], []
    for kind, found in zip(readings[1:], hypotheses, strict=True):
        hypothesis = {name: line.text for name, line in found.items()}
        if kind == "ctm" and (guesses := _guesses(hypothesis.values(), known)):
            bare = {guess: guess[1:-1] for guess in guesses}
            hypothesis = {name: " ".join(bare.get(w, w) for w in text.split()) for name, text in hypothesis.items()}
            notes.append(
                "words in angle brackets in .ctm are guesses, and are scored without the brackets:"
                f" {counted(len(bare), 'word')}, such as {listed(guesses, 3)}"
            )
        best, said = resolve({name: reference[name] for name in several}, hypothesis, normalize)
        chosen.append({name: best.get(name, line.text) for name, line in reference.items()})
        heard.append(said)
    if several:
        notes.append(
            f"{len(several)} references have alternatives or optional words: the text nearest to the hypothesis is"
            " scored, and an optional word that was left out is correct (as sclite -D does)"
        )
    return Texts(chosen, heard, readings, None, tuple(notes))


def _guesses(texts: Iterable[str], known: Collection[str]) -> list[str]:
    """The words of a CTM in angle brackets, except those of references and symbols for noise and unknown words."""
    words = dict.fromkeys(word for text in texts for word in text.split())
    marked = (word for word in words if word.startswith("<") and word.endswith(">") and len(word) > 2)
    return [word for word in marked if word not in known and word.lower() not in known]


def find_speakers(
    ref: Path, texts: dict[str, str], reading: Reading, utt2spk: Path | None
) -> tuple[dict[str, str] | None, str]:
    """Speakers of the utterances of `texts`, and one line that says where they come from.

    By default they are read from the `utt2spk` beside `ref`, if it names every utterance; a file that is given must.
    """
    beside = ref.parent / "utt2spk"
    if utt2spk is None and (reading == "plain" or not beside.is_file()):
        return None, "not known (--utt2spk FILE)"
    path = utt2spk or beside
    speakers = read_text(path)
    lacking = next((name for name in texts if not speakers.get(name)), None)
    if lacking is None:
        return speakers, str(path)
    if utt2spk is None:
        return None, f"not known: {path} lacks {lacking}"
    raise MissingError(f"{path}: utterance {lacking} has no speaker; add one")
