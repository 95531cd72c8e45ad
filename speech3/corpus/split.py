"""Parts of a data directory that share no speaker."""

from collections.abc import Mapping

import numpy as np

from speech3.corpus.audio import durations_s
from speech3.corpus.datadir import DataDir
from speech3.errors import Speech3Error


def split_by_speaker(data: DataDir, shares: Mapping[str, float], seed: int) -> dict[str, DataDir]:
    """Split off parts by speaker; what is left is the part named last.

    Speakers come in an order drawn from `seed`; each goes to the first part that it does not make too large, so a
    speaker with more speech than a part wants stays in the last part.

    Parameters
    ----------
    shares
        Part and its share of the hours, adding up to one.

    Raises
    ------
    Speech3Error
        A part would be empty.
    """
    durations = durations_s(data)
    speakers = {name: sum(durations[key] for key in keys) for name, keys in data.speakers().items()}
    *parts, rest = shares
    room_s = {part: shares[part] * sum(speakers.values()) for part in parts}
    members: dict[str, list[str]] = {part: [] for part in shares}
    names = sorted(speakers)
    for index in np.random.default_rng(seed).permutation(len(names)):
        name = names[index]
        part = next((part for part in parts if speakers[name] <= room_s[part]), rest)
        members[part].append(name)
        if part != rest:
            room_s[part] -= speakers[name]
    if empty := [part for part in shares if not members[part]]:
        raise Speech3Error(
            f"{data.path}: cannot be split by speaker, nobody is left for {', '.join(empty)}: {len(names)} speakers,"
            f" of whom the one with least speech has {min(speakers.values()) / sum(speakers.values()):.0%} of it;"
            " add speakers, or give directories of your own"
        )
    of_speaker = data.speakers()
    return {part: data.subset(key for name in members[part] for key in of_speaker[name]) for part in shares}
