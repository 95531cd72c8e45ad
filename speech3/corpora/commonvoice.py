"""Common Voice, any language: read sentences, recorded by volunteers, as mp3 (CC0; https://commonvoice.mozilla.org).

    LANGUAGE/train.tsv, dev.tsv, test.tsv    columns client_id, path, sentence, ...: the official splits
    LANGUAGE/clips/NAME.mp3

The official splits share no speaker and no sentence. A release without them, or with an empty one (of a small
language), has ``validated.tsv``, from which splits are drawn.
"""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import soundfile

from speech3.corpora.anyspeech import DEV_SHARE, TEST_SHARE, split_data, write_corpus
from speech3.data import DataDir, Utterance, case_doubts, lower_case, normalize_text, parse_steps, words_with_sharp_s
from speech3.errors import (
    DataError,
    FormatError,
    MachineError,
    MismatchError,
    MissingError,
    Speech3Error,
    check_bad,
    counted,
)
from speech3.language import espeak, find_lang
from speech3.runtime import read_utf8, say, to_one_form

_SPLITS = ("train", "dev", "test")
_ALL = "validated.tsv"
_COLUMNS = ("client_id", "path", "sentence")
_SHOWN = 3
# Codes that count as one language: Common Voice and espeak-ng have different codes for some languages.
_ONE_LANGUAGE = ({"zh", "cmn", "yue", "hak", "nan"}, {"nb", "nn", "no"}, {"ckb", "kmr", "ku"}, {"sr", "hr", "bs"})


def prepare(
    source: Path,
    out: Path,
    seed: int,
    *,
    normalize: str = "nfkc,lower,punct",
    lang: str | None = None,
    lexicon: str = "espeak",
    units: str = "words",
    pieces: int = 500,
) -> None:
    """See `speech3.corpora`; `source` is the directory of a language, ``cv-corpus-VERSION/LANGUAGE``.

    Its ``lang/``, if any, and `lang`, `lexicon`, `units`, `pieces` are as for `anyspeech.prepare`.
    `seed`: of the splits, if the release has none, or an empty one.
    `normalize`: steps for the sentences (`speech3.data.normalize_text`); lower case is that of the language in the
    column `locale`, or of `lang`.

    Raises Speech3Error as every corpus, or if `source` is in another language than `lang`, more than 5 % of its clips
    are missing, or libsndfile cannot read mp3.
    """
    if "MP3" not in soundfile.available_formats():
        raise MachineError("this libsndfile reads no mp3: pip install -U soundfile")
    if lang and lexicon == "espeak":
        _check_language(source, lang)
    steps = parse_steps(normalize)
    tables, why = _tables(source)
    normal = _normalisation(tables.values(), steps, lang)
    parts = {name: _read(source, table.name, normal) for name, table in tables.items()}
    if why:
        say(f"  {why}: splits are drawn from {tables['train'].name}")
        drawn = split_data(parts["train"], {"dev": DEV_SHARE, "test": TEST_SHARE}, seed)
        parts = {name: drawn[name] for name in _SPLITS}
    write_corpus(parts, find_lang(source / "lang"), out, lang=lang, lexicon=lexicon, units=units, pieces=pieces)


def recordings_in_use(source: Path) -> Iterator[Path]:
    """The clips that the tables in use name; errors as those of `prepare`."""
    for table in _tables(source)[0].values():
        for row in _rows(table):
            path = source / "clips" / _clip(row)
            if path.is_file():
                yield path


def _tables(source: Path) -> tuple[dict[str, Path], str]:
    """The tables of the official splits; or, if one of them is absent or empty, one for all, and why it is used."""
    official = {name: source / f"{name}.tsv" for name in _SPLITS}
    absent = [path.name for path in official.values() if not path.is_file()]
    empty = [path.name for path in official.values() if path.is_file() and _is_empty(path)]
    if not absent and not empty:
        return official, ""
    why = f"no clip in {' and '.join(empty)}" if empty else "no official splits"
    if (source / _ALL).is_file():
        return {"train": source / _ALL}, why
    if absent:
        raise MissingError(
            f"{source}: not a language of Common Voice: it needs train.tsv, dev.tsv and test.tsv, or {_ALL}, and"
            " clips/; pass cv-corpus-VERSION/LANGUAGE of the unpacked archive"
        )
    raise DataError(f"{source}: {why}, and no {_ALL}, from which splits are drawn then; unpack the archive again")


