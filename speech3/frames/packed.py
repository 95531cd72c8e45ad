"""A file of frames, senones and utterances: written once, memory-mapped, checksummed (`pack_aligned`, `open_packed`).

Layout (little endian): a header of 4,096 bytes (magic, version, position and checksum of the footer), then the sections
(frames, senones, utterance offsets, ids, senone counts, mean, variance), each at a multiple of 64 bytes, then one
CRC-32 for each block of 1 MiB of the sections, then the footer: JSON with the writer's description and the position of
each section. Opening a large file reads only footer, checksums and offsets.

In place of senones there may be labels of segments (phones, words): twice the number of the segment, plus one in its
first frame, so that two consecutive segments with the same number remain separate.

Axes: N frames of all utterances (or segments), F feature bins, T frames of one utterance, U utterances, S senones.
"""

import json
import mmap
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch

from speech3.config import FeatureConfig
from speech3.data import DataDir, split_by_speaker
from speech3.errors import DataError, FormatError, MismatchError, MissingError, OccupiedError, Speech3Error, check_bad
from speech3.features import extract, repeated_frames
from speech3.io import A_MODEL, FEATURES_FILE, HMM_FILE, ArkReader, IntArkReader
from speech3.runtime import atomic_path, check_output, explained_disk_errors, progress, read_json, say, write_json

_MAGIC = b"SP3FRAME"
_VERSION = 1
_HEAD = struct.Struct("<8sIQQI")
HEAD_BYTES = 4096
BLOCK_BYTES = 1 << 20
_ALIGN = 64
_SHOWN_BLOCKS = 256  # verifying more blocks takes long enough for a progress bar
_RELEASED_BLOCKS = 64
_SCATTERED_BYTES = 1 << 30  # smaller files are soon completely in memory
_VERIFIED_AT_OPENING_BYTES = 16 << 20  # files up to this size are read in milliseconds
_REMEDY = "align or extract them again, or remove them from the data directory"
_MAX_LENGTH_DIFFERENCE = 2  # frames: front ends differ in how they treat the edges of a recording


