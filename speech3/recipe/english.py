"""The English aligner in the package, and when it is used without being asked for.

Monophones with CMU's phones, trained on 2.2 hours of LibriSpeech; `data/english_aligner/README.md` has its measured
errors and the command that makes it. Trained from a flat start on the four minutes of TIMIT that it is measured on, an
aligner is worse.
"""

from collections import Counter
from pathlib import Path

from speech3.config import shipped
from speech3.data import DataDir, lengths_s
from speech3.decode import Recognizer, load_recognizer

ENGLISH = "english"  # as a name of a model
_CODES = ("en", "en-us")  # of espeak-ng; the aligner's dictionary has American pronunciations
LITTLE_TO_TRAIN_ON_S = 600.0  # of speech; with more, --lang trains
_KNOWN = 2 / 3  # share of the words without --lang


def model_path(model: Path) -> Path:
    """The directory of a model: `english` is the one in the package, unless there is a directory of that name."""
    return shipped("data") / "english_aligner" if str(model) == ENGLISH and not model.exists() else model


def english_for(data: DataDir, lang: str | None) -> Recognizer | None:
    """The English aligner if it suits recordings for which the user has given neither a model nor a lexicon."""
    if lang:
        if lang not in _CODES or sum(lengths_s(data).values()) > LITTLE_TO_TRAIN_ON_S:
            return None
        return load_recognizer(model_path(Path(ENGLISH)))
    recognizer = load_recognizer(model_path(Path(ENGLISH)))
    known = {word.casefold() for word in recognizer.hmm.lexicon.by_word}
    counts = Counter(word for utterance in data.utterances.values() for word in (utterance.text or "").split())
    heard = sum(count for word, count in counts.items() if word.casefold() in known)
    return recognizer if counts and heard >= _KNOWN * counts.total() else None