def _is_empty(table: Path) -> bool:
    with table.open("rb") as lines:
        return not any(line.strip() for line in islice(lines, 1, None))


def _check_language(source: Path, lang: str) -> None:
    """Raise an error if the tables name another language than `lang`; only warn if espeak-ng does not have it."""
    tables = (source / name for name in (*(f"{split}.tsv" for split in _SPLITS), _ALL))
    table = next((path for path in tables if path.is_file() and not _is_empty(path)), None)
    if table is None:
        return  # reported later
    locale = _locale([table])
    language, given = (code.lower().partition("-")[0] for code in (locale, lang))
    if not language or language == given or any({language, given} <= codes for codes in _ONE_LANGUAGE):
        return
    try:
        espeak.voice_of(language)
    except Speech3Error:
        say(f"  warning: {table} is in {locale}, which espeak-ng does not know, and is pronounced as lang={lang}")
        return
    raise MismatchError(f"{table}: its sentences are in {locale}, but lang={lang}; set lang={language}")


def _rows(table: Path) -> list[dict[str, str]]:
    lines = io.StringIO(read_utf8(table), newline=None)  # not splitlines(): U+2028 in a sentence does not end the line
    rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    if rows and (lacking := [column for column in _COLUMNS if column not in rows[0]]):
        raise MissingError(f"{table}: no column {', '.join(lacking)}; this is not a table of Common Voice's clips")
    for row in rows:
        if any(row[column] is None for column in _COLUMNS):
            raise FormatError(f"{table}: a line is cut short: `{row['client_id'][:60]}`; unpack the archive again")
    return rows


def _clip(row: dict[str, str]) -> str:
    return row["path"] if row["path"].endswith(".mp3") else f"{row['path']}.mp3"


def _locale(tables: Iterable[Path]) -> str:
    row = next((row for table in tables for row in _rows(table)), {})
    return (row.get("locale") or "").strip()


def _normalisation(tables: Iterable[Path], steps: tuple[str, ...], lang: str | None) -> Callable[[str], str]:
    """What is done with sentences; capitals are lowered by the rules of the tables' locale, else of `lang`."""
    tables = tuple(tables)
    language = _locale(tables) or lang or ""

    def sentences() -> Iterator[str]:  # read again only if the language needs it
        return (row["sentence"] for table in tables for row in _rows(table))

    if "lower" in steps and not language and (doubt := case_doubts(sentences())):
        say(f"  warning: {doubt}")
    lower = partial(lower_case, language=language, spellings=words_with_sharp_s(sentences(), language))
    return lambda sentence: to_one_form(normalize_text(sentence, steps, lower))


def _read(source: Path, name: str, normal: Callable[[str], str]) -> DataDir:
    table = source / name
    rows = _rows(table)
    available = {path.name for path in (source / "clips").iterdir()} if (source / "clips").is_dir() else set[str]()
    recordings, utterances, bad = dict[str, str](), dict[str, Utterance](), dict[str, str]()
    unspoken, shown = Counter[str](), list[str]()
    for row in rows:
        clip, said = _clip(row), normal(row["sentence"])
        speaker = row["client_id"][:16]
        key = f"{speaker}-{Path(clip).stem}"
        if clip not in available:
            bad[key] = f"{source / 'clips' / clip}: no such file"
        elif not said:
            unspoken[row["sentence"]] += 1
        else:
            recordings[key] = str((source / "clips" / clip).absolute())
            utterances[key] = Utterance(key, key, speaker, said)
            if said != row["sentence"] and len(shown) < _SHOWN:
                shown.append(f"    {row['sentence']} -> {said}")
    check_bad(bad, len(rows), str(table), "have no clip", "unpack the archive again")
    for reason in list(bad.values())[:_SHOWN]:
        say(f"  left out: {reason}")
    if unspoken:
        say(f"  {name}: left out: {counted(sum(unspoken.values()), 'clip')} without a sentence")
    say(f"  {name}: {counted(len(utterances), 'clip')} of {len({u.speaker for u in utterances.values()}):,} speakers")
    for line in shown:
        say(line)
    if not utterances:
        raise MissingError(f"{table}: no usable clip in it; unpack the archive again")
    return DataDir(source, recordings, dict(sorted(utterances.items())))