@dataclass(frozen=True, eq=False)
class Sections:
    """An open file of sections."""

    path: Path
    about: dict[str, Any]  # the writer's description of the content
    checksum: int  # checksum of the table of checksums, which identifies the content
    # size, mtime_ns: size and time of modification of the mapped file, which may no longer be the one at `path`.
    size: int
    mtime_ns: int
    _places: dict[str, tuple[int, int]]
    _checksums: np.ndarray
    _map: mmap.mmap
    _raw: np.ndarray

    def array(self, name: str, dtype: str) -> np.ndarray:
        """A section as a view into the memory map."""
        start, size = self._places[name]
        if size % np.dtype(dtype).itemsize or start + size > self.size:
            raise FormatError(f"{self.path}: section {name} does not match its description; pack the file again")
        return self._raw[start : start + size].view(dtype)

    def block_of(self, name: str, offset: int) -> int:
        """Number of the block that holds byte `offset` of a section."""
        return (self._places[name][0] + offset - HEAD_BYTES) // BLOCK_BYTES

    def verify(self) -> None:
        """Compare every block with its checksum, in constant memory."""
        count = len(self._checksums)
        blocks = progress(range(count), count, f"verify {self.path.name}") if count > _SHOWN_BLOCKS else range(count)
        end = max(start + size for name, (start, size) in self._places.items() if name != "checksums")
        self._map.madvise(mmap.MADV_NORMAL)
        for block in blocks:
            start = HEAD_BYTES + block * BLOCK_BYTES
            stop = min(start + BLOCK_BYTES, end)
            if zlib.crc32(self._raw[start:stop].data) != self._checksums[block]:
                raise FormatError(
                    f"{self.path}: block {block} of {count} (bytes {start} to {stop - 1}) does not "
                    f"match its checksum: the file is damaged; pack it again"
                )
            if (block + 1) % _RELEASED_BLOCKS == 0:
                self.release()
        self.expect_scattered_reads()

    def release(self) -> None:
        """Release the memory of the pages read; they stay in the system's cache while there is room."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def expect_scattered_reads(self) -> None:
        """Turn off read-ahead for a large file: reading 128 kB around each frame was 100 times slower."""
        if self.size > _SCATTERED_BYTES:
            self._map.madvise(mmap.MADV_RANDOM)

    def read_ahead(self, name: str, start: int, stop: int) -> None:
        """Let the system read bytes `start` up to `stop` of a section in the background."""
        at = self._places[name][0]
        first = (at + start) // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, first, at + stop - first)


def open_sections(path: Path) -> Sections:
    if not path.is_file():
        raise MissingError(f"{path}: no such file; make it with speech3 pack, or with a recipe's stage train")
    with path.open("rb") as stream:
        status = os.fstat(stream.fileno())
        head = stream.read(_HEAD.size)
        if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
            raise FormatError(f"{path}: not a file of packed frames")
        _, version, start, length, crc = _HEAD.unpack(head)
        if version != _VERSION:
            raise FormatError(f"{path}: format {version}, but this speech3 reads {_VERSION}; pack it again")
        if status.st_size < start + length:
            block = max(0, status.st_size - HEAD_BYTES) // BLOCK_BYTES
            raise FormatError(
                f"{path}: truncated in block {block}: {status.st_size} bytes of {start + length}; pack it again"
            )
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    footer = mapped[start : start + length]
    if zlib.crc32(footer) != crc:
        raise FormatError(f"{path}: the footer does not match its checksum: the file is damaged; pack it again")
    about = json.loads(footer)
    raw = np.frombuffer(mapped, np.uint8)
    places = {name: (at, size) for name, (at, size) in about.pop("sections").items()}
    at, size = places["checksums"]
    table = raw[at : at + size]
    checksum = about.pop("checksums_crc")
    if zlib.crc32(table.data) != checksum:
        raise FormatError(f"{path}: the table of checksums is damaged; pack it again")
    stamp = status.st_size, status.st_mtime_ns
    sections = Sections(path, about, checksum, *stamp, places, table.view("<u4"), mapped, raw)
    sections.expect_scattered_reads()
    return sections


class SectionWriter:
    """Writes sections to a new file, one after the other, with a checksum per block; `close` completes the file."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.position, self.crc = HEAD_BYTES, 0
        self.checksums: list[int] = []
        self.places: dict[str, tuple[int, int]] = {}
        stream.write(bytes(HEAD_BYTES))

    def section(self, name: str, parts: Iterable[bytes]) -> None:
        self.write(bytes(-self.position % _ALIGN))
        start = self.position
        for part in parts:
            self.write(part)
        self.places[name] = (start, self.position - start)

    def write(self, data: bytes) -> None:
        self.stream.write(data)
        view = memoryview(data)
        while view:
            room = BLOCK_BYTES - (self.position - HEAD_BYTES) % BLOCK_BYTES
            self.crc = zlib.crc32(view[:room], self.crc)
            self.position += len(view[:room])
            if (self.position - HEAD_BYTES) % BLOCK_BYTES == 0:
                self.checksums.append(self.crc)
                self.crc = 0
            view = view[room:]

    def close(self, about: dict[str, Any]) -> None:
        """Write checksums and footer, then the header, without which the file cannot be opened."""
        if (self.position - HEAD_BYTES) % BLOCK_BYTES:
            self.checksums.append(self.crc)
        table = np.array(self.checksums, "<u4").tobytes()
        start = self.position + -self.position % _ALIGN
        self.stream.write(bytes(start - self.position) + table)
        sections = {**self.places, "checksums": (start, len(table))}
        footer = json.dumps({**about, "sections": sections, "checksums_crc": zlib.crc32(table)}).encode("utf-8")
        self.stream.write(footer)
        self.stream.seek(0)
        self.stream.write(_HEAD.pack(_MAGIC, _VERSION, start + len(table), len(footer), zlib.crc32(footer)))
        self.stream.flush()
        os.fsync(self.stream.fileno())


def segment_labels(numbers_N: np.ndarray, starts_N1: np.ndarray) -> np.ndarray:
    """Labels (T,) int32 of segments, from their numbers (N,), and their first frames and the end (N + 1,)."""
    labels_T = np.repeat(2 * np.asarray(numbers_N, np.int32), np.diff(starts_N1))
    labels_T[starts_N1[:-1]] += 1
    return labels_T


def segment_starts(labels_T: np.ndarray) -> np.ndarray:
    """The first frames (N,) int64 of the segments."""
    starts_N: np.ndarray = np.flatnonzero(labels_T & 1)
    return starts_N


