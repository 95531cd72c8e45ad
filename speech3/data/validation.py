"""Find all faults of a data directory at once, and write a repaired copy.

Validators are small functions: each gets the parsed directory and the results of one scan of the audio,
and yields faults. Faults of the text files come from `datadir.parse`. Entries of feature archives are faults if they
cannot be read, are not numbers, or do not fit their recordings. `fix_datadir` repairs what it can and leaves out
unusable utterances.

Axes: T frames, F features.
"""

import functools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import numpy as np

from speech3.data import paths
from speech3.data.audio import (
    CLIPPED,
    AudioError,
    AudioInfo,
    channel_mix,
    clipped_share,
    info as audio_info,
    read_blocks,
    segment_fault,
)
from speech3.data.datadir import (
    DATADIR_FILES,
    DataDir,
    Fault,
    Utterance,
    check_new_datadir,
    parse,
    read_table,
    write_datadir,
)
from speech3.data.lost_bytes import Damage, find_damage, write_mended
from speech3.data.markup import Remark, without_markup
from speech3.errors import DataError, MissingError, Speech3Error, counted
from speech3.io import ark_key_at, not_finite, read_matrix
from speech3.runtime import available_jobs, check_output, parallel_map

_SHIFTS_S = (0.005, 0.008, 0.01, 0.0125, 0.015, 0.016, 0.02, 0.03, 0.04)
_NEAR = 0.05  # of the usual shift: the median of the features is as near to one of these, or their shift is not known
_SLACK = 0.02, 10  # share of an utterance's frames, and number of frames, by which features may be longer or shorter
FRAME_S = 0.025  # one analysis window; shorter utterances have no frame
# With fewer recordings, starting processes costs more time than it saves (FSDD's 3,000: 0.7 s in one, 1.6 s in two).
_MANY_RECORDINGS = 5000
_BLOCK_S = 60.0  # of a recording in memory
_WINDOW_S, _MUTED_S = 0.02, 2.0  # a shorter stretch without any sound may be a pause that was edited


@dataclass(frozen=True)
class Scan:
    """The result of scanning one recording."""

    info: AudioInfo | None
    error: AudioError | None
    silent: frozenset[str]  # utterances whose samples are all the same
    damage: Damage | None = None  # bytes that are missing or too many
    channels: str = ""  # which of several channels are used, if not the average of all
    clipped: float = 0.0  # share of the samples that are cut off
    muted_s: tuple[float, float] = (0.0, 0.0)  # the longest stretch without any sound


@dataclass(frozen=True)
class ScannedData:
    """A data directory with the scan of each recording that has utterances."""

    data: DataDir
    scans: dict[str, Scan]

    def __iter__(self) -> Iterator[tuple[Utterance, AudioInfo]]:
        for utterance in self.data.utterances.values():
            scan = self.scans.get(utterance.recording)
            if scan and scan.info:
                yield utterance, scan.info

    @property
    def infos(self) -> dict[str, AudioInfo]:
        """Of the recordings that could be read."""
        return {recording: scan.info for recording, scan in self.scans.items() if scan.info}

    def fault(
        self, recording: str, kind: str, problem: str, remedy: str, *, drop: bool = False, warning: bool = False
    ) -> Fault:
        """A fault of a recording and thus of its utterances, which are left out if `drop`."""
        ids = self.of_recording[recording]
        named = ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} other utterances"
        where = self.data.recordings[recording]
        return Fault(kind, where, named, problem, remedy, drop=ids if drop else (), warning=warning)

    @functools.cached_property
    def of_recording(self) -> dict[str, tuple[str, ...]]:
        table: dict[str, list[str]] = {}
        for utterance in self.data.utterances.values():
            table.setdefault(utterance.recording, []).append(utterance.id)
        return {recording: tuple(ids) for recording, ids in table.items()}


