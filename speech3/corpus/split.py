"""Split a data directory by speaker, so that test speakers are new to the recogniser, or by utterance."""

import filecmp
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from pathlib import Path

import numpy as np

from speech3.corpus.datadir import DataDir
from speech3.corpus.lengths import lengths_s
from speech3.corpus.paths import pipe_directory, resolve
from speech3.errors import Speech3Error
from speech3.io.progress import say

_SHOWN = 3


def split_by_speaker(
    data: DataDir, shares: Mapping[str, float], seed: int, seconds: Mapping[str, float] | None = None
) -> dict[str, DataDir]:
    """Split into parts that share no speaker.

    Speakers are taken in a random order; each goes to the first of the smaller parts that it does not make too large,
    or else to the largest part.

    Parameters
    ----------
    shares
        Each part's share of the hours; the shares add up to one.
    seconds
        Lengths of the utterances; None: as `seconds_of` finds them.

    Raises
    ------
    Speech3Error
        A part would be empty.
    """
    seconds, of_speaker = seconds or seconds_of(data), data.speakers()
    sizes = {name: sum(seconds[key] for key in keys) for name, keys in of_speaker.items()}
    members = _share_out(sizes, shares, seed)
    if empty := [part for part in shares if not members[part]]:
        raise Speech3Error(
            f"{data.path}: cannot be split by speaker, no speaker is left for {', '.join(empty)}: of {len(sizes)}"
            " speakers the one with the least speech has"
            f" {min(sizes.values()) / max(sum(sizes.values()), 1e-9):.0%} of it; add speakers, give the part a larger"
            " share, or split by utterance (`speech3 split --by utterance`)"
        )
    return {part: data.subset(key for name in members[part] for key in of_speaker[name]) for part in shares}


def split_by_utterance(
    data: DataDir, shares: Mapping[str, float], seed: int, seconds: Mapping[str, float] | None = None
) -> dict[str, DataDir]:
    """Split into parts that may share speakers, drawn utterance by utterance; arguments as for `split_by_speaker`.

    Raises
    ------
    Speech3Error
        A part would be empty.
    """
    seconds = seconds or seconds_of(data)
    members = _share_out({key: seconds[key] for key in data.utterances}, shares, seed)
    if empty := [part for part in shares if not members[part]]:
        raise Speech3Error(
            f"{data.path}: {len(data.utterances)} utterances are too few: none is left for {', '.join(empty)}"
        )
    return {part: data.subset(members[part]) for part in shares}


def seconds_of(data: DataDir) -> dict[str, float]:
    """Length of every utterance: 0 if it is unknown, but 1 for all if there are only features of unknown length."""
    try:
        lengths = lengths_s(data)
    except Speech3Error:
        if data.recordings:
            raise
        say(f"{data.path}: the lengths are unknown; shares are counted in utterances")
        return dict.fromkeys(data.utterances, 1.0)
    return {key: lengths.get(key, 0.0) for key in data.utterances}


def check_apart(parts: Mapping[str, DataDir]) -> None:
    """Check that no utterance is in two parts: error rates on utterances known from training or tuning mean nothing.

    Utterances of the same name, speaker and words may still be different ones, in folders with files of the same names;
    so the recordings are compared.

    Raises
    ------
    Speech3Error
        Two parts have the same utterance; the message names some of them.
    """
    for one, other in combinations(parts, 2):
        if same := list(islice(_in_both(parts[one], parts[other]), _SHOWN)):
            raise Speech3Error(
                f"{parts[one].path}: {one} and {other} have the same utterances, such as {', '.join(same)}, so error"
                " rates would mean nothing; choose other parts, or remove them from one of the two"
            )


def _in_both(one: DataDir, other: DataDir) -> Iterator[str]:
    for key, utterance in one.utterances.items():
        if other.utterances.get(key) == utterance and _same_sound(one, other, utterance.recording):
            yield key


def _same_sound(one: DataDir, other: DataDir, recording: str) -> bool:
    values, places = (one.recordings[recording], other.recordings[recording]), (one.path, other.path)
    if any(value.endswith("|") for value in values):
        return values[0] == values[1] and pipe_directory(values[0], places[0]) == pipe_directory(values[1], places[1])
    a, b = resolve(values[0], places[0]), resolve(values[1], places[1])
    return a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False)


def _share_out(sizes: Mapping[str, float], shares: Mapping[str, float], seed: int) -> dict[str, list[str]]:
    rest = max(reversed(list(shares)), key=lambda part: shares[part])  # the last of equally large ones
    remaining = {part: share * sum(sizes.values()) for part, share in shares.items() if part != rest}
    members: dict[str, list[str]] = {part: [] for part in shares}
    names = sorted(sizes)
    for index in np.random.default_rng(seed).permutation(len(names)):
        name = names[index]
        part = next((part for part in remaining if sizes[name] <= remaining[part] + 1e-6), rest)
        members[part].append(name)
        if part != rest:
            remaining[part] -= sizes[name]
    return members


def parse_shares(words: Sequence[str]) -> dict[str, float]:
    """Parse ``train=0.8 dev=0.1 test=0.1``, or ``5`` for five equal parts named 1 to 5.

    Raises
    ------
    Speech3Error
        A word is none of these, a part is named twice, or the shares do not add up to one.
    """
    if len(words) == 1 and words[0].isdecimal() and int(words[0]) > 1:
        return {str(part): 1 / int(words[0]) for part in range(1, int(words[0]) + 1)}
    shares: dict[str, float] = {}
    for word in words:
        part, _, number = word.partition("=")
        try:
            share = float(number)
        except ValueError:
            share = 0.0
        if not part or Path(part).name != part or part in (".", "..") or not 0 < share < 1:
            raise Speech3Error(f"{word}: write a part as NAME=SHARE with a share between 0 and 1, as in dev=0.1")
        if part in shares:
            raise Speech3Error(f"{word}: the part {part} is named twice")
        shares[part] = share
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise Speech3Error(f"{' '.join(words)}: the shares add up to {sum(shares.values()):g}; they must add up to 1")
    return shares