def segment_numbers(labels_T: np.ndarray) -> np.ndarray:
    """The numbers (N,) of the segments."""
    numbers_N: np.ndarray = labels_T[segment_starts(labels_T)] >> 1
    return numbers_N


@dataclass(frozen=True, eq=False)
class PackedFrames:
    """An open packed file. Arrays are views into the memory map: data are read only when they are accessed.

    It is pickled as its path: another process maps the same memory. Utterance u has the frames from ``offsets_U1[u]``
    up to ``offsets_U1[u + 1]``, at least one. Mean and variance are over all frames but those of digital silence
    (`speech3.features.repeated_frames`). `info` is what the writer was given, `digest` identifies the content.
    """

    path: Path
    num_senones: int
    frames_NF: np.ndarray
    senones_N: np.ndarray
    offsets_U1: np.ndarray
    counts_S: np.ndarray
    mean_F: np.ndarray
    variance_F: np.ndarray
    info: dict[str, Any]
    digest: str
    _sections: Sections

    def __len__(self) -> int:
        return self.frames_NF.shape[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.digest)

    @property
    def dim(self) -> int:
        return self.frames_NF.shape[1]

    @cached_property
    def utterances(self) -> tuple[str, ...]:
        """Utterance ids, in the order of the file."""
        return tuple(self._sections.array("ids", "u1").tobytes().decode("utf-8").split("\n"))

    def read_ahead(self, first: int, end: int) -> None:
        """Let the system read frames `first` up to `end`, and their senones, before they are accessed."""
        for name, array in (("frames", self.frames_NF), ("senones", self.senones_N)):
            self._sections.read_ahead(name, first * array.strides[0], end * array.strides[0])

    def verify(self) -> None:
        """Compare the whole file with its checksums, and check all senones; an error names the first block at fault."""
        self._sections.verify()
        step = BLOCK_BYTES // self.senones_N.itemsize
        for start in range(0, len(self), step):
            part = self.senones_N[start : start + step]
            if part.min() < 0 or part.max() >= self.num_senones:
                frame = start + int(np.argmax((part < 0) | (part >= self.num_senones)))
                block = self._sections.block_of("senones", frame * part.itemsize)
                raise MismatchError(
                    f"{self.path}: block {block}: frame {frame} has senone {self.senones_N[frame]}, but there are "
                    f"{self.num_senones}; pack it again with the alignment of this model"
                )
        self._sections.release()


@dataclass(frozen=True)
class PackReport:
    """What `pack` wrote, and the reason for each utterance that it left out."""

    utterances: int
    frames: int
    skipped: dict[str, str]


def open_packed(path: Path | str) -> PackedFrames:
    """Memory-map a packed file; small files are verified at once, large ones by `verify_once`.

    Raises Speech3Error: the file is missing, not a packed file, truncated or damaged, or holds no frames.
    """
    sections = open_sections(Path(path))
    about = sections.about
    if about["dim"] < 1 or about["frames"] < 1:
        raise DataError(
            f"{path}: holds no frames ({about['frames']} of {about['dim']} feature bins); pack it again with some "
            f"utterances"
        )
    frames, dim, senones = about["frames"], about["dim"], about["num_senones"]
    packed = PackedFrames(
        path=sections.path,
        num_senones=senones,
        frames_NF=_shaped(sections, "frames", about["dtype"], frames * dim).reshape(-1, dim),
        senones_N=_shaped(sections, "senones", about["senone_dtype"], frames),
        offsets_U1=_shaped(sections, "offsets", "<i8", about["utterances"] + 1),
        counts_S=_shaped(sections, "counts", "<i8", senones),
        mean_F=_shaped(sections, "mean", "<f8", dim),
        variance_F=_shaped(sections, "variance", "<f8", dim),
        info=about["info"],
        digest=f"{sections.checksum:08x}",
        _sections=sections,
    )
    _check_offsets(packed)
    if sections.size <= _VERIFIED_AT_OPENING_BYTES:
        packed.verify()
    return packed


