"""From a data directory to features on disk, unit by unit (`units`).

A killed extraction leaves two hidden files beside its output. ``.NAME.parts`` has the bytes of the finished units.
``.NAME.journal`` has a line of JSON with the fingerprint of the work, then one for each unit: its record, where its
bytes end, and their CRC-32. The next run computes again what was cut short or does not match its CRC, and all units
after it; once it succeeds, it renames the parts and removes the journal.

Axes: T frames, F features, 2 sums and sums of squares, G features and the frame count.
"""

import fcntl
import functools
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import yaml

from speech3 import __version__
from speech3.config import FeatureConfig
from speech3.data import Augmenter, DataDir, audio, resolve_path, without_faulty_audio
from speech3.errors import (
    MOST_BAD,
    DataError,
    MismatchError,
    MissingError,
    OccupiedError,
    SettingError,
    Speech3Error,
    check_bad,
    listed,
)
from speech3.features.units import Unit, part_of, unit_features, unit_stats, units_of, values_of
from speech3.io import A_MODEL, FEATURES_FILE, PACKED_FRAMES, index_line, write_entry
from speech3.runtime import available_jobs, check_output, explained_disk_errors, parallel_map, say, write_text

_FORMAT = 3
SILENT = "silent.txt"  # a list of the utterances that are digital silence, if there are any


@dataclass
class ExtractReport:
    """What was extracted and what was skipped.

    `config` is the one written to ``features.yaml``, with the sample rate and the global statistics filled in. (Where
    features are normalised by utterance or speaker, these count as a few frames of each that a model recognises.)
    """

    config: FeatureConfig
    values: int = 0  # per frame
    utterances: int = 0
    frames: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # utterance -> reason
    silent: list[str] = field(default_factory=list)  # extracted, but every sample is the same
    channels: dict[str, str] = field(default_factory=dict)  # utterances not all of whose channels are used, and why
    stats_2G: np.ndarray | None = field(default=None, compare=False)  # float64, where streams want them

    @property
    def sample_rate_hz(self) -> int | None:
        """None if the features were given."""
        return self.config.sample_frequency


def extract(
    data: DataDir,
    out: Path,
    config: FeatureConfig,
    jobs: int = 0,
    *,
    compress: bool = False,
    augmenter: Augmenter | None = None,
    relative: bool = False,
    most_bad: float = MOST_BAD,
) -> ExtractReport:
    """Write ``feats.ark``, ``feats.scp``, ``features.yaml`` and, if there is anything to list, ``skipped.txt``.

    A killed run is resumed if config and data are the same; its files are those of an uninterrupted run. The scp is
    sorted, the ark, too, wherever ids begin with the speaker. Memory holds a few speakers at a time.

    Parameters
    ----------
    out
        Directory, created if missing. ``features.yaml`` gets the config with the sample rate that was found and, if
        there is CMVN, the statistics of the whole directory: with global CMVN those that an extraction with it uses,
        else those that a model adds to what it recognises (`speech3.features.normalisation`).
    jobs
        Processes; 0: one per core.
    compress
        Write one byte per value, with loss (Kaldi's ``--compress``).
    augmenter
        Augments the audio of each utterance before features are computed; for the same seed always in the same way.
    relative
        ``feats.scp`` names its archive without a directory, so that both can be moved, but Kaldi must run there.
    most_bad
        The largest share of utterances that cannot be used.

    Raises
    ------
    Speech3Error
        There is no utterance; too many of them cannot be used (the message lists them); the disk is full; an augmenter
        is passed, but the features are given.
    """
    if augmenter and config.kind == "given":
        raise SettingError(
            "augmentation changes audio, but kind: given reads features that exist already: leave out one of the two"
        )
    _check_place(data, out, config)
    # Divide the work, and identify it, so that a killed run can be resumed.
    units = units_of(data, config)
    config = _with_rate(data, config)
    inputs, mark = [part_of(data, ids) for ids in units], fingerprint(data, units, config, compress, augmenter)
    work = _Work(data, inputs, jobs or available_jobs(), mark, compress, augmenter, most_bad)
    ark = out / "feats.ark"
    with open_parts(ark) as parts, open_parts(out / "global_stats") as sums:
        if config.cmvn == "global" and config.norm_means and config.global_stats is None:
            config = _with_stats(config, _summed(work, config, sums))
        report = ExtractReport(config)
        located = _extracted(work, config, parts, report)
        if report.stats_2G is not None and report.stats_2G[0, -1] and config.global_stats is None:
            report.config = config = _with_stats(config, report.stats_2G)
        # Write the other files around the finished archive.
        scp = out / "feats.scp"
        scp.unlink(missing_ok=True)  # written last: if it exists, the other files belong to it
        # Before the archive, which without it would be taken for the user's if this is killed.
        write_text(out / FEATURES_FILE, yaml.safe_dump(config.model_dump(), sort_keys=False))
        parts.finish()
        index = sorted(index_line(utterance, ark, offset, relative=relative) for utterance, offset in located)
        skipped = [f"{utterance} {' '.join(why.split())}\n" for utterance, why in sorted(report.skipped.items())]
        silent = [f"{utterance}\n" for utterance in sorted(report.silent)]
        for name, lines in (("skipped.txt", skipped), (SILENT, silent)):
            if lines:
                write_text(out / name, "".join(lines))
            else:
                (out / name).unlink(missing_ok=True)
        write_text(scp, "".join(index))
        for finished in (parts, sums):
            finished.remove()
    _say_remarkable(data, report)
    return report


