"""AN4, CMU's census data: an hour of spelled names, numbers and dates, 16 kHz (1991).

http://www.speech.cs.cmu.edu/databases/an4/ distributes it as raw samples or as NIST sphere files:

    an4/wav/{an4_clstk,an4test_clstk}/SPEAKER/NAME.{sph,raw}
    an4/etc/{an4_train,an4_test}.fileids             lines ``an4_clstk/SPEAKER/NAME``
    an4/etc/{an4_train,an4_test}.transcription       lines ``<s> WORD WORD </s> (NAME)``
    an4/etc/an4.dic                                  lines ``WORD PH PH ...``; ``WORD(2)`` is a second pronunciation
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from speech3.corpora.anyspeech import say_if_incomplete, split_data, write_corpus
from speech3.data import DataDir, Utterance, find_damage, write_mended, write_wav
from speech3.errors import FormatError, MissingError
from speech3.language import LangDir, lexicon_text, read_dictionary
from speech3.runtime import numbered_lines, read_utf8, say, write_text

UTTERANCES = {"an4_train": 948, "an4_test": 130}
_DEV_SHARE = 0.1
_LINE = re.compile(r"(?:<s>)?(.*?)(?:</s>)?\s*\(([^()]+)\)\s*")
_SOUNDS = (".sph", ".wav", ".flac")
_RATE_HZ = 16000
_CONVERTED = "audio"  # directory for the wav files that are made of raw samples


def prepare(source: Path, out: Path, seed: int) -> None:
    """See `speech3.corpora`; `source` is ``an4``, or holds it. Dev, a tenth of the speech, is drawn from train."""
    root = next((path for path in (source, source / "an4") if (path / "etc" / "an4.dic").is_file()), None)
    if root is None:
        raise MissingError(
            f"{source}: not AN4: no etc/an4.dic here or in an4/; get an4_sphere.tar.gz from"
            " http://www.speech.cs.cmu.edu/databases/an4/ and unpack it"
        )
    train, test = _read(root, "an4_train", out / _CONVERTED), _read(root, "an4_test", out / _CONVERTED)
    for name, data in (("an4_train", train), ("an4_test", test)):
        say_if_incomplete(name, len(data.utterances), UTTERANCES[name])
    parts = {**split_data(train, {"dev": _DEV_SHARE}, seed), "test": test}
    parts = {name: _movable(parts[name], out, name) for name in ("train", "dev", "test")}
    lexicon = out / "an4.txt"
    write_text(lexicon, lexicon_text(read_dictionary(root / "etc" / "an4.dic")))
    write_corpus(parts, LangDir(lexicon, None, None), out)


def _read(root: Path, name: str, converted: Path) -> DataDir:
    ids, transcription = root / "etc" / f"{name}.fileids", root / "etc" / f"{name}.transcription"
    for path in (ids, transcription):
        if not path.is_file():
            raise MissingError(f"{path}: no such file; unpack the corpus again")
    texts = dict[str, str]()
    for where, line in numbered_lines(transcription):
        if not (match := _LINE.fullmatch(line.strip())):
            raise FormatError(f"{where}: not `<s> WORDS </s> (NAME)`: `{line[:60]}`")
        texts[match[2]] = " ".join(match[1].split())
    recordings, utterances = dict[str, str](), dict[str, Utterance]()
    for line in read_utf8(ids).split():
        place = root / "wav" / line
        if place.name not in texts:
            raise MissingError(
                f"{transcription}: no transcript of {place.name}, which {ids.name} lists; unpack it again"
            )
        key = f"{place.parent.name}-{place.name}"
        recordings[key] = str(_recording(place, converted))
        utterances[key] = Utterance(key, key, place.parent.name, texts[place.name])
    return DataDir(root, recordings, dict(sorted(utterances.items())))


def _recording(place: Path, converted: Path) -> Path:
    """The recording with this path and any extension; raw samples, which have no header, become wav in `converted`."""
    for extension in _SOUNDS:
        if (path := place.with_name(place.name + extension)).is_file():
            return path.absolute()
    raw = place.with_name(place.name + ".raw")
    if not raw.is_file():
        raise MissingError(f"{place}: no recording with this name and {', '.join(_SOUNDS)} or .raw; unpack it again")
    wav = (converted / place.parent.name / f"{place.name}.wav").absolute()
    content = raw.read_bytes()
    both = [np.frombuffer(content, order, len(content) // 2).astype(np.int16) for order in ("<i2", ">i2")]
    smooth = min(both, key=lambda samples_N: float(np.abs(np.diff(samples_N.astype(np.int64))).sum()))
    write_wav(wav, smooth, _RATE_HZ)  # archives of both byte orders exist
    if damage := find_damage(wav):
        say(f"  {raw}: {damage}" + ("; put back" if damage.mended else "; get the file again"))
        if damage.mended:
            write_mended(wav, wav)
    return wav


def _movable(data: DataDir, out: Path, name: str) -> DataDir:
    directory, converted = (out / name).absolute(), (out / _CONVERTED).absolute()
    directory.mkdir(parents=True, exist_ok=True)  # the paths lead through it
    recordings = {
        key: os.path.relpath(value, directory) if Path(value).is_relative_to(converted) else value
        for key, value in data.recordings.items()
    }
    return replace(data, path=directory, recordings=recordings)
