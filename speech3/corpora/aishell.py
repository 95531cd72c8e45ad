"""AISHELL-1: 178 hours of read Mandarin, 400 speakers, 16 kHz (Apache 2.0; Bu et al. 2017).

https://www.openslr.org/33

    data_aishell/wav/{train,dev,test}/SPEAKER/NAME.wav
    data_aishell/transcript/aishell_transcript_v0.8.txt    lines ``NAME word word ...``
    resource_aishell/lexicon.txt                           lines ``word initial final+tone ...``, one per pronunciation
"""

from pathlib import Path

from speech3.corpora.anyspeech import say_if_incomplete, write_corpus
from speech3.data import DataDir, Utterance, matching_paths
from speech3.errors import MismatchError, MissingError
from speech3.language import LangDir
from speech3.runtime import read_utf8, write_text

UTTERANCES = {"train": 120_098, "dev": 14_326, "test": 7_176}  # with a transcript
_TRANSCRIPT = Path("transcript", "aishell_transcript_v0.8.txt")
_SILENCE = "sil"  # the phone of silence and noise


def prepare(source: Path, out: Path, seed: int) -> None:
    """See `speech3.corpora`; `source` holds ``data_aishell`` and ``resource_aishell``. The splits are official."""
    data, lexicon = source / "data_aishell", source / "resource_aishell" / "lexicon.txt"
    if not (data / _TRANSCRIPT).is_file():
        raise MissingError(
            f"{source}: not AISHELL-1: no data_aishell/{_TRANSCRIPT} in it; get data_aishell.tgz and"
            " resource_aishell.tgz from https://www.openslr.org/33 and unpack both there"
        )
    if not lexicon.is_file():
        raise MissingError(f"{lexicon}: no such file; unpack resource_aishell.tgz beside data_aishell")
    texts = _texts(data / _TRANSCRIPT)
    parts = {name: _part(data, name, texts) for name in UTTERANCES}
    words = out / "aishell.txt"
    write_text(words, _without_silences(lexicon))
    write_corpus(parts, LangDir(words, None, None), out)


def _without_silences(lexicon: Path) -> str:
    """The lines of the lexicon except those of `SIL` and `<SPOKEN_NOISE>`, whose phone no transcript has."""
    return "".join(f"{line}\n" for line in read_utf8(lexicon).splitlines() if line.split()[1:] != [_SILENCE])


def _texts(path: Path) -> dict[str, str]:
    rows = (line.split() for line in read_utf8(path).splitlines())
    return {name: " ".join(words) for name, *words in (row for row in rows if row) if words}


def _part(data: Path, name: str, texts: dict[str, str]) -> DataDir:
    wavs = matching_paths(data / "wav" / name, "*/*.wav")
    if not wavs:
        packed = matching_paths(data / "wav", "*.tar.gz")
        remedy = (
            f"unpack the {len(packed)} archives in {data / 'wav'}, too" if packed else "unpack data_aishell.tgz again"
        )
        raise MissingError(f"{data / 'wav' / name}: no recordings SPEAKER/NAME.wav; {remedy}")
    speakers = {path.name for path in matching_paths(data / "wav", "*/*/")}
    if left := [
        path for path in matching_paths(data / "wav", "*.tar.gz") if path.name[: -len(".tar.gz")] not in speakers
    ]:
        raise MissingError(
            f"{data / 'wav'}: archives not unpacked: {len(left)}, such as {left[0].name}; unpack all of them there"
        )
    used = [path for path in wavs if path.stem in texts]
    if not used:
        raise MismatchError(f"{data / _TRANSCRIPT}: has none of the {len(wavs)} recordings of {name}; unpack it again")
    say_if_incomplete(name, len(used), UTTERANCES[name])
    recordings = {path.stem: str(path.absolute()) for path in used}
    utterances = {path.stem: Utterance(path.stem, path.stem, path.parent.name, texts[path.stem]) for path in used}
    return DataDir(data, recordings, dict(sorted(utterances.items())))
