"""Free Spoken Digit Dataset: 3,000 isolated digits of six speakers, 8 kHz (CC BY-SA 4.0).

https://github.com/Jakobovski/free-spoken-digit-dataset. The split is by speaker, so that test speakers are unseen:
george and lucas for testing, one of the other four for tuning, the remaining three for training.
"""

import re
from pathlib import Path

from speech3.data import DataDir, Utterance, matching_paths, write_datadir
from speech3.errors import MissingError
from speech3.runtime import write_text

TEST_SPEAKERS = ("george", "lucas")
# General American pronunciations, in the phones of the CMU dictionary without stress.
DIGITS = {
    "ZERO": ("Z IH R OW", "Z IY R OW"),
    "ONE": ("W AH N", "HH W AH N"),
    "TWO": ("T UW",),
    "THREE": ("TH R IY",),
    "FOUR": ("F AO R",),
    "FIVE": ("F AY V",),
    "SIX": ("S IH K S",),
    "SEVEN": ("S EH V AH N",),
    "EIGHT": ("EY T",),
    "NINE": ("N AY N",),
}
_NAME = re.compile(r"(\d)_([a-z]+)_(\d+)\.wav")


def prepare(source: Path, out: Path, seed: int, *, dev_speaker: str = "theo") -> None:
    """See `speech3.corpora`; `source` has recordings ``0_george_0.wav`` in it, in ``recordings/`` or in ``audio/``.

    `dev_speaker`, for tuning, is not one of the test speakers. Nothing is drawn.
    """
    recordings, utterances = _recordings(source)
    speakers = {utterance.speaker for utterance in utterances.values()}
    if missing := sorted({*TEST_SPEAKERS, dev_speaker} - speakers):
        raise MissingError(
            f"{source}: no recordings of {', '.join(missing)}; speakers here: {', '.join(sorted(speakers))}"
        )
    train = speakers - {*TEST_SPEAKERS, dev_speaker}
    if not train or dev_speaker in TEST_SPEAKERS:
        raise MissingError(
            f"{source}: no speaker is left for training, or dev_speaker {dev_speaker} is a test speaker;"
            f" speakers here: {', '.join(sorted(speakers))}; test speakers: {', '.join(TEST_SPEAKERS)}"
        )
    for name, members in (("train", train), ("dev", {dev_speaker}), ("test", set(TEST_SPEAKERS))):
        part = {key: utterance for key, utterance in sorted(utterances.items()) if utterance.speaker in members}
        write_datadir(DataDir(source, {key: recordings[key] for key in part}, part), out / name)
    write_text(out / "lexicon.txt", "".join(f"{word} {p}\n" for word, prons in DIGITS.items() for p in prons))


def _recordings(source: Path) -> tuple[dict[str, str], dict[str, Utterance]]:
    words, recordings, utterances = list(DIGITS), dict[str, str](), dict[str, Utterance]()
    for directory in (source / "recordings", source / "audio", source):
        for path in matching_paths(directory, "*.wav"):
            if match := _NAME.fullmatch(path.name):
                digit, speaker, number = match.groups()
                key = f"{speaker}-{digit}-{int(number):02d}"
                recordings[key] = str(path.absolute())
                utterances[key] = Utterance(key, key, speaker, words[int(digit)])
        if utterances:
            return recordings, utterances
    raise MissingError(
        f"{source}: not the Free Spoken Digit Dataset: no recordings such as 0_george_0.wav here, in recordings/ or"
        " in audio/; get it with: git clone https://github.com/Jakobovski/free-spoken-digit-dataset"
    )
