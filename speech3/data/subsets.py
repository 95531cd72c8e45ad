"""Make data directories from others: split by speaker or by utterance, select a part, combine several.

As Kaldi's utils/subset_data_dir.sh and utils/combine_data.sh do; random choices depend on a seed.
"""

import filecmp
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path

import numpy as np

from speech3.data.datadir import DataDir, Fault, read_table
from speech3.data.paths import moved_rspecifier, moved_value, pipe_directory, resolve_path
from speech3.data.stats import lengths_s
from speech3.errors import (
    DataError,
    FormatError,
    MismatchError,
    MissingError,
    SettingError,
    Speech3Error,
    counted,
    listed,
)
from speech3.runtime import say

_SHOWN = 3


def split_by_speaker(
    data: DataDir, shares: Mapping[str, float], seed: int, seconds: Mapping[str, float] | None = None
) -> dict[str, DataDir]:
    """Split into parts that share no speaker; each has its share of the hours, and the shares add up to one.

    Speakers are taken in a random order; each goes to the first of the smaller parts that it does not make too large,
    or else to the largest part. It is an error if a part would be empty. `seconds` default to those of `seconds_of`.
    """
    seconds, of_speaker = seconds or seconds_of(data), data.speakers()
    sizes = {name: sum(seconds[key] for key in keys) for name, keys in of_speaker.items()}
    members = _share_out(sizes, shares, seed)
    if empty := [part for part in shares if not members[part]]:
        raise DataError(
            f"{data.path}: cannot be split by speaker, no speaker is left for {', '.join(empty)}: of {len(sizes)}"
            " speakers the one with the least speech has"
            f" {min(sizes.values()) / max(sum(sizes.values()), 1e-9):.0%} of it; add speakers, make the part a larger"
            " share, or split by utterance (`speech3 split --by utterance`)"
        )
    return {part: data.subset(key for name in members[part] for key in of_speaker[name]) for part in shares}