@dataclass(frozen=True)
class ValidationReport:
    """What `validate` found."""

    data: DataDir
    scanned: ScannedData
    faults: tuple[Fault, ...]
    warnings: tuple[Fault, ...]

    def summary(self) -> str:
        """One line: how many faults of each kind, or what the directory contains."""
        path, data = self.data.path, self.data
        if self.faults:
            kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(f.kind for f in self.faults).most_common())
            count = f"{len(self.faults)} fault{'s' if len(self.faults) > 1 else ''}"
            remedy = f"; `speech3 fix {path} OUT` writes a copy without them" if data.utterances else ""
            return f"{path}: {count} ({kinds}){remedy}"
        counts = (
            f"{path}: fine: {counted(len(data.utterances), 'utterance')}, {counted(len(data.speakers()), 'speaker')}"
        )
        if not data.recordings:
            return f"{counts}, features without audio"
        hours = sum(duration_s(utterance, found) for utterance, found in self.scanned) / 3600
        rates = "/".join(str(rate) for rate in sorted({found.sample_rate_hz for _, found in self.scanned}))
        return f"{counts}, {hours:.2f} hours, {rates} Hz"


def validate(
    path: Path | str, *, jobs: int = 0, need_text: bool = True, features: Path | None = None
) -> ValidationReport:
    """Find every fault of a data directory, including those of its features if it has any.

    Parameters
    ----------
    jobs
        Number of processes that decode the audio; 0: one per core if there are many recordings.
    need_text
        Whether a missing file `text` is a fault.
    features
        An scp to look at instead of the directory's feats.scp.
    """
    data, structural = parse(path, need_text=need_text)
    if not paths.refused():  # if they are, each of them is a fault
        paths.check(data.path / "wav.scp", data.recordings)
    scanned = ScannedData(data, _scan_all(data, jobs))
    found = [*structural, *(fault for check in VALIDATORS for fault in check(scanned))]
    if data.feats or features:
        lengths_s = {utterance.id: duration_s(utterance, info) for utterance, info in scanned}
        found += feature_faults(data, lengths_s, features, jobs or available_jobs())
    faults = tuple(fault for fault in found if not fault.warning)
    return ValidationReport(data, scanned, faults, tuple(fault for fault in found if fault.warning))


def _scan_all(data: DataDir, jobs: int) -> dict[str, Scan]:
    parts: dict[str, list[Utterance]] = {}
    for utterance in data.utterances.values() if data.recordings else ():
        parts.setdefault(utterance.recording, []).append(utterance)
    items = [(data.recordings[recording], utterances) for recording, utterances in parts.items()]
    jobs = jobs or (available_jobs() if len(items) >= _MANY_RECORDINGS else 1)
    scans = parallel_map(functools.partial(_scan, data.path), items, jobs, f"reading the audio of {data.path}")
    return dict(zip(parts, scans, strict=True))


def _scan(directory: Path, item: tuple[str, list[Utterance]]) -> Scan:
    value, utterances = item
    try:
        found = audio_info(value, directory=directory)
        sound = _Sound(found.sample_rate_hz)
        blocks = sound.heard(read_blocks(value, _BLOCK_S, directory=directory))
        silent = _silent(blocks, utterances, found.sample_rate_hz)
        channels = channel_mix(value, directory=directory).why if found.channels > 1 else ""
        damage = find_damage(value, directory=directory)
    except AudioError as error:
        return Scan(None, error, frozenset())
    return Scan(found, None, silent, damage, channels, sound.clipped, sound.muted_s)