def _check_place(data: DataDir, out: Path, config: FeatureConfig) -> None:
    """Refuse to replace features that are given or were not extracted here, and a model's or a training's config."""
    places = {*data.feats.values(), *data.cmvn.values()} if config.kind == "given" else set()
    archives = {resolve_path(_archive(place), data.path) for place in places if not place.endswith("|")}
    files = ("feats.ark", "feats.scp", FEATURES_FILE, "skipped.txt", SILENT)
    check_output(out, archives, files, marks=[FEATURES_FILE], not_in=[A_MODEL, PACKED_FRAMES])


def _archive(place: str) -> str:
    """The file in a value of feats.scp or cmvn.scp, without the offset and the rows."""
    return re.sub(r"(:\d+)?(\[[^\]]*\])?$", "", place)


def silent_in(feats: Path) -> frozenset[str]:
    """The utterances of a directory of features that are digital silence."""
    path = feats / SILENT
    return frozenset(path.read_text(encoding="utf-8").split()) if path.exists() else frozenset()


def fingerprint(
    data: DataDir, units: Iterable[list[str]], config: FeatureConfig, compress: bool, augmenter: Augmenter | None = None
) -> str:
    """Hash that identifies an extraction: config, augmentation, utterances, size and modification time of all files.

    Of a pipe only the command counts.
    """
    digest = hashlib.blake2b(digest_size=16)

    def add(value: object) -> None:
        digest.update(json.dumps(value).encode() + b"\n")

    add([_FORMAT, __version__, config.model_dump(mode="json"), compress])
    files: dict[str, Path] = {}
    if augmenter:
        sounds = (*augmenter.noises, *augmenter.babblers, *augmenter.responses)  # the voices are utterances of `data`
        add([augmenter.config.model_dump(mode="json"), augmenter.seed, *(sound.location for sound in sounds)])
        for sound in sounds:
            if not sound.location.endswith("|"):
                files[f"{sound.directory}: {sound.location}"] = resolve_path(sound.location, sound.directory)
    for ids in units:
        for key in ids:
            utt = data.utterances[key]
            archives = data.feats.get(key, ""), data.cmvn.get(utt.speaker, "")
            places = [data.recordings.get(utt.recording, ""), *archives]
            add([key, utt.start_s, utt.end_s, *places])
            for name in (places[0], *map(_archive, archives)):
                if name and not name.endswith("|") and name not in files:
                    files[name] = resolve_path(name, data.path)
        add(len(ids))
    for path in files.values():
        try:
            status = path.stat()
        except OSError:  # reported when the file is read
            continue
        add([str(path), status.st_size, status.st_mtime_ns])
    return digest.hexdigest()


