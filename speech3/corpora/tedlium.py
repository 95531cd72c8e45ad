"""TED-LIUM, releases 1 to 3: talks, 118 to 452 hours, 16 kHz (CC BY-NC-ND 3.0).

Rousseau et al. 2012, 2014; Hernandez et al. 2018.
https://www.openslr.org/7, https://www.openslr.org/19, https://www.openslr.org/51

    {train,dev,test}/sph/TALK.sph
    {train,dev,test}/stm/TALK.stm    lines ``TALK CHANNEL SPEAKER BEGIN END <o,f0,male> word word ...``, seconds
    TEDLIUM*.dic                     a Sphinx dictionary, in the letter case of the transcripts

In release 3, train is in ``data``, dev and test are in ``legacy``. Segments that are marked
``ignore_time_segment_in_scoring`` are left out.
"""

import re
from collections.abc import Set
from pathlib import Path

from speech3.corpora.anyspeech import say_if_incomplete, write_corpus
from speech3.data import DataDir, Utterance, matching_paths, segment_name
from speech3.errors import FormatError, MissingError, counted, listed
from speech3.language import LangDir, lexicon_text, read_dictionary, without_variant
from speech3.runtime import numbered_lines, say, write_text

_IGNORED = "ignore_time_segment_in_scoring"
_PLACES = {"train": ("train", "data"), "dev": ("dev", "legacy/dev"), "test": ("test", "legacy/test")}
_TALKS = {"dev": 8, "test": 11}
_TRAIN_TALKS = {1: 774, 2: 1495, 3: 2351}  # by release
_NO_WORD = re.compile(r"<.*>|\{.*\}|\(.*\)|\[.*\]")  # <sil>, {NOISE}, (a comment)
_SHOWN = 3


def prepare(source: Path, out: Path, seed: int) -> None:
    """See `speech3.corpora`; `source` is a release, such as ``TEDLIUM_release-3``. The splits are official."""
    dictionaries = matching_paths(source, "TEDLIUM*.dic")
    if not dictionaries:
        raise MissingError(
            f"{source}: not TED-LIUM: no TEDLIUM*.dic in it; get a release from https://www.openslr.org/19 or"
            " https://www.openslr.org/51, unpack it, and pass the directory TEDLIUM_release..."
        )
    entries = read_dictionary(dictionaries[0])
    known = {word for word, _ in entries}
    parts = {name: _part(source, name, known) for name in _PLACES}
    lexicon = out / "tedlium.txt"
    write_text(lexicon, lexicon_text(entries))
    write_corpus(parts, LangDir(lexicon, None, None), out)


def _release(source: Path) -> int:
    if (source / "legacy").is_dir() or (source / "data" / "stm").is_dir():
        return 3
    return 2 if (source / "TEDLIUM.152k.dic").is_file() else 1


def _part(source: Path, name: str, known: Set[str]) -> DataDir:
    root = next((source / place for place in _PLACES[name] if (source / place / "stm").is_dir()), None)
    if root is None:
        raise MissingError(
            f"{source}: has no {' or '.join(f'{place}/stm' for place in _PLACES[name])}; unpack it again"
        )
    recordings, utterances, unspoken = dict[str, str](), dict[str, Utterance](), 0
    for transcript in matching_paths(root / "stm", "*.stm"):
        sound = root / "sph" / f"{transcript.stem}.sph"
        if not sound.is_file():
            raise MissingError(f"{sound}: no such file, but its transcript is there; unpack {name} again")
        recordings[transcript.stem] = str(sound.absolute())
        for where, line in numbered_lines(transcript):
            if line.startswith(";;") or _IGNORED in line:
                continue
            utterance = _utterance(line, where, transcript.stem, known)
            if utterance.text:
                utterances[utterance.id] = utterance
            else:
                unspoken += 1
    if not utterances:
        raise MissingError(f"{root / 'stm'}: no transcript TALK.stm with words; unpack {name} again")
    say_if_incomplete(name, len(recordings), _TALKS.get(name) or _TRAIN_TALKS[_release(source)], "talks")
    if silent := sorted(path.name for path in matching_paths(root / "sph", "*.sph") if path.stem not in recordings):
        say(f"  {name}: left out, as they have no transcript in stm/: {listed(silent, _SHOWN)}; unpack it again")
    if unspoken:
        say(f"  {name}: left out: {counted(unspoken, 'segment')} without words")
    return DataDir(root, recordings, dict(sorted(utterances.items())))


def _utterance(line: str, place: str, talk: str, known: Set[str]) -> Utterance:
    fields = line.split()
    try:
        start_s, end_s = float(fields[3]), float(fields[4])
    except (ValueError, IndexError) as error:
        raise FormatError(
            f"{place}: not a segment `TALK CHANNEL SPEAKER BEGIN END LABEL words`: `{line[:60]}`; unpack it again"
        ) from error
    words = [without_variant(word) for word in fields[6:]]
    key = segment_name(talk, start_s, end_s)
    return Utterance(
        key, talk, talk, " ".join(_joined([w for w in words if not _NO_WORD.fullmatch(w)], known)), start_s, end_s
    )


def _joined(words: list[str], known: Set[str]) -> list[str]:
    """Join ``it 's`` to ``it's`` where the dictionary has that, as Kaldi's recipe does."""
    found: list[str] = []
    for word in words:
        if word.startswith("'") and found and found[-1] + word in known:
            found[-1] += word
        elif word:
            found.append(word)
    return found