@dataclass
class _Sound:
    """What is odd in the sound of a recording: samples that are cut off, a stretch without any sound."""

    rate_hz: int
    _samples: int = 0
    _clipped: float = 0.0
    _sounding: list[np.ndarray] = field(default_factory=list)  # the first samples of windows that have any

    def heard(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Listen to blocks, and pass them on."""
        for block_S in blocks:
            if len(block_S):
                first_W = np.arange(0, len(block_S), self._window)
                sounding_W = np.maximum.reduceat(block_S, first_W) > np.minimum.reduceat(block_S, first_W)
                self._sounding.append(self._samples + first_W[sounding_W])
            self._samples += len(block_S)
            self._clipped += clipped_share(block_S) * len(block_S)
            yield block_S

    @property
    def _window(self) -> int:
        return max(1, round(_WINDOW_S * self.rate_hz))

    @property
    def clipped(self) -> float:
        return self._clipped / max(self._samples, 1)

    @property
    def muted_s(self) -> tuple[float, float]:
        """Beginning and end of the longest stretch of equal samples, rounded to windows."""
        edges = np.concatenate([[-self._window], *self._sounding, [self._samples]])
        longest = int(np.argmax(np.diff(edges)))
        return float(edges[longest] + self._window) / self.rate_hz, float(edges[longest + 1]) / self.rate_hz


def _silent(blocks: Iterable[np.ndarray], utterances: Sequence[Utterance], rate_hz: int) -> frozenset[str]:
    first = [round(utterance.start_s * rate_hz) for utterance in utterances]
    last = [sys.maxsize if u.end_s is None else round(u.end_s * rate_hz) for u in utterances]
    lowest, highest = np.full(len(utterances), np.inf), np.full(len(utterances), -np.inf)
    begin = 0
    for block_S in blocks:
        end = begin + len(block_S)
        for place in range(len(utterances)):
            part_S = block_S[max(0, first[place] - begin) : max(0, last[place] - begin)]
            if len(part_S):
                lowest[place] = min(lowest[place], part_S.min())
                highest[place] = max(highest[place], part_S.max())
        begin = end
    return frozenset(u.id for u, low, high in zip(utterances, lowest, highest, strict=True) if low == high)


def duration_s(utterance: Utterance, found: AudioInfo) -> float:
    """Seconds of the utterance that lie within its recording."""
    end_s = found.duration_s if utterance.end_s is None else min(utterance.end_s, found.duration_s)
    return max(end_s - utterance.start_s, 0.0)


def some_of_each_kind(faults: Sequence[Fault], most: int) -> Sequence[Fault]:
    """At most `most` faults in their order: the first of every kind, then the second of every kind, and so on."""
    before: Counter[str] = Counter()
    ranks = []
    for place, fault in enumerate(faults):
        ranks.append((before[fault.kind], place))
        before[fault.kind] += 1
    return [faults[place] for place in sorted(place for _, place in sorted(ranks)[:most])]


def _unusable_audio(scanned: ScannedData) -> Iterator[Fault]:
    """Missing, unreadable, empty and truncated files."""
    for recording, scan in scanned.scans.items():
        if error := scan.error:
            yield replace(
                scanned.fault(recording, error.kind, error.problem, error.remedy, drop=True), where=error.file
            )


def _missing_ends(scanned: ScannedData) -> Iterator[Fault]:
    """Files that lack too little at their end for any speech to be missing; they are used as they are."""
    for recording, info in scanned.infos.items():
        if info.missing_s:
            problem = f"its header promises {1000 * info.missing_s:.0f} ms more than the file has"
            yield scanned.fault(recording, "missing end", problem, "the rest is used", warning=True)


def _lost_bytes(scanned: ScannedData) -> Iterator[Fault]:
    """Recordings that are noise from some place on, because a transfer changed their number of bytes."""
    for recording, scan in scanned.scans.items():
        if damage := scan.damage:
            remedy = "get the file again, in binary mode" + ", or run `speech3 fix`" * damage.mended
            fault = scanned.fault(recording, "lost byte", str(damage), remedy, drop=not damage.mended)
            repair = f"{damage.count} {'taken out' if damage.inserted else 'put back'}, in a copy of the recording"
            yield replace(fault, repair=repair, mend=recording) if damage.mended else fault


def _wrong_headers(scanned: ScannedData) -> Iterator[Fault]:
    """Files whose header gives another length than they have; they are read to their end."""
    for recording, info in scanned.infos.items():
        if info.claim:
            remedy = "the audio in the file is read; listen to check that it is complete"
            yield scanned.fault(recording, "wrong header", info.claim, remedy, warning=True)


def _several_channels(scanned: ScannedData) -> Iterator[Fault]:
    for recording, info in scanned.infos.items():
        if info.channels > 1:
            how = scanned.scans[recording].channels
            problem = f"has {counted(info.channels, 'channel')}" + (f"; as one channel, {how}" if how else "")
            remedy = "convert it to one channel, or set mix_channels: true in the feature configuration"
            yield scanned.fault(recording, "several channels", problem, remedy, drop=True)


def _sample_rates(scanned: ScannedData) -> Iterator[Fault]:
    """Recordings whose rate is not that of most utterances."""
    rates = Counter(found.sample_rate_hz for _, found in scanned)
    usual_hz = max(rates, key=lambda rate_hz: (rates[rate_hz], rate_hz), default=0)
    for recording, info in scanned.infos.items():
        if info.sample_rate_hz != usual_hz:
            problem = f"has {info.sample_rate_hz} Hz, but {rates[usual_hz]} of the utterances have {usual_hz} Hz"
            remedy = "convert it, or set resample: true in the feature configuration"
            yield scanned.fault(recording, "other sample rate", problem, remedy, drop=True)


def _segments_outside(scanned: ScannedData) -> Iterator[Fault]:
    """Segments that reach beyond their recording: clipped if a part lies inside."""
    for utterance, found in scanned:
        problem = segment_fault(utterance.start_s, utterance.end_s, found.duration_s, found.missing_s)
        if problem:
            fault = Fault("segment", str(scanned.data.path / "segments"), utterance.id, problem, "correct the times")
            if utterance.start_s < found.duration_s:
                yield replace(fault, end_s=found.duration_s, repair=f"end clipped to {found.duration_s:.3f} s")
            else:
                yield replace(fault, drop=(utterance.id,))


def _too_short(scanned: ScannedData) -> Iterator[Fault]:
    """Utterances of less than one frame."""
    for utterance, found in scanned:
        length_s = duration_s(utterance, found)
        if 0 < length_s < FRAME_S:
            where, ids = scanned.data.recordings[utterance.recording], (utterance.id,)
            problem = f"lasts {1000 * length_s:.1f} ms, less than one frame of {1000 * FRAME_S:.0f} ms"
            yield Fault("too short", where, utterance.id, problem, "remove the utterance", drop=ids)


def _digital_silence(scanned: ScannedData) -> Iterator[Fault]:
    """Utterances without any sound; only a warning, since features can still be computed."""
    for utterance, _ in scanned:
        if utterance.id in scanned.scans[utterance.recording].silent:
            where = scanned.data.recordings[utterance.recording]
            remedy = "check the recording, or remove the utterance"
            yield Fault("digital silence", where, utterance.id, "all its samples are equal", remedy, warning=True)


def _odd_sound(scanned: ScannedData) -> Iterator[Fault]:
    """Recordings that were clipped, and utterances in which the microphone was off for a while: only warnings."""
    for recording, scan in scanned.scans.items():
        if scan.clipped > CLIPPED:
            problem = f"is clipped: {scan.clipped:.1%} of its samples are cut off"
            yield scanned.fault(recording, "clipped", problem, "record at a lower level", warning=True)
    for utterance, found in scanned:
        scan, where = scanned.scans[utterance.recording], scanned.data.recordings[utterance.recording]
        begin_s, end_s = scan.muted_s
        begin_s, end_s = max(begin_s, utterance.start_s), min(end_s, utterance.start_s + duration_s(utterance, found))
        if end_s - begin_s >= _MUTED_S and utterance.id not in scan.silent:
            problem = f"has no sound from {begin_s:.2f} to {end_s:.2f} s of the recording: all samples are equal"
            remedy = "listen: was the microphone off while somebody spoke?"
            yield Fault("muted", where, utterance.id, problem, remedy, warning=True)


def _markup(scanned: ScannedData) -> Iterator[Fault]:
    """Tags, names of speakers and noises in parentheses, which count as words in a data directory: one of each kind."""
    found: dict[str, list[tuple[str, Remark]]] = {}
    for utterance in scanned.data.utterances.values():
        for remark in without_markup(utterance.text or "")[1]:
            found.setdefault(remark.kind, []).append((utterance.id, remark))
    for kind, remarks in found.items():
        (first, remark), others = remarks[0], len(remarks) - 1
        problem = remark.problem + (
            f"; {others:,} other transcript{'s have' if others > 1 else ' has'} some, too" if others else ""
        )
        remedy = "in a data directory each word counts as it is written: change the text if nobody says it"
        yield Fault(kind, str(scanned.data.path / "text"), first, problem, remedy, warning=True)


VALIDATORS = (
    _markup,
    _unusable_audio,
    _missing_ends,
    _lost_bytes,
    _wrong_headers,
    _several_channels,
    _sample_rates,
    _segments_outside,
    _too_short,
    _digital_silence,
    _odd_sound,
)


@dataclass(frozen=True)
class _Matrix:
    frames: int = 0
    values: int = 0
    problem: str = ""
    key: str | None = None  # the name that its archive gives it, if that can be told


def feature_faults(
    data: DataDir, lengths_s: Mapping[str, float], scp: Path | None = None, jobs: int = 1
) -> list[Fault]:
    """The faults of the features of `data`, from its ``feats.scp`` or another one, and of its ``cmvn.scp``.

    `lengths_s`: seconds of the utterances whose recordings could be read.
    """
    faults: list[Fault] = []
    path, locations, directory = data.path / "feats.scp", data.feats, data.path
    if scp is not None:
        table = read_table(scp, faults)
        if table is None:
            raise MissingError(f"{scp}: no such file")
        path, directory = scp, scp.parent
        locations = {key: entry.value for key, entry in table.entries.items() if entry.value}
        for key in sorted(data.utterances.keys() - locations.keys()):
            faults.append(Fault("no features", str(path), key, "has no features", "extract them", drop=(key,)))
        if unused := sorted(locations.keys() - data.utterances.keys()):
            problem = f"{len(unused)} entries are of no utterance of {data.path}"
            faults.append(Fault("unknown utterance", str(path), unused[0], problem, "they are ignored", warning=True))
    ids = [key for key in data.utterances if key in locations]
    look = functools.partial(_look, directory)
    found = dict(zip(ids, parallel_map(look, [locations[key] for key in ids], jobs, f"reading {path}"), strict=True))
    faults += _matrix_faults(data, path, found)
    faults += _length_faults(path, found, lengths_s)
    faults += _statistics_faults(data) if scp is None else ()
    return faults


def _look(directory: Path, location: str) -> _Matrix:
    try:
        matrix = read_matrix(location, directory)
    except Speech3Error as error:
        return _Matrix(problem=str(error))
    if matrix.ndim != 2 or not matrix.size:
        return _Matrix(problem=f"{location}: not a matrix, or an empty one")
    if problem := not_finite(matrix):
        return _Matrix(len(matrix), matrix.shape[1], problem)
    return _Matrix(len(matrix), matrix.shape[1], key=ark_key_at(location, directory))


def _matrix_faults(data: DataDir, path: Path, found: Mapping[str, _Matrix]) -> Iterator[Fault]:
    sizes = Counter(matrix.values for matrix in found.values() if matrix.values)
    usual = max(sizes, key=lambda values: (sizes[values], values)) if sizes else 0
    again = "compute them again, or remove the utterance"
    for key, matrix in found.items():
        if matrix.problem:
            yield Fault("unusable features", str(path), key, matrix.problem, again, drop=(key,))
        elif matrix.values != usual:
            problem = f"has {matrix.values} values per frame, but {sizes[usual]} of the utterances have {usual}"
            yield Fault("other feature size", str(path), key, problem, again, drop=(key,))
        elif matrix.key not in (None, key) and matrix.key in data.utterances:
            problem = f"its offset leads to the features of {matrix.key}"
            yield Fault("wrong offset", str(path), key, problem, "write the scp again", drop=(key,))


def _length_faults(path: Path, found: Mapping[str, _Matrix], lengths_s: Mapping[str, float]) -> Iterator[Fault]:
    """Features that are much longer or shorter than their recordings, at the frame shift that most of them have."""
    usable = {key: matrix.frames for key, matrix in found.items() if not matrix.problem and key in lengths_s}
    if not usable:
        return
    median_s = float(np.median([lengths_s[key] / frames for key, frames in usable.items()]))
    shift_s = min(_SHIFTS_S, key=lambda shift: abs(shift - median_s))
    if abs(shift_s - median_s) > _NEAR * shift_s:
        shift_s = median_s
    share, most = _SLACK
    for key, frames in usable.items():
        expected = lengths_s[key] / shift_s
        if abs(frames - expected) > max(share * expected, most):
            problem = (
                f"has {counted(frames, 'frame')} of features, but its recording of {lengths_s[key]:.2f} s"
                " should have about"
                f" {expected:.0f} ({1000 * shift_s:g} ms each, as for most utterances)"
            )
            remedy = "compute them again, or correct `segments`"
            yield Fault("other length", str(path), key, problem, remedy, drop=(key,))


def _statistics_faults(data: DataDir) -> Iterator[Fault]:
    path, speakers = data.path / "cmvn.scp", data.speakers()
    for speaker, location in data.cmvn.items():
        try:
            stats_2G = read_matrix(location, data.path)
            problem = "are not finite numbers" if not np.isfinite(stats_2G).all() else ""
            problem = problem or ("are over no frame" if stats_2G[0, -1] < 1 else "")
        except (Speech3Error, IndexError) as error:
            problem = f"cannot be read: {error}"
        if problem:
            remedy = "compute them again, or remove the speaker's utterances"
            problem, ids = f"its statistics {problem}", tuple(speakers.get(speaker, ()))
            yield Fault("unusable statistics", str(path), speaker, problem, remedy, drop=ids)


@dataclass(frozen=True)
class Repairs:
    """What `fix` wrote, and what it changed."""

    data: DataDir
    removed: tuple[str, ...]  # utterances
    changes: tuple[str, ...]  # a line for each fault
    warnings: tuple[Fault, ...]


def fix_datadir(path: Path | str, out: Path | str, *, jobs: int = 0) -> Repairs:
    """Write a copy of the data directory `path` in which `validate` finds no fault.

    Audio is not copied, except recordings that lost bytes: their mended copies are in ``out/mended``. A missing file
    `text` cannot be repaired: like its source, the copy is for decoding only. It is an error if no usable utterance is
    left.
    """
    path, out = Path(path), Path(out)
    check_output(out, [path], [*DATADIR_FILES, "mended"], marks=["utt2spk"])
    report = validate(path, jobs=jobs)
    check_new_datadir(out, [report.data])
    drop = {key for fault in report.faults for key in fault.drop}
    kept = _kept(report, drop)
    if not kept.utterances:
        listing = "\n".join(f"  {fault}" for fault in report.faults)
        raise DataError(f"{path}: no usable utterance is left, nothing was written\n{listing}")
    # With utt2spk, which marks what is ours, before recordings are mended: a run that is killed can be repeated.
    write_datadir(kept, out)
    if any(fault.mend for fault in report.faults):
        write_datadir(_with_mended(kept, report, out), out)
    return Repairs(kept, tuple(sorted(drop)), tuple(map(_change, report.faults)), report.warnings)


def _kept(report: ValidationReport, drop: set[str]) -> DataDir:
    data = report.data.subset(set(report.data.utterances) - drop)
    ends = {fault.subject: fault.end_s for fault in report.faults if fault.end_s is not None}
    utterances = {key: replace(utt, end_s=ends[key]) if key in ends else utt for key, utt in data.utterances.items()}
    return replace(data, utterances=utterances)


def _with_mended(kept: DataDir, report: ValidationReport, out: Path) -> DataDir:
    mended = {}
    broken = [kept.recordings[fault.mend] for fault in report.faults if fault.mend in kept.recordings]
    check_output(out, [paths.resolve_path(value, kept.path) for value in broken], ["mended/*"])
    for fault in report.faults:
        if fault.mend in kept.recordings:
            path = out / "mended" / f"{quote(fault.mend, safe='')}.wav"
            write_mended(kept.recordings[fault.mend], path, directory=kept.path)
            mended[fault.mend] = str(path.absolute())
    return replace(kept, recordings={**kept.recordings, **mended})


def _change(fault: Fault) -> str:
    done = fault.repair or f"removed {len(fault.drop)} utterance{'s' if len(fault.drop) > 1 else ''}"
    subject = f"{fault.subject}: " if fault.subject else ""
    return f"{fault.where}: {subject}{fault.problem}: {done}"