class Parts:
    """The parts of `target`, open and locked. Made by `open_parts`."""

    def __init__(self, target: Path, journal: IO[bytes], data: IO[bytes]) -> None:
        self.target = target
        self.units = self.position = 0  # numbers of finished units, and of their bytes
        self._journal, self._data = journal, data

    def taken_over(self, fingerprint: str) -> Iterator[dict[str, Any]]:
        """Yield the record of each unit that a killed run of the same work finished; truncate anything after them."""
        self._journal.seek(0)
        head = {"fingerprint": fingerprint}
        whole, first = 0, _line(self._journal)
        if first == head:
            whole = self._journal.tell()
            while (record := _line(self._journal)) is not None and self._matches(record):
                whole, self.position = self._journal.tell(), record["end"]
                self.units += 1
                yield record
        elif self._journal.seek(0, os.SEEK_END):
            say(f"{self.target}: not resuming an interrupted run, which had another config or other data")
        with explained_disk_errors(self.target):
            for stream, end in ((self._data, self.position), (self._journal, whole)):
                stream.truncate(end)
                stream.seek(end)
            if not whole:
                self._write_line(head)

    def _matches(self, record: dict[str, Any]) -> bool:
        size = record["end"] - self.position
        data = self._data.read(size)
        return len(data) == size and zlib.crc32(data) == record["crc"]

    def append(self, data: bytes, record: dict[str, Any]) -> None:
        """Add a unit; once this returns, it survives a kill of the process."""
        with explained_disk_errors(self.target):
            self._data.write(data)
            self._data.flush()
            self.position += len(data)
            self.units += 1
            self._write_line({**record, "end": self.position, "crc": zlib.crc32(data)})

    def _write_line(self, record: dict[str, Any]) -> None:
        self._journal.write(json.dumps(record).encode() + b"\n")
        self._journal.flush()

    def finish(self) -> None:
        with explained_disk_errors(self.target):
            _parts(self.target).replace(self.target)

    def remove(self) -> None:
        """Delete the parts, unless renamed, and the journal."""
        _parts(self.target).unlink(missing_ok=True)
        _journal(self.target).unlink(missing_ok=True)


@dataclass(frozen=True)
class _Work:
    """What an extraction works on, and how."""

    data: DataDir
    inputs: Sequence[DataDir]  # by unit
    jobs: int
    fingerprint: str
    compress: bool
    augmenter: Augmenter | None
    most_bad: float


def _extracted(work: _Work, config: FeatureConfig, parts: Parts, report: ExtractReport) -> list[tuple[str, int]]:
    """Add all missing units to `parts`, fill in `report`, and return the utterances with their places in the ark."""
    data, located = work.data, list[tuple[str, int]]()

    def note(record: dict[str, Any]) -> None:
        report.skipped.update(record["skipped"])
        report.silent += record["silent"]
        report.channels.update(record["channels"])
        if record["values"]:
            _check_sizes(data, report.values or record["values"], record["values"])
            report.values = record["values"]
        if "stats" in record:
            report.stats_2G = _plus(data, report.stats_2G, np.array(record["stats"]))
        for utterance, offset, frames in record["utterances"]:
            report.utterances += 1
            report.frames += frames
            located.append((utterance, offset))
        _check(data, config, report.skipped, complete=False, most=work.most_bad)

    for record in parts.taken_over(work.fingerprint):
        note(record)
    if parts.units:
        there = f"{len(located)} of {len(data.utterances)} utterances are kept"
        say(f"{parts.target}: {there} from an interrupted run, which is resumed")
    values = values_of(data) if config.kind == "given" else None
    function = functools.partial(unit_features, config=config, augmenter=work.augmenter, values=values)
    for unit in parallel_map(function, work.inputs[parts.units :], work.jobs, "features"):
        content, record = _packed(unit, parts, work.compress)
        parts.append(content, record)
        note(record)
    _check(data, config, report.skipped, complete=True, most=work.most_bad)
    return located


def _packed(unit: Unit, parts: Parts, compress: bool) -> tuple[bytes, dict[str, Any]]:
    stream, utterances, values = _Bytes(), [], 0
    for utterance, feats_TF in unit.features.items():
        offset = write_entry(stream, utterance, feats_TF.numpy(), compress=compress, name=parts.target)
        utterances.append((utterance, parts.position + offset, len(feats_TF)))
        values = feats_TF.shape[1]
    record = {"utterances": utterances, "values": values, "skipped": unit.skipped, "silent": unit.silent}
    record["channels"] = unit.channels
    if unit.stats_2G is not None:
        record["stats"] = unit.stats_2G.tolist()
    return stream.getvalue(), record


def _summed(work: _Work, config: FeatureConfig, sums: Parts) -> np.ndarray:
    data = work.data
    skipped: dict[str, str] = {}
    total_2G: np.ndarray | None = None
    for record in sums.taken_over(work.fingerprint):
        skipped.update(record["skipped"])
        total_2G = None if record["total"] is None else np.array(record["total"])
    values = values_of(data) if config.kind == "given" else None
    function = functools.partial(unit_stats, config=config, augmenter=work.augmenter, values=values)
    for stats_2G, bad in parallel_map(function, work.inputs[sums.units :], work.jobs, "global CMVN"):
        skipped.update(bad)
        _check(data, config, skipped, complete=False)
        total_2G = _plus(data, total_2G, stats_2G)
        sums.append(b"", {"total": None if total_2G is None else total_2G.tolist(), "skipped": bad})
    _check(data, config, skipped, complete=True)
    assert total_2G is not None  # otherwise _check has raised
    if not total_2G[0, -1]:
        raise DataError(
            f"{data.path}: every frame is digital silence, so there are no statistics for cmvn: global; choose other"
            " recordings"
        )
    return total_2G


