"""The splits that a corpus lacks: drawn from train by speaker or, if too few can be held out, by utterance."""

import math
from collections.abc import Mapping

from speech3.corpus.datadir import DataDir
from speech3.corpus.split import seconds_of, split_by_speaker, split_by_utterance
from speech3.errors import Speech3Error
from speech3.io.progress import say

DEV_SHARE = 0.1
TEST_SHARE = 0.1
_LARGEST_SHARE = 0.25  # of dev and of test, if few speakers allow no smaller part
_LEAST_OF_SHARE = 0.5  # of its usual share; an error rate on the 12 s of one speaker says nothing
_ENOUGH_VOICES = 8  # speakers needed to hold some out for dev
# Size of dev and of test, if split by utterance: tuning scale and penalty needs some minutes, but so does training.
_LEAST_PART_S, _LARGEST_PART = 180.0, 0.15

Seconds = Mapping[str, float]  # by utterance


def split_data(data: DataDir, shares: Mapping[str, float], seed: int) -> dict[str, DataDir]:
    """Split by speaker; with few speakers, split off dev by utterance, and with even fewer test, too.

    If dev were one of a few speakers, the epoch, the scale and the penalty would be chosen for that speaker, and the
    speech would be missing in training.

    Parameters
    ----------
    shares
        The usual shares of the speech for dev, test or both.

    Raises
    ------
    Speech3Error
        There are too few utterances.
    """
    seconds = seconds_of(data)
    parts = _parts(data, shares, seed, seconds)
    say(f"  held out: {'; '.join(_described(name, parts, seconds) for name in shares)}")
    return parts


def _parts(data: DataDir, shares: Mapping[str, float], seed: int, seconds: Seconds) -> dict[str, DataDir]:
    if len(data.speakers()) >= _ENOUGH_VOICES and (parts := _by_speaker(data, shares, seed, seconds)):
        return parts
    unseen = {name: share for name, share in shares.items() if name == "test"}
    parts = _by_speaker(data, unseen, seed, seconds) if unseen else None
    if parts is None:
        return _by_utterance(data, shares, seed, seconds)
    if len(shares) == len(unseen):
        return parts
    rest = {"dev": shares["dev"]}
    return {**parts, **_by_utterance(parts["train"], rest, seed, seconds, taken=len(parts["test"].speakers()))}


def _by_speaker(data: DataDir, shares: Mapping[str, float], seed: int, seconds: Seconds) -> dict[str, DataDir] | None:
    """Parts that share no speaker, larger than usual if few speakers require it; None if there are too few.

    There are also too few if those who can be held out have so little of the speech that a part is too small.
    """
    total_s = _total_s(data, seconds)
    for share in (None, 0.15, 0.2, _LARGEST_SHARE):
        wanted = {name: share or usual for name, usual in shares.items()}
        try:
            parts = split_by_speaker(data, {**wanted, "train": 1 - sum(wanted.values())}, seed, seconds)
        except Speech3Error:
            continue
        if all(_total_s(parts[name], seconds) >= _LEAST_OF_SHARE * shares[name] * total_s for name in shares):
            return parts
    return None


def _by_utterance(
    data: DataDir, shares: Mapping[str, float], seed: int, seconds: Seconds, taken: int = 0
) -> dict[str, DataDir]:
    """Parts that share speakers; larger than usual if there is little speech, so that there is enough to tune on.

    Parameters
    ----------
    taken
        Number of speakers that test has already been given, for the message.
    """
    total_s = max(_total_s(data, seconds), 1e-9)
    wanted = {name: max(share, min(_LEAST_PART_S / total_s, _LARGEST_PART)) for name, share in shares.items()}
    try:
        parts = split_by_utterance(data, {**wanted, "train": 1 - sum(wanted.values())}, seed, seconds)
    except Speech3Error as error:
        raise Speech3Error(
            f"{data.path}: {_number(len(data.utterances), 'utterance')} ({total_s:.0f} s): too few to hold out"
            f" {' and '.join(shares)}, which get at most {max(wanted.values()):.0%} of the speech each: at least"
            f" {math.ceil(1 / max(wanted.values()))} utterances of about the same length are needed (a recogniser"
            " needs ten minutes of speech or more)"
        ) from error
    sizes = " and ".join(f"{name} ({wanted[name]:.0%} of the speech)" for name in shares)
    they = "they are" if len(shares) > 1 else "it is"
    voices = len(data.speakers())
    why = (
        f"where {_ENOUGH_VOICES} are needed to hold some out" if voices < _ENOUGH_VOICES
        else "of whom none can be held out, since each has too much of the speech or too little"
    )  # fmt: skip
    those = f"test has {taken} of the {taken + voices} speakers; {voices} remain" if taken else ""
    say(
        f"  {data.path}: {those or _number(voices, 'speaker')}, {why}: {sizes} split by utterance, so {they} from"
        " speakers that are also in train; expect more errors on new speakers"
    )
    return parts


def _described(name: str, parts: Mapping[str, DataDir], seconds: Seconds) -> str:
    """How large a part is, and how many of its speakers train has, too."""
    speakers = parts[name].speakers().keys()
    both, minutes = len(speakers & parts["train"].speakers().keys()), _total_s(parts[name], seconds) / 60
    return (
        f"{name} {_number(len(parts[name].utterances), 'utterance')}, {minutes:.1f} minutes,"
        f" {_number(len(speakers), 'speaker')} ({both or 'none'} of them also in train)"
    )


def _total_s(data: DataDir, seconds: Seconds) -> float:
    return sum(seconds[key] for key in data.utterances)


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
