"""Select a part of a data directory, as Kaldi's utils/subset_data_dir.sh does; random choices depend on a seed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from speech3.corpus.datadir import DataDir
from speech3.corpus.lengths import lengths_s
from speech3.corpus.tables import Fault, read_table
from speech3.errors import Speech3Error, listed


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
    """Narrow `data` down by each given argument, in the order listed here.

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

    Raises
    ------
    Speech3Error
        More are requested than there are, an id does not exist, or nothing is left.
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
        raise Speech3Error(f"{data.path}: no utterance is left; ask for more")
    return data


def read_list(path: Path) -> list[str]:
    """Read the names in the first column of a file.

    Raises
    ------
    Speech3Error
        The file is missing, empty or not UTF-8.
    """
    faults: list[Fault] = []
    table = read_table(path, faults)
    faults = [fault for fault in faults if fault.kind != "duplicate id"]  # a name given twice does no harm
    if faults:
        raise Speech3Error(str(faults[0]))
    if table is None or not table.entries:
        raise Speech3Error(f"{path}: {'is empty' if table else 'no such list'}; write one name per line")
    return list(table.entries)


def _chosen(
    path: Path, what: str, names: list[str], wanted: int | Sequence[str], generator: np.random.Generator
) -> list[str]:
    if not isinstance(wanted, int):
        if unknown := sorted(set(wanted) - set(names)):
            raise Speech3Error(f"{path}: {what} that are not in it: {listed(unknown)}")
        return list(wanted)
    if wanted > len(names):
        raise Speech3Error(f"{path}: {wanted} {what} requested, but there are only {len(names)}")
    return _drawn(names, wanted, generator)


def _drawn(names: Sequence[str], count: int, generator: np.random.Generator) -> list[str]:
    return [names[index] for index in generator.permutation(len(names))[:count]]


def _first(path: Path, keys: list[str], count: int) -> list[str]:
    if count > len(keys):
        raise Speech3Error(f"{path}: {count} utterances requested, but there are only {len(keys)}")
    return keys[:count]


def _hours(data: DataDir, hours: float, generator: np.random.Generator) -> list[str]:
    lengths = lengths_s(data)
    available = sum(lengths.values()) / 3600
    if hours > available:
        raise Speech3Error(f"{data.path}: {hours:g} hours requested, but there are only {available:.3g}")
    kept, remaining_s = [], hours * 3600
    for key in _drawn(sorted(lengths), len(lengths), generator):
        if lengths[key] <= remaining_s:
            kept.append(key)
            remaining_s -= lengths[key]
    return kept
