"""TIMIT: read American English with phones labelled by hand, 16 kHz (LDC93S1; Garofolo et al. 1993).

https://catalog.ldc.upenn.edu/LDC93S1. Names are in upper or in lower case:

    TIMIT/{TRAIN,TEST}/DR*/SPEAKER/NAME.WAV    NIST sphere
    TIMIT/{TRAIN,TEST}/DR*/SPEAKER/NAME.PHN    lines ``BEGIN END PHONE``, in samples

A phone is a word of the recogniser here. Of the 61 phones 60 are words; ``h#``, the silence at both ends of a
recording, is the silence that every model has. Sentences SA1 and SA2, which all speakers read, are left out.
"""

from collections.abc import Iterator
from pathlib import Path

from speech3.config import shipped
from speech3.corpora.anyspeech import say_if_incomplete
from speech3.data import DataDir, Utterance, entry_of_any_case, matching_paths, phones61, write_datadir
from speech3.errors import DataError, FormatError, MissingError
from speech3.runtime import numbered_lines, say, write_text

UTTERANCES = {"train": 3696, "dev": 400, "test": 192}
ENDS = "h#"
SILENCE = "SIL"  # its name in the HMM
RATE_HZ = 16000
_SPHERE = b"NIST_1A"


def prepare(source: Path, out: Path, seed: int) -> None:
    """See `speech3.corpora`; `source` is the directory ``TIMIT``, or holds it.

    train: all of TRAIN. test: the core test set. dev: the usual 50 speakers of TEST. ``reference.ctm`` of dev and test
    has the phones with the times that were labelled by hand.
    """
    train, test = _halves(source)
    wanted = _speakers_of_test()
    available = dict(_speakers(test))
    for part, names in wanted.items():
        if lacking := [name for name in names if name not in available]:
            raise MissingError(
                f"{test}: {len(lacking)} of the {len(names)} speakers of {part} are missing, such as {lacking[0]};"
                " unpack the corpus again"
            )
    parts = {
        "train": dict(_speakers(train)),
        **{p: {name: available[name] for name in wanted[p]} for p in ("dev", "test")},
    }
    for part, speakers in parts.items():
        data, tracks = _part(source, speakers)
        say_if_incomplete(part, len(data.utterances), UTTERANCES[part])
        write_datadir(data, out / part)
        if part != "train":
            write_text(out / part / "reference.ctm", "".join(tracks))
    write_text(out / "lexicon.txt", "".join(f"{phone} {phone}\n" for phone in phones61() if phone != ENDS))
    say(f"  {len(phones61())} phones, {ENDS} as silence; 39 classes are scored")


def _halves(source: Path) -> tuple[Path, Path]:
    for root in (source, *(source / name for name in ("TIMIT", "timit", "TIMIT/TIMIT", "timit/TIMIT", "data"))):
        train, test = entry_of_any_case(root, "train"), entry_of_any_case(root, "test")
        if not (train or test):
            continue
        for name, half in (("TRAIN", train), ("TEST", test)):
            if half is None or not half.is_dir() or not dict(_speakers(half)):
                raise MissingError(f"{root}: {name}/DR*/SPEAKER is missing; unpack the corpus again")
        assert train and test
        return train, test
    raise MissingError(
        f"{source}: not TIMIT: no TRAIN/ and TEST/ here or in TIMIT/; it is LDC93S1"
        " (https://catalog.ldc.upenn.edu/LDC93S1); pass the directory that holds TRAIN"
    )


def _speakers(half: Path) -> Iterator[tuple[str, Path]]:
    for region in matching_paths(half, "*/"):
        if region.name.upper().startswith("DR"):
            yield from ((path.name.upper(), path) for path in matching_paths(region, "*/"))


def _speakers_of_test() -> dict[str, list[str]]:
    text = (shipped("data") / "timit" / "speakers.txt").read_text(encoding="utf-8")
    table: dict[str, list[str]] = {}
    for part, *names in (line.split() for line in text.splitlines() if not line.startswith("#")):
        table.setdefault(part, []).extend(names)
    return table


def _part(source: Path, speakers: dict[str, Path]) -> tuple[DataDir, list[str]]:
    recordings, utterances, tracks = dict[str, str](), dict[str, Utterance](), list[str]()
    for speaker, directory in sorted(speakers.items()):
        files = {path.name.upper(): path for path in matching_paths(directory, "*")}
        sentences = sorted(name.removesuffix(".PHN") for name in files if name.endswith(".PHN"))
        if not sentences:
            raise MissingError(f"{directory}: no labels *.PHN in it; unpack the corpus again")
        for sentence in sentences:
            if sentence.startswith("SA"):
                continue
            key, labels = f"{speaker}-{sentence}", files[f"{sentence}.PHN"]
            recordings[key] = str(_recording(files, labels).absolute())
            track = _phones(labels)
            text = " ".join(phone for _, _, phone in track if phone != ENDS)
            utterances[key] = Utterance(key, key, speaker, text, gender=speaker[0].lower())
            tracks += [
                f"{key} 1 {begin / RATE_HZ:.5f} {(end - begin) / RATE_HZ:.5f} {SILENCE if p == ENDS else p}\n"
                for begin, end, p in track
            ]
    return DataDir(source, recordings, utterances), tracks


def _recording(files: dict[str, Path], labels: Path) -> Path:
    path = files.get(f"{labels.stem.upper()}.WAV")
    if path is None:
        raise MissingError(f"{labels.with_suffix('.WAV')}: no such file, but its labels are there; unpack it again")
    with path.open("rb") as stream:
        head = stream.read(1024)
    if head.startswith(_SPHERE) and b"shorten" in head:
        raise FormatError(
            f"{path}: compressed by shorten, unlike TIMIT as distributed, and libsndfile cannot read it; convert it"
            " with sph2pipe -f wav"
        )
    return path


def read_labels(path: Path) -> Iterator[tuple[str, int, int, str]]:
    """The lines of a ``.phn`` or ``.wrd`` file: the place for messages, begin and end in samples, the label."""
    for where, line in numbered_lines(path):
        begin, end, label = (*line.split(maxsplit=2), "", "")[:3]
        if not (begin.isdigit() and end.isdigit() and int(begin) <= int(end) and label.strip()):
            raise FormatError(f"{where}: not `BEGIN END LABEL` in samples: `{line[:60]}`; unpack it again")
        yield where, int(begin), int(end), label.strip()


def _phones(path: Path) -> list[tuple[int, int, str]]:
    known, track = set(phones61()), []
    for where, begin, end, phone in read_labels(path):
        if phone.lower() not in known:
            raise FormatError(f"{where}: {phone} is not one of TIMIT's 61 phones; is this another version?")
        track.append((begin, end, phone.lower()))
    if not any(phone != ENDS for _, _, phone in track):
        raise DataError(f"{path}: has no phones; unpack it again")
    return track
