"""LibriSpeech and mini LibriSpeech: read English, 16 kHz (CC BY 4.0; Panayotov et al. 2015).

https://www.openslr.org/12, https://www.openslr.org/31. A part has a directory for each speaker and chapter:

    PART/SPEAKER/CHAPTER/SPEAKER-CHAPTER-0000.flac
    PART/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt     lines ``SPEAKER-CHAPTER-0000 TEXT IN CAPITALS``
    SPEAKERS.TXT                                       lines ``ID | SEX | PART | MINUTES | NAME``

Lexicon and language models (https://www.openslr.org/11) may be beside the parts, or beside the directory
``LibriSpeech`` that contains the parts; a subdirectory ``lm`` there is searched, too.
"""

from collections.abc import Sequence
from pathlib import Path

from speech3.corpora.anyspeech import SET_NAMES, say_if_incomplete, split_data, write_corpus
from speech3.corpus.datadir import DataDir, Utterance
from speech3.errors import Speech3Error
from speech3.io.atomic import write_json
from speech3.io.progress import say
from speech3.lexicon.langdir import LangDir, read_utf8

# Number of utterances of each part.
PARTS = {
    "train-clean-5": 1519, "train-clean-100": 28539, "train-clean-360": 104014, "train-other-500": 148688,
    "dev-clean-2": 1089, "dev-clean": 2703, "dev-other": 2864, "test-clean": 2620, "test-other": 2939,
}  # fmt: skip
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
    """Write the data directories ``out/train``, ``out/dev``, ``out/test``, the lexicon and the language model.

    Parameters
    ----------
    source
        The directory ``LibriSpeech``, or the one that holds it.
    seed
        Random seed for drawing dev from train, if no part is left for it.
    train
        Parts to train on; by default all ``train-*`` in `source`.
    dev, test
        One part each. By default test is test-clean, else, as in Kaldi's recipe for mini LibriSpeech, dev-clean-2, else
        test-other; dev is dev-clean, else dev-clean-2, else dev-other, else a tenth of the training speech.
    lang, lexicon, units, pieces
        As for `speech3.corpora.anyspeech.prepare`.

    Raises
    ------
    Speech3Error
        `source` is not this corpus, a part is missing, or recordings are missing whose transcripts are there.
    """
    root = _root(source)
    available = [part for part in PARTS if (root / part).is_dir()]
    names = list(train) or [part for part in available if part.startswith("train-")]
    test = test or next((part for part in ("test-clean", "dev-clean-2", "test-other") if part in available), "")
    dev = dev or next(
        (part for part in ("dev-clean", "dev-clean-2", "dev-other") if part in available and part != test), ""
    )
    if not names or not test:
        raise Speech3Error(
            f"{root}: no part to {'test' if names else 'train'} on: unpack train-clean-5 and dev-clean-2"
            " (https://www.openslr.org/31) or larger ones (https://www.openslr.org/12) there"
        )
    for name in dict.fromkeys((*names, test, *([dev] if dev else []))):
        if not (root / name).is_dir():
            raise Speech3Error(f"{root}: no part {name} here; there are: {', '.join(available)}")
    sexes = _sexes(root / "SPEAKERS.TXT")
    say(f"  train: {', '.join(names)}; dev: {dev or 'a tenth of train'}; test: {test}")
    parts = {"train": _part(root, names, sexes), "test": _part(root, [test], sexes)}
    if dev:
        parts["dev"] = _part(root, [dev], sexes)
    else:
        parts |= split_data(parts["train"], {"dev": _DEV_SHARE}, seed)
    parts = {name: parts[name] for name in ("train", "dev", "test")}
    given = _lang(root)
    named = {"lm": given.arpa.name.removesuffix(".arpa.gz")} if given.arpa else {}
    write_json(out / SET_NAMES, {"train": " + ".join(names), "test": test, **named})
    write_corpus(parts, given, out, lang=lang, lexicon=lexicon, units=units, pieces=pieces)


def _root(source: Path) -> Path:
    """The directory that holds the parts."""
    for root in (source, source / "LibriSpeech"):
        if any((root / part).is_dir() for part in PARTS):
            return root
    raise Speech3Error(
        f"{source}: not LibriSpeech: no part such as train-clean-5 here or in LibriSpeech/; get it from"
        " https://www.openslr.org/31 (5 hours) or https://www.openslr.org/12, and unpack it"
    )


def _part(root: Path, names: Sequence[str], sexes: dict[str, str]) -> DataDir:
    recordings, utterances = dict[str, str](), dict[str, Utterance]()
    for name in names:
        before = len(utterances)
        for transcript in sorted((root / name).glob("*/*/*.trans.txt")):
            speaker, texts = transcript.parent.parent.name, _texts(transcript)
            available = {path.stem: str(path.absolute()) for path in transcript.parent.glob("*.flac")}
            if lacking := sorted(set(texts) - set(available)):
                raise Speech3Error(
                    f"{transcript}: {len(lacking)} of its {len(texts)} recordings are missing, such as"
                    f" {lacking[0]}.flac: unpack {name} again"
                )
            for key, text in texts.items():
                recordings[key] = available[key]
                utterances[key] = Utterance(key, key, speaker, text, gender=sexes.get(speaker))
        found = len(utterances) - before
        if not found:
            other = next((root / name).glob("*/*/*.trans.tsv"), None)  # LibriTTS has the same parts
            remedy = "this is LibriTTS, another corpus; get LibriSpeech" if other else "unpack it again"
            raise Speech3Error(f"{root / name}: no SPEAKER/CHAPTER/*.trans.txt in it: {remedy}")
        say_if_incomplete(name, found, PARTS[name])
    return DataDir(root, recordings, dict(sorted(utterances.items())))


def _texts(transcript: Path) -> dict[str, str]:
    texts = {}
    for number, line in enumerate(read_utf8(transcript).splitlines(), 1):
        key, _, text = line.strip().partition(" ")
        if not text:
            raise Speech3Error(f"{transcript}:{number}: not an utterance and its text: `{line[:60]}`; unpack it again")
        texts[key] = " ".join(text.split())
    return texts


def _sexes(path: Path) -> dict[str, str]:
    """f or m for each speaker; empty if the file was not unpacked."""
    if not path.exists():
        return {}
    rows = (line.split("|") for line in read_utf8(path).splitlines() if not line.startswith(";"))
    return {row[0].strip(): row[1].strip().lower() for row in rows if len(row) > 2}


def _lang(root: Path) -> LangDir:
    """Lexicon and smallest language model, beside the parts or above them."""
    places = (root, root.parent, root / "lm", root.parent / "lm")
    lexicon = next((place / _LEXICON for place in places if (place / _LEXICON).is_file()), None)
    arpa = next((place / name for name in _ARPAS for place in places if (place / name).is_file()), None)
    say(f"  lexicon: {lexicon or 'by espeak-ng'}; language model: {arpa or 'estimated on the transcripts of train'}")
    return LangDir(lexicon, arpa, None)