def split_by_utterance(
    data: DataDir, shares: Mapping[str, float], seed: int, seconds: Mapping[str, float] | None = None
) -> dict[str, DataDir]:
    """Split into parts that may share speakers, drawn utterance by utterance; otherwise as `split_by_speaker`."""
    seconds = seconds or seconds_of(data)
    members = _share_out({key: seconds[key] for key in data.utterances}, shares, seed)
    if empty := [part for part in shares if not members[part]]:
        raise DataError(
            f"{data.path}: {counted(len(data.utterances), 'utterance')}: too few, none is left for {', '.join(empty)}"
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
    """Raise an error if an utterance is in two parts: error rates on what was trained or tuned on mean nothing.

    Utterances of the same name, speaker and words may still be different ones, in folders with files of the same names;
    so the recordings are compared.
    """
    for one, other in combinations(parts, 2):
        if same := list(islice(_in_both(parts[one], parts[other]), _SHOWN)):
            raise DataError(
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
    a, b = resolve_path(values[0], places[0]), resolve_path(values[1], places[1])
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
    """Parse ``train=0.8 dev=0.1 test=0.1``, shares that add up to one, or ``5`` for five equal parts named 1 to 5."""
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
            raise SettingError(f"{word}: write a part as NAME=SHARE with a share between 0 and 1, as in dev=0.1")
        if part in shares:
            raise SettingError(f"{word}: the part {part} is named twice")
        shares[part] = share
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise SettingError(f"{' '.join(words)}: the shares add up to {sum(shares.values()):g}; they must add up to 1")
    return shares


def subset(
    data: DataDir,
    *,
    speakers: int | Sequence[str] | None = None,
    utterances: int | Sequence[str] | None = None,
    per_speaker: int | None = None,
    shortest: int | None = None,
    first: int | None = None,
    hours: float | None = None,
    seed: int = 1,
) -> DataDir:
    """Narrow `data` down by each given argument, in this order; it is an error to ask for more than there is.

    Parameters
    ----------
    speakers, utterances
        How many to draw at random, or the ids to keep.
    per_speaker
        How many utterances to draw from each speaker; speakers with fewer keep all of theirs.
    shortest, first
        How many of the shortest utterances, or of the first by id, to keep.
    hours
        The most hours of utterances to draw.
    """
    generator = np.random.default_rng(seed)
    if speakers is not None:
        of_speaker = data.speakers()
        names = _chosen(data.path, "speakers", sorted(of_speaker), speakers, generator)
        data = data.subset(key for name in names for key in of_speaker[name])
    if utterances is not None:
        data = data.subset(_chosen(data.path, "utterances", list(data.utterances), utterances, generator))
    if per_speaker is not None:
        of_speaker = data.speakers()
        data = data.subset(
            key for keys in of_speaker.values() for key in _drawn(keys, min(per_speaker, len(keys)), generator)
        )
    if shortest is not None:
        lengths = lengths_s(data)
        keys = sorted(lengths, key=lambda key: (lengths[key], key))
        data = data.subset(_first(data.path, keys, shortest))
    if first is not None:
        data = data.subset(_first(data.path, list(data.utterances), first))
    if hours is not None:
        data = data.subset(_hours(data, hours, generator))
    if not data.utterances:
        raise DataError(f"{data.path}: no utterance is left; ask for more")
    return data


def read_list(path: Path) -> list[str]:
    """Read the names in the first column of a file; an empty file is an error."""
    faults: list[Fault] = []
    table = read_table(path, faults)
    faults = [fault for fault in faults if fault.kind != "duplicate id"]  # a name given twice does no harm
    if faults:
        raise FormatError(str(faults[0]))
    if table is None or not table.entries:
        raise MissingError(f"{path}: {'is empty' if table else 'no such list'}; write one name per line")
    return list(table.entries)


def _chosen(
    path: Path, what: str, names: list[str], wanted: int | Sequence[str], generator: np.random.Generator
) -> list[str]:
    if not isinstance(wanted, int):
        if unknown := sorted(set(wanted) - set(names)):
            raise FormatError(f"{path}: {what} that are not in it: {listed(unknown)}")
        return list(wanted)
    if wanted > len(names):
        raise DataError(f"{path}: {wanted} {what} requested, but there are only {len(names)}")
    return _drawn(names, wanted, generator)


def _drawn(names: Sequence[str], count: int, generator: np.random.Generator) -> list[str]:
    return [names[index] for index in generator.permutation(len(names))[:count]]


def _first(path: Path, keys: list[str], count: int) -> list[str]:
    if count > len(keys):
        raise DataError(f"{path}: {counted(count, 'utterance')} requested, but there are only {len(keys)}")
    return keys[:count]


def _hours(data: DataDir, hours: float, generator: np.random.Generator) -> list[str]:
    lengths = lengths_s(data)
    available = sum(lengths.values()) / 3600
    if hours > available:
        raise DataError(f"{data.path}: {hours:g} hours requested, but there are only {available:.3g}")
    kept, remaining_s = [], hours * 3600
    for key in _drawn(sorted(lengths), len(lengths), generator):
        if lengths[key] <= remaining_s:
            kept.append(key)
            remaining_s -= lengths[key]
    return kept


def combine(parts: Sequence[DataDir], out: Path) -> tuple[DataDir, list[str]]:
    """Combine the utterances of all `parts`; a speaker may be in several of them.

    Relative paths of the result start at `out`, where it will be written. `text`, `spk2gender`, `feats.scp`,
    `cmvn.scp` (and `wav.scp`, if there are features) are left out if one of the parts lacks them; a line for each of
    these is returned, too.

    Raises `Speech3Error`: an utterance is in two parts; a recording is a different file in two parts, or a speaker has
    different genders; or some part lacks audio and some part lacks features.
    """
    _refuse_twice(parts)
    lacking = {
        "wav.scp": [data.path for data in parts if not data.recordings],
        "feats.scp": [data.path for data in parts if data.feats.keys() != data.utterances.keys()],
        "cmvn.scp": [data.path for data in parts if data.cmvn.keys() != data.speakers().keys()],
        "text": [data.path for data in parts if any(utt.text is None for utt in data.utterances.values())],
        "spk2gender": [data.path for data in parts if any(utt.gender is None for utt in data.utterances.values())],
    }
    if lacking["wav.scp"] and lacking["feats.scp"]:
        raise MissingError(
            f"{lacking['wav.scp'][0]} has no audio, and {lacking['feats.scp'][0]} lacks features of some utterances;"
            " all parts must have audio, or all must have features: extract the features first"
        )
    left_out = [
        f"{name} left out: missing or incomplete in {', '.join(map(str, without))}"
        for name, without in lacking.items()
        if without and len(without) < len(parts)
    ]
    # The tables of all parts, as seen from `out`; the same key must not have two values.
    recordings = [{key: moved_value(value, data.path, out) for key, value in data.recordings.items()} for data in parts]
    feats = [{key: moved_rspecifier(value, data.path, out) for key, value in data.feats.items()} for data in parts]
    cmvn = [{key: moved_rspecifier(value, data.path, out) for key, value in data.cmvn.items()} for data in parts]
    genders = [{utt.speaker: utt.gender or "" for utt in data.utterances.values()} for data in parts]
    if not lacking["spk2gender"]:
        _merged(parts, genders, "speaker")
    try:
        statistics = {} if lacking["cmvn.scp"] else _merged(parts, cmvn, "speaker")
    except Speech3Error as error:  # one part's statistics cover only some of the speaker's utterances
        statistics = {}
        left_out.append(f"cmvn.scp left out: {error}")
    # What is lacking in one part is left out of all.
    utterances = {
        key: replace(
            utt, text=None if lacking["text"] else utt.text, gender=None if lacking["spk2gender"] else utt.gender
        )
        for data in parts
        for key, utt in data.utterances.items()
    }
    located = {} if lacking["wav.scp"] else _merged(parts, recordings, "recording")
    features = {} if lacking["feats.scp"] else _merged(parts, feats, "utterance")
    return DataDir(out, located, dict(sorted(utterances.items())), features, statistics), left_out


def _refuse_twice(parts: Sequence[DataDir]) -> None:
    if len(parts) < 2:
        raise SettingError("there is nothing to combine; pass two or more data directories")
    seen: dict[str, Path] = {}
    twice: list[str] = []
    for data in parts:
        twice += [f"{key} ({seen[key]}, {data.path})" for key in data.utterances if key in seen]
        seen.update(dict.fromkeys(data.utterances, data.path))
    if twice:
        raise MismatchError(
            f"{len(twice)} utterances are in two directories: {listed(twice)};"
            " remove them from one of the two with `speech3 subset`, or rename them"
        )


def _merged(parts: Sequence[DataDir], tables: Sequence[dict[str, str]], what: str) -> dict[str, str]:
    merged: dict[str, str] = {}
    origin: dict[str, Path] = {}
    for data, table in zip(parts, tables, strict=True):
        for key, value in table.items():
            if merged.setdefault(key, value) != value:
                raise MismatchError(
                    f"{what} {key} is {merged[key]} in {origin[key]} and {value} in {data.path}; rename one of them"
                )
            origin.setdefault(key, data.path)
    return dict(sorted(merged.items()))