def verify_once(packed: PackedFrames, record: Path | str) -> None:
    """Call `PackedFrames.verify`, unless the JSON file `record` says that the same file has passed before.

    The first verification finds any damaged byte; a resumed run does not read everything again. A file is the same if
    its path, checksums, size and modification time are. The record belongs in the run directory: the data may be
    read-only.
    """
    if packed._sections.size <= _VERIFIED_AT_OPENING_BYTES:
        return
    try:
        known = read_json(record)
    except Speech3Error:
        known = {}  # missing or damaged, which costs only time
    key, stamp = str(packed.path.resolve()), [packed.digest, packed._sections.size, packed._sections.mtime_ns]
    if known.get(key) != stamp:
        packed.verify()
        write_json(record, {**known, key: stamp})


def _reopen(path: Path, digest: str) -> PackedFrames:
    packed = open_packed(path)
    if packed.digest != digest:
        raise OccupiedError(f"{path}: was packed again while it was in use; run the same command again")
    return packed


def _shaped(sections: Sections, name: str, dtype: str, count: int) -> np.ndarray:
    array = sections.array(name, dtype)
    if len(array) != count:
        raise DataError(f"{sections.path}: {len(array)} values in section {name} instead of {count}; pack it again")
    return array


def _check_offsets(packed: PackedFrames) -> None:
    offsets_U1 = packed.offsets_U1
    wrong = offsets_U1[1:] <= offsets_U1[:-1]
    if offsets_U1[0] == 0 and offsets_U1[-1] == len(packed) and not wrong.any():
        return
    utterance = int(np.argmax(wrong)) if wrong.any() else 0
    raise FormatError(
        f"{packed.path}: block {packed._sections.block_of('offsets', 8 * utterance)}: the table of utterances does not "
        f"rise from 0 to {len(packed)} frames (utterance {utterance}: frames {offsets_U1[utterance]} up to "
        f"{offsets_U1[utterance + 1]}): the file is damaged; pack it again"
    )


def write_frames(
    path: Path | str,
    feats: Mapping[str, np.ndarray],
    alignments: Mapping[str, np.ndarray],
    num_senones: int,
    *,
    utterances: Sequence[str],
    dtype: Literal["float16", "float32"] = "float32",
    info: dict[str, Any] | None = None,
) -> PackReport:
    """Write frames and their senones of some utterances, in this order, in constant memory.

    `feats`: utterance id to (T, F) float array, looked up one at a time.
    `alignments`: utterance id to (T,) int array of senones below `num_senones`. If the lengths differ by at most two
    frames, both are cut to the shorter length.

    Raises Speech3Error: there are no utterances, or more than 5 % of them are unusable (no alignment, features or
    frame, lengths that differ, values that are not finite, other feature dimensions); a senone is not below
    `num_senones`.
    """
    path = Path(path)
    if not utterances:
        raise DataError(f"{path}: no utterance to pack")
    skipped: dict[str, str] = {}
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        packer = _Packer(path, np.dtype(dtype).newbyteorder("<"), num_senones)
        writer = SectionWriter(stream)
        with tempfile.TemporaryFile(dir=path.parent) as spool:  # senones, until the frames are complete
            writer.section("frames", packer.frames(feats, alignments, utterances, skipped, spool))
            _say_skipped(path, skipped, len(utterances))
            spool.seek(0)
            writer.section("senones", iter(lambda: spool.read(BLOCK_BYTES), b""))
        packer.finish(writer, info or {})
    return PackReport(len(packer.ids), packer.offsets[-1], skipped)


def _usable(
    feats: Mapping[str, np.ndarray], alignments: Mapping[str, np.ndarray], utterance: str, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray] | str:
    if utterance not in alignments:
        return "no alignment"
    if utterance not in feats:
        return "no features"
    try:
        feats_TF = np.asarray(feats[utterance])
    except Speech3Error as error:
        return str(error)
    senones_T = np.asarray(alignments[utterance])
    if feats_TF.ndim != 2 or not feats_TF.shape[1]:
        return f"features of shape {feats_TF.shape}, not frames x bins"
    if abs(len(feats_TF) - len(senones_T)) > _MAX_LENGTH_DIFFERENCE:
        return f"{len(feats_TF)} frames of features, {len(senones_T)} of alignment"
    length = min(len(feats_TF), len(senones_T))
    if length == 0:
        return "no frame"
    with np.errstate(over="ignore"):
        feats_TF = np.ascontiguousarray(feats_TF[:length], dtype=dtype)
    if not np.isfinite(feats_TF).all():
        return f"features that are not finite numbers in {dtype.name}"
    return feats_TF, senones_T[:length]


