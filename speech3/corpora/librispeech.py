"""LibriSpeech and mini LibriSpeech: read English, 16 kHz (CC BY 4.0; Panayotov et al. 2015).

https://www.openslr.org/12, https://www.openslr.org/31. A part has a directory for each speaker and chapter:

    PART/SPEAKER/CHAPTER/SPEAKER-CHAPTER-0000.flac
    PART/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt     lines ``SPEAKER-CHAPTER-0000 TEXT IN CAPITALS``
    SPEAKERS.TXT                                       lines ``ID | SEX | PART | MINUTES | NAME``

Lexicon and language models (https://www.openslr.org/11) may be beside the parts, or beside the directory
``LibriSpeech`` that contains the parts; a subdirectory ``lm`` there is searched, too.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from speech3.corpora.anyspeech import SET_NAMES, say_if_incomplete, split_data, write_corpus
from speech3.data import DataDir, Utterance, files_below, matching_paths
from speech3.errors import FormatError, MissingError
from speech3.language import LangDir, check_english
from speech3.runtime import numbered_lines, read_utf8, say, write_json

# Number of utterances of each part.
PARTS = {"train-clean-5": 1519, "train-clean-100": 28539, "train-clean-360": 104014, "train-other-500": 148688}
PARTS |= {"dev-clean-2": 1089, "dev-clean": 2703, "dev-other": 2864, "test-clean": 2620, "test-other": 2939}
_LIES_IN = {"train-clean-5": "train-clean-100", "dev-clean-2": "dev-clean"}  # mini LibriSpeech is a part of the whole
_TESTS, _DEVS = ("test-clean", "dev-clean-2", "test-other"), ("dev-clean", "dev-clean-2", "dev-other")
_LEXICON = "librispeech-lexicon.txt"
_ARPAS = ("3-gram.pruned.3e-7.arpa.gz", "3-gram.pruned.1e-7.arpa.gz", "3-gram.arpa.gz")  # the smallest first
_DEV_SHARE = 0.1


def prepare(
    source: Path,
    out: Path,
    seed: int,
    *,
    train: Sequence[str] = (),
    dev: str = "",
    test: str = "",
    lang: str | None = None,
    lexicon: str = "espeak",
    units: str = "words",
    pieces: int = 500,
) -> None:
    """See `speech3.corpora`; `source` is the directory ``LibriSpeech``, or holds it.

    `train`: parts to train on; by default all ``train-*`` in `source`, without train-clean-5 where train-clean-100
    contains it.
    `dev`, `test`: one part each. By default test is test-clean, else, as in Kaldi's recipe for mini LibriSpeech,
    dev-clean-2, else test-other; dev is dev-clean, else dev-clean-2, else dev-other, else a tenth of the training
    speech, drawn by `seed`. No part is chosen that shares utterances with the other: dev-clean-2 lies in dev-clean.
    `lang` (must be English), `lexicon`, `units`, `pieces`: as for `anyspeech.prepare`.
    """
    check_english(lang, "LibriSpeech")
    root, names, dev, test = _chosen(source, train, dev, test)
    sexes = _sexes(root / "SPEAKERS.TXT")
    say(f"  train: {', '.join(names)}; dev: {dev or 'a tenth of train'}; test: {test}")
    parts = {"train": _parts(root, names, sexes), "test": _parts(root, [test], sexes)}
    if dev:
        parts["dev"] = _parts(root, [dev], sexes)
    else:
        parts |= split_data(parts["train"], {"dev": _DEV_SHARE}, seed)
    parts = {name: parts[name] for name in ("train", "dev", "test")}
    given = _lang(root)
    named = {"lm": given.arpa.name.removesuffix(".arpa.gz")} if given.arpa else {}
    write_json(out / SET_NAMES, {"train": " + ".join(names), "test": test, **named})
    write_corpus(parts, given, out, lang=lang, lexicon=lexicon, units=units, pieces=pieces)


def recordings_in_use(source: Path, *, train: Sequence[str] = (), dev: str = "", test: str = "") -> Iterator[Path]:
    """The recordings of the parts that `prepare` would take; arguments and errors as there."""
    root, names, dev, test = _chosen(source, train, dev, test)
    for part in dict.fromkeys((*names, *([dev] if dev else []), test)):
        yield from files_below(root / part)


def _chosen(source: Path, train: Sequence[str], dev: str, test: str) -> tuple[Path, list[str], str, str]:
    """The directory that holds the parts; the parts of train, and dev and test. Without a part for dev it is empty."""
    root = _root(source)
    available = [part for part in PARTS if (root / part).is_dir()]
    names = list(train) or [
        part for part in available if part.startswith("train-") and _LIES_IN.get(part) not in available
    ]
    test = test or next((part for part in _TESTS if part in available and not _overlap(part, dev)), "")
    dev = dev or next((part for part in _DEVS if part in available and not _overlap(part, test)), "")
    if not names or not test:
        raise MissingError(
            f"{root}: no part to {'test' if names else 'train'} on: unpack train-clean-5 and dev-clean-2"
            " (https://www.openslr.org/31) or larger ones (https://www.openslr.org/12) there"
        )
    for name in dict.fromkeys((*names, test, *([dev] if dev else []))):
        if not (root / name).is_dir():
            raise MissingError(f"{root}: no part {name} here; there are: {', '.join(available)}")
    return root, names, dev, test


def _overlap(one: str, other: str) -> bool:
    return one == other or _LIES_IN.get(one) == other or _LIES_IN.get(other) == one


def _root(source: Path) -> Path:
    for root in (source, source / "LibriSpeech"):
        if any((root / part).is_dir() for part in PARTS):
            return root
    raise MissingError(
        f"{source}: not LibriSpeech: no part such as train-clean-5 here or in LibriSpeech/; get it from"
        " https://www.openslr.org/31 (5 hours) or https://www.openslr.org/12, and unpack it"
    )


def _parts(root: Path, names: Sequence[str], sexes: dict[str, str]) -> DataDir:
    recordings, utterances = dict[str, str](), dict[str, Utterance]()
    for name in names:
        found = _part(root / name, sexes)
        say_if_incomplete(name, len(found), PARTS.get(name, 0))
        recordings |= {key: path for key, (path, _) in found.items()}
        utterances |= {key: utterance for key, (_, utterance) in found.items()}
    return DataDir(root, recordings, dict(sorted(utterances.items())))


def _part(part: Path, sexes: dict[str, str]) -> dict[str, tuple[str, Utterance]]:
    found = dict[str, tuple[str, Utterance]]()
    for transcript in matching_paths(part, "*/*/*.trans.txt"):
        speaker, texts = transcript.parent.parent.name, _texts(transcript)
        available = {path.stem: str(path.absolute()) for path in matching_paths(transcript.parent, "*.flac")}
        if lacking := sorted(set(texts) - set(available)):
            raise MissingError(
                f"{transcript}: {len(lacking)} of its {len(texts)} recordings are missing, such as"
                f" {lacking[0]}.flac: unpack {part.name} again"
            )
        for key, text in texts.items():
            found[key] = available[key], Utterance(key, key, speaker, text, gender=sexes.get(speaker))
    if not found:
        other = next(part.glob("*/*/*.trans.tsv"), None)  # LibriTTS has the same parts
        remedy = "this is LibriTTS, another corpus; get LibriSpeech" if other else "unpack it again"
        raise MissingError(f"{part}: no SPEAKER/CHAPTER/*.trans.txt in it: {remedy}")
    return found


def _texts(transcript: Path) -> dict[str, str]:
    texts = {}
    for where, line in numbered_lines(transcript):
        key, _, text = line.strip().partition(" ")
        if not text:
            raise FormatError(f"{where}: not an utterance and its text: `{line[:60]}`; unpack it again")
        texts[key] = " ".join(text.split())
    return texts


def _sexes(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    rows = (line.split("|") for line in read_utf8(path).splitlines() if not line.startswith(";"))
    return {row[0].strip(): row[1].strip().lower() for row in rows if len(row) > 2}


def _lang(root: Path) -> LangDir:
    places = (root, root.parent, root / "lm", root.parent / "lm")
    lexicon = next((place / _LEXICON for place in places if (place / _LEXICON).is_file()), None)
    arpa = next((place / name for name in _ARPAS for place in places if (place / name).is_file()), None)
    say(f"  lexicon: {lexicon or 'by espeak-ng'}; language model: {arpa or 'estimated on the transcripts of train'}")
    return LangDir(lexicon, arpa, None)