def _plus(data: DataDir, total_2G: np.ndarray | None, stats_2G: np.ndarray | None) -> np.ndarray | None:
    if stats_2G is None or total_2G is None:
        return total_2G if stats_2G is None else stats_2G
    _check_sizes(data, total_2G.shape[1] - 1, stats_2G.shape[1] - 1)
    return total_2G + stats_2G


def _check_sizes(data: DataDir, before: int, values: int) -> None:
    if values != before:
        raise MismatchError(
            f"{data.path}: features of different sizes: {before} and {values} values per frame; compute them again"
        )


def _with_stats(config: FeatureConfig, stats_2G: np.ndarray) -> FeatureConfig:
    return config.model_copy(update={"global_stats": tuple(map(tuple, stats_2G.tolist()))})


def _with_rate(data: DataDir, config: FeatureConfig) -> FeatureConfig:
    """The config with the sample rate of the first readable recording, unless it sets a rate itself."""
    if config.kind == "given":
        if not data.feats:
            raise MissingError(
                f"{data.path}: has no feats.scp, from which kind: given reads the features;"
                " add it, or choose a preset that computes features"
            )
        return config
    if config.sample_frequency is not None:
        return config
    if not data.recordings:
        raise MissingError(
            f"{data.path}: no audio to extract from: the directory has feats.scp but no wav.scp; add wav.scp,"
            " or choose the preset given"
        )
    first = ""
    for location in data.recordings.values():
        try:
            rate = audio.info(location, directory=data.path).sample_rate_hz
        except Speech3Error as error:
            first = first or str(error)
            continue
        return config.model_copy(update={"sample_frequency": rate})
    raise DataError(f"{data.path}: none of {len(data.recordings)} recordings can be read; the first error: {first}")


def _check(
    data: DataDir, config: FeatureConfig, skipped: dict[str, str], complete: bool, most: float = MOST_BAD
) -> None:
    problem = "cannot be used" if complete else "so far cannot be used"
    remedy = without_faulty_audio(data.path)
    if config.kind == "given":
        remedy = f"make the features again, or remove these utterances with `speech3 subset {data.path} OUT`"
    check_bad(skipped, len(data.utterances), str(data.path), problem, remedy, most)


def _say_remarkable(data: DataDir, report: ExtractReport) -> None:
    if report.silent:
        say(f"{data.path}: digital silence from end to end: {listed(report.silent)}")
    if report.channels:
        utterance, why = next(iter(report.channels.items()))
        more = f"; {len(report.channels) - 1:,} more such utterances" if len(report.channels) > 1 else ""
        say(f"{data.path}: {utterance}: of several channels, {why}{more}")


@contextmanager
def open_parts(target: Path) -> Iterator[Parts]:
    """Open and lock the parts of `target`, creating them if there are none."""
    with ExitStack() as stack:
        with explained_disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            journal = _journal(target).open("a+b")
            stack.callback(_close, journal)
            _lock(journal, target)
            data = _parts(target).open("a+b")
            stack.callback(_close, data)
            data.seek(0)
        parts = Parts(target, journal, data)
        try:
            yield parts
        except (Speech3Error, OSError) as error:
            # After bad data or a full disk something must change before the next run, so its parts would not match.
            # After Ctrl-C, or where a worker process was killed (out of memory), they are kept.
            if not isinstance(error.__cause__, BrokenProcessPool):
                parts.remove()
            raise


def _journal(target: Path) -> Path:
    return target.with_name(f".{target.name}.journal")


def _parts(target: Path) -> Path:
    return target.with_name(f".{target.name}.parts")


def _line(stream: IO[bytes]) -> dict[str, Any] | None:
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:  # the power failed while the line was being written
        return None
    return record if isinstance(record, dict) else None


def _lock(journal: IO[bytes], target: Path) -> None:
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = os.fstat(journal.fileno()).st_ino == _journal(target).stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        mine = False
    if not mine:  # locked by another run, or removed by one that has just finished
        raise OccupiedError(
            f"{target}: another run is writing it; wait for that to finish, or choose another output directory"
        )


def _close(stream: IO[bytes]) -> None:
    with suppress(OSError):  # a full disk, which a write has already reported
        stream.close()


class _Bytes(io.BytesIO):
    mode = "wb"  # kaldi_io checks it