def _say_skipped(path: Path, skipped: dict[str, str], total: int) -> None:
    for utterance, reason in skipped.items():
        say(f"skipped {utterance}: {reason}")
    if skipped:
        say(f"{path.name}: {len(skipped)} of {total} utterances skipped")


class _Packer:
    """Passes utterances on to the file and gathers what is known only at the end: offsets and statistics."""

    def __init__(self, path: Path, dtype: np.dtype, num_senones: int) -> None:
        self.path, self.dtype, self.num_senones = path, dtype, num_senones
        self.senone_dtype = np.dtype("<i2" if num_senones <= np.iinfo(np.int16).max else "<i4")
        self.ids: list[str] = []
        self.offsets = [0]
        self.counts_S = np.zeros(num_senones, np.int64)
        self.counted = 0  # frames in the sums
        self.sum_F: np.ndarray | None = None

    def frames(
        self,
        feats: Mapping[str, np.ndarray],
        alignments: Mapping[str, np.ndarray],
        utterances: Sequence[str],
        skipped: dict[str, str],
        spool: IO[bytes],
    ) -> Iterator[bytes]:
        """Yield the frames of usable utterances; write their senones to `spool`, and reasons of others to `skipped`."""
        for utterance in progress(utterances, len(utterances), f"pack {self.path.name}"):
            usable = _usable(feats, alignments, utterance, self.dtype)
            if self.sum_F is not None and not isinstance(usable, str) and usable[0].shape[1] != len(self.sum_F):
                usable = f"{usable[0].shape[1]} feature bins, those before it have {len(self.sum_F)}"
            if isinstance(usable, str):
                skipped[utterance] = usable
                check_bad(skipped, len(utterances), str(self.path), "so far cannot be packed", _REMEDY)
                continue
            feats_TF, senones_T = usable
            self._count(utterance, feats_TF, senones_T)
            spool.write(senones_T.astype(self.senone_dtype).tobytes())
            yield feats_TF.tobytes()

    def _count(self, utterance: str, feats_TF: np.ndarray, senones_T: np.ndarray) -> None:
        if senones_T.min() < 0 or senones_T.max() >= self.num_senones:
            frame = int(np.argmax((senones_T < 0) | (senones_T >= self.num_senones)))
            raise MismatchError(
                f"{self.path}: utterance {utterance}, frame {frame}: senone {senones_T[frame]}, but there are "
                f"{self.num_senones}; pass the alignment that belongs to this model"
            )
        wide_TF = feats_TF.astype(np.float64)
        if self.sum_F is None:
            self.sum_F, self.square_F = np.zeros(wide_TF.shape[1]), np.zeros(wide_TF.shape[1])
            self.shift_F = wide_TF.mean(0)  # sums of squares about a point near the mean keep their precision
        repeated_T = repeated_frames(torch.from_numpy(wide_TF)).numpy()
        wide_TF = (wide_TF[~repeated_T] if repeated_T.any() else wide_TF) - self.shift_F
        self.counted += len(wide_TF)
        self.sum_F += wide_TF.sum(0)
        self.square_F += np.square(wide_TF).sum(0)
        self.counts_S += np.bincount(senones_T, minlength=self.num_senones)
        self.ids.append(utterance)
        self.offsets.append(self.offsets[-1] + len(feats_TF))

    def finish(self, writer: SectionWriter, info: dict[str, Any]) -> None:
        assert self.sum_F is not None  # not all utterances were skipped
        counted = max(self.counted, 1)
        offset_F = self.sum_F / counted
        variance_F = np.maximum(self.square_F / counted - offset_F**2, 0)
        writer.section("offsets", [np.array(self.offsets, "<i8").tobytes()])
        writer.section("counts", [self.counts_S.astype("<i8").tobytes()])
        writer.section("mean", [(self.shift_F + offset_F).astype("<f8").tobytes()])
        writer.section("variance", [variance_F.astype("<f8").tobytes()])
        writer.section("ids", ["\n".join(self.ids).encode("utf-8")])
        sizes = {"frames": self.offsets[-1], "utterances": len(self.ids), "dim": len(self.sum_F)}
        types = {"dtype": self.dtype.str, "senone_dtype": self.senone_dtype.str, "num_senones": self.num_senones}
        writer.close({**sizes, **types, "info": info})


