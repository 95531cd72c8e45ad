"""yesno: 60 recordings of one man who says yes and no eight times each, in Hebrew, 8 kHz (https://www.openslr.org/1).

``waves_yesno/1_0_0_0_1_0_1_1.wav``: the name is the transcript, 1 for yes (ken) and 0 for no (lo).
"""

import re
from pathlib import Path

from speech3.corpora.anyspeech import say_if_incomplete
from speech3.data import DataDir, Utterance, matching_paths, write_datadir
from speech3.errors import MissingError
from speech3.runtime import write_text

WORDS = {"1": "YES", "0": "NO"}
RECORDINGS = 60
LEXICON = "YES K E N\nNO L O\n"
_NAME = re.compile(r"[01](_[01]){7}")
# Kaldi trains on the names that begin with 0 and tests on those that begin with 1; here every sixth of train is dev.
_EVERY = 6


def prepare(source: Path, out: Path, seed: int) -> None:
    """See `speech3.corpora`; `source` is ``waves_yesno``, or holds it. Nothing is drawn."""
    wavs = sorted(
        path
        for root in (source, source / "waves_yesno")
        for path in matching_paths(root, "*.wav")
        if _NAME.fullmatch(path.stem)
    )
    train = [path for path in wavs if path.stem.startswith("0")]
    parts = {
        "train": [path for number, path in enumerate(train) if number % _EVERY],
        "dev": train[::_EVERY],
        "test": [path for path in wavs if path.stem.startswith("1")],
    }
    if not all(parts.values()):
        raise MissingError(
            f"{source}: not the yesno corpus: no recordings such as 0_0_0_0_1_1_1_1.wav here or in waves_yesno/, or too"
            " few; get it from https://www.openslr.org/1"
        )
    say_if_incomplete("yesno", sum(map(len, parts.values())), RECORDINGS, "recordings")
    for name, paths in parts.items():
        recordings = {path.stem: str(path.absolute()) for path in paths}
        utterances = {
            key: Utterance(key, key, "speaker", " ".join(WORDS[digit] for digit in key.split("_")))
            for key in recordings
        }
        write_datadir(DataDir(source, recordings, utterances), out / name)
    write_text(out / "lexicon.txt", LEXICON)