@dataclass(frozen=True)
class Packed:
    """What was packed for training and held out, and the reason for each utterance left out."""

    train: PackReport
    heldout: PackReport
    skipped: dict[str, str]


def pack_aligned(
    data: DataDir, alignment: Path, hmm: Path, out: Path, config: FeatureConfig, *, heldout: float, seed: int, jobs: int
) -> Packed:
    """Write ``train.frames``, ``heldout.frames`` and ``features.yaml`` into `out`.

    `alignment`: directory with ``ali.ark``, a pdf for each frame.
    `hmm`: directory with ``hmm.json``, which holds the number of pdfs.
    `heldout`: share of the hours that is held out, drawn by speaker from `seed`.

    Raises Speech3Error: the alignment is of other utterances (none of `data`, or it lacks more than 5 % of them) or of
    another model; more than 5 % of the utterances cannot be used; the data cannot be split by speaker.
    """
    _check_given(alignment, hmm)
    files = ("train.frames", "heldout.frames", FEATURES_FILE)
    check_output(out, [], files, marks=files[:2], not_in=[A_MODEL])
    senones, num_pdfs = IntArkReader(alignment / "ali.ark"), read_json(hmm / HMM_FILE)["pdfs"]
    missing = _missing(data, senones, alignment / "ali.ark")
    if config.kind == "given":
        data = replace(data, recordings={})  # take lengths from the features, too: the audio may not be accessible
    data = data.subset(key for key in data.utterances if key not in missing)
    parts = split_by_speaker(data, {"heldout": heldout, "train": 1 - heldout}, seed)
    with explained_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".pack.") as scratch:
            try:
                skipped, reports = _pack_parts(data, parts, senones, num_pdfs, Path(scratch), config, jobs)
            except Speech3Error as error:
                raise error.restated(str(error).replace(scratch, str(out))) from error
            for name in files:
                (Path(scratch) / name).replace(out / name)
    return Packed(reports["train"], reports["heldout"], {**missing, **skipped})


def _pack_parts(
    data: DataDir,
    parts: Mapping[str, DataDir],
    senones: Mapping[str, np.ndarray],
    num_pdfs: int,
    out: Path,
    config: FeatureConfig,
    jobs: int,
) -> tuple[dict[str, str], dict[str, PackReport]]:
    skipped = extract(data, out / "feats", config.for_training, jobs).skipped
    feats, reports = ArkReader(out / "feats" / "feats.scp"), {}
    for name, part in parts.items():
        used = [key for key in part.utterances if key in feats]
        info = {"data": str(data.path)}
        reports[name] = write_frames(out / f"{name}.frames", feats, senones, num_pdfs, utterances=used, info=info)
        skipped |= reports[name].skipped
    shutil.copyfile(out / "feats" / FEATURES_FILE, out / FEATURES_FILE)
    return skipped, reports


def _check_given(alignment: Path, hmm: Path) -> None:
    if not (alignment / "ali.ark").exists():
        if list(alignment.glob("ali.*.gz")):
            raise FormatError(f"{alignment}: is a Kaldi alignment; import it with `speech3 import {alignment} OUT`")
        raise MissingError(f"{alignment / 'ali.ark'}: no such file; make one with speech3 import or speech3 align")
    if not (hmm / HMM_FILE).exists():
        raise MissingError(f"{hmm / 'hmm.json'}: no such file; pass --hmm the model with which {alignment} was aligned")


def _missing(data: DataDir, senones: Mapping[str, object], ark: Path) -> dict[str, str]:
    missing = {key: "no alignment" for key in data.utterances if key not in senones}
    if senones and len(missing) == len(data.utterances):
        raise MismatchError(
            f"{ark}: is an alignment of other utterances: {data.path} has {next(iter(data.utterances))} and so on, the"
            f" alignment has {next(iter(senones))}; pass the alignment of this data"
        )
    remedy = "pass the alignment of this data, or leave them out with `speech3 subset`"
    check_bad(missing, len(data.utterances), str(ark), f"of {data.path} are not aligned", remedy)
    return missing
