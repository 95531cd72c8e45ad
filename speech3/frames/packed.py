"""One file of frames, senones and utterances: written once, memory-mapped, checksummed block by block.

Layout (little endian): a head of 4,096 bytes (magic, version, where the footer is, the footer's checksum), then the
sections, each on a multiple of 64 bytes (frames, senones, utterance offsets, utterance ids, senone counts, mean,
variance), then one CRC-32 for each block of 1 MiB of the sections, then the footer: JSON with counts and the place
of each section. Opening reads head, footer and checksums only; `verify` reads everything.

Axes: N frames of all utterances, F feature bins, T frames of one utterance, U utterances, S senones.
"""

import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from speech3.errors import Speech3Error, check_bad
from speech3.io.atomic import atomic_path
from speech3.io.progress import progress, say

_MAGIC = b"SP3FRAME"
_VERSION = 1
_HEAD = struct.Struct("<8sIQQI")
_HEAD_BYTES = 4096
_ALIGN = 64
_BLOCK_BYTES = 1 << 20
_VERIFIED_AT_OPENING_BYTES = 16 << 20  # reading that much takes milliseconds
_MAX_LENGTH_DIFFERENCE = 2  # frames: front ends differ in how they treat the edges of a recording


@dataclass(frozen=True, eq=False)
class PackedFrames:
    """A packed file, open. Arrays are views into the memory map: nothing is read before it is looked at.

    Attributes
    ----------
    frames_NF
        float16 or float32.
    senones_N
        int16 or int32.
    offsets_U1
        int64, (U + 1,): utterance u has the frames from ``offsets[u]`` up to ``offsets[u + 1]``.
    counts_S
        int64, frames of each senone.
    mean_F, variance_F
        float64, over all frames.
    info
        What the writer was told to note.
    digest
        Eight hexadecimal digits that tell this corpus from another.
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
    _raw: np.ndarray
    _ids: tuple[int, int]
    _senones_at: int
    _checksums: np.ndarray

    def __len__(self) -> int:
        return self.frames_NF.shape[0]

    @property
    def dim(self) -> int:
        """Feature bins a frame."""
        return self.frames_NF.shape[1]

    @cached_property
    def utterances(self) -> tuple[str, ...]:
        """Utterance ids, in the order of the file."""
        start, size = self._ids
        return tuple(self._raw[start : start + size].tobytes().decode("utf-8").split("\n"))

    def verify(self) -> None:
        """Read the whole file and compare it with its checksums; look for senones beyond the count.

        Raises
        ------
        Speech3Error
            Names the file, the first block at fault and its bytes.
        """
        end = sum(self._ids)  # the ids are the last section that has checksums
        for block, expected in enumerate(self._checksums):
            start = _HEAD_BYTES + block * _BLOCK_BYTES
            stop = min(start + _BLOCK_BYTES, end)
            if zlib.crc32(self._raw[start:stop].data) != expected:
                raise Speech3Error(
                    f"{self.path}: block {block} of {len(self._checksums)} (bytes {start} to {stop - 1}) does not "
                    f"match its checksum: the file is damaged; pack it again"
                )
        step = _BLOCK_BYTES // self.senones_N.itemsize
        for start in range(0, len(self), step):
            part = self.senones_N[start : start + step]
            if part.min() < 0 or part.max() >= self.num_senones:
                frame = start + int(np.argmax((part < 0) | (part >= self.num_senones)))
                block = (self._senones_at + frame * part.itemsize - _HEAD_BYTES) // _BLOCK_BYTES
                raise Speech3Error(
                    f"{self.path}: block {block}: frame {frame} has senone {self.senones_N[frame]}, but there are "
                    f"{self.num_senones}; pack it again with the alignment of this model"
                )


@dataclass(frozen=True)
class PackReport:
    """What `pack` wrote and what it left out, with the reason."""

    utterances: int
    frames: int
    skipped: dict[str, str]


def open_packed(path: Path | str) -> PackedFrames:
    """Memory-map a packed file; small files are verified at once, large ones by `PackedFrames.verify`.

    Raises
    ------
    Speech3Error
        The file is missing, not a packed file, cut short or damaged.
    """
    path = Path(path)
    about, raw = _read_head(path)
    sections: dict[str, list[int]] = about["sections"]

    def section(name: str, dtype: str) -> np.ndarray:
        start, size = sections[name]
        return raw[start : start + size].view(dtype)

    checksums = section("checksums", "<u4")
    if zlib.crc32(checksums.tobytes()) != about["checksums_crc"]:
        raise Speech3Error(f"{path}: the table of checksums is damaged; pack it again")
    packed = PackedFrames(
        path=path, num_senones=about["num_senones"],
        frames_NF=section("frames", about["dtype"]).reshape(-1, about["dim"]),
        senones_N=section("senones", about["senone_dtype"]), offsets_U1=section("offsets", "<i8"),
        counts_S=section("counts", "<i8"), mean_F=section("mean", "<f8"), variance_F=section("variance", "<f8"),
        info=about["info"], digest=f"{about['checksums_crc']:08x}", _raw=raw,
        _ids=(sections["ids"][0], sections["ids"][1]), _senones_at=sections["senones"][0], _checksums=checksums,
    )  # fmt: skip
    if raw.size <= _VERIFIED_AT_OPENING_BYTES:
        packed.verify()
    return packed


def _read_head(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    if not path.is_file():
        raise Speech3Error(f"{path}: no such file; speech3 pack makes it, or a recipe's stage train")
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
        raise Speech3Error(f"{path}: not a file of packed frames")
    _, version, start, length, crc = _HEAD.unpack(head)
    if version != _VERSION:
        raise Speech3Error(f"{path}: format {version}, but this speech3 reads {_VERSION}; pack it again")
    if size < start + length:
        last = max(0, size - _HEAD_BYTES) // _BLOCK_BYTES
        raise Speech3Error(f"{path}: cut short in block {last}: {size} bytes of {start + length}; pack it again")
    raw = np.memmap(path, np.uint8, mode="r")
    footer = raw[start : start + length].tobytes()
    if zlib.crc32(footer) != crc:
        raise Speech3Error(f"{path}: the footer does not match its checksum: the file is damaged; pack it again")
    return json.loads(footer), raw


def pack(
    path: Path | str,
    feats: Mapping[str, np.ndarray],
    alignments: Mapping[str, np.ndarray],
    num_senones: int,
    *,
    utterances: Sequence[str],
    dtype: Literal["float16", "float32"] = "float32",
    info: dict[str, Any] | None = None,
) -> PackReport:
    """Write frames and their senones, in constant memory.

    Parameters
    ----------
    feats
        Utterance id to (T, F) float array; looked up one at a time.
    alignments
        Utterance id to (T,) int array of senones. A length that differs from the features' by up to two frames is
        cut to the shorter of both.
    num_senones
        S; every senone must be below.
    utterances
        What to write, in this order.

    Raises
    ------
    Speech3Error
        More than 5 % of the utterances are unusable (no alignment, no features, lengths that differ, values that are
        not finite, no frame), or all of them, or there are none; a senone is not below `num_senones`; feature
        dimensions differ.
    """
    path = Path(path)
    if not utterances:
        raise Speech3Error(f"{path}: no utterance to pack")
    skipped: dict[str, str] = {}
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        writer = _Writer(stream, np.dtype(dtype).newbyteorder("<"), num_senones)
        with tempfile.TemporaryFile(dir=path.parent) as spool:
            for utterance in progress(utterances, len(utterances), f"pack {path.name}"):
                usable = _usable(feats, alignments, utterance, writer.dtype)
                if isinstance(usable, str):
                    skipped[utterance] = usable
                else:
                    writer.add(path, utterance, *usable, spool)
            _refuse_too_many(path, skipped, len(utterances))
            writer.finish(spool, info or {})
    return PackReport(len(writer.ids), writer.offsets[-1], skipped)


def _usable(
    feats: Mapping[str, np.ndarray], alignments: Mapping[str, np.ndarray], utterance: str, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray] | str:
    """Features (T, F) and senones (T,) of one utterance, or why there are none."""
    if utterance not in alignments:
        return "no alignment"
    if utterance not in feats:
        return "no features"
    try:
        feats_TF = np.asarray(feats[utterance])
    except Speech3Error as error:
        return str(error)
    senones_T = np.asarray(alignments[utterance])
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


def _refuse_too_many(path: Path, skipped: dict[str, str], total: int) -> None:
    remedy = "align or extract them again, or take them out of the data directory"
    check_bad(skipped, total, str(path), "cannot be packed", remedy)
    for utterance, reason in skipped.items():
        say(f"skipped {utterance}: {reason}")
    if skipped:
        say(f"{path.name}: {len(skipped)} of {total} utterances skipped")


class _Writer:
    """Writes sections one behind the other, checksumming blocks as they fill, and gathers the statistics."""

    def __init__(self, stream: IO[bytes], dtype: np.dtype, num_senones: int) -> None:
        self.stream, self.dtype, self.num_senones = stream, dtype, num_senones
        self.senone_dtype = np.dtype("<i2" if num_senones <= np.iinfo(np.int16).max else "<i4")
        self.ids: list[str] = []
        self.offsets = [0]
        self.counts_S = np.zeros(num_senones, np.int64)
        self.sum_F: np.ndarray | None = None
        self.sections: dict[str, tuple[int, int]] = {}
        self.position, self.crc = _HEAD_BYTES, 0
        self.checksums: list[int] = []
        stream.write(bytes(_HEAD_BYTES))

    def add(self, path: Path, utterance: str, feats_TF: np.ndarray, senones_T: np.ndarray, spool: IO[bytes]) -> None:
        """Append one utterance; its senones wait in `spool` until the frames are complete."""
        if senones_T.min() < 0 or senones_T.max() >= self.num_senones:
            frame = int(np.argmax((senones_T < 0) | (senones_T >= self.num_senones)))
            raise Speech3Error(
                f"{path}: utterance {utterance}, frame {frame}: senone {senones_T[frame]}, but there are "
                f"{self.num_senones}; the alignment is another model's"
            )
        wide_TF = feats_TF.astype(np.float64)
        if self.sum_F is None:
            self.sum_F, self.square_F = np.zeros(wide_TF.shape[1]), np.zeros(wide_TF.shape[1])
            self.shift_F = wide_TF.mean(0)  # sums of squares about a point near the mean keep their digits
        if wide_TF.shape[1] != len(self.sum_F):
            raise Speech3Error(
                f"{path}: utterance {utterance} has {wide_TF.shape[1]} feature bins, those before it {len(self.sum_F)}"
            )
        wide_TF -= self.shift_F
        self.sum_F += wide_TF.sum(0)
        self.square_F += np.square(wide_TF).sum(0)
        self.counts_S += np.bincount(senones_T, minlength=self.num_senones)
        self.ids.append(utterance)
        self.offsets.append(self.offsets[-1] + len(feats_TF))
        self._write(feats_TF.tobytes())
        spool.write(senones_T.astype(self.senone_dtype).tobytes())

    def finish(self, spool: IO[bytes], info: dict[str, Any]) -> None:
        """Write what follows the frames, then the head."""
        assert self.sum_F is not None  # _refuse_too_many has seen to it
        frames = self.offsets[-1]
        self.sections["frames"] = (_HEAD_BYTES, self.position - _HEAD_BYTES)
        spool.seek(0)
        self._section("senones", iter(lambda: spool.read(_BLOCK_BYTES), b""))
        self._section("offsets", [np.array(self.offsets, "<i8").tobytes()])
        self._section("counts", [self.counts_S.astype("<i8").tobytes()])
        offset_F = self.sum_F / frames
        self._section("mean", [(self.shift_F + offset_F).astype("<f8").tobytes()])
        self._section("variance", [np.maximum(self.square_F / frames - offset_F**2, 0).astype("<f8").tobytes()])
        self._section("ids", ["\n".join(self.ids).encode("utf-8")])
        if (self.position - _HEAD_BYTES) % _BLOCK_BYTES:
            self.checksums.append(self.crc)
        table = np.array(self.checksums, "<u4").tobytes()
        start = self.position + -self.position % _ALIGN
        self.stream.write(bytes(start - self.position) + table)
        self.sections["checksums"] = (start, len(table))
        footer = json.dumps({
            "frames": frames, "utterances": len(self.ids), "dim": len(self.sum_F), "dtype": self.dtype.str,
            "senone_dtype": self.senone_dtype.str, "num_senones": self.num_senones, "sections": self.sections,
            "checksums_crc": zlib.crc32(table), "info": info,
        }).encode("utf-8")  # fmt: skip
        self.stream.write(footer)
        self.stream.seek(0)
        self.stream.write(_HEAD.pack(_MAGIC, _VERSION, start + len(table), len(footer), zlib.crc32(footer)))
        self.stream.flush()
        os.fsync(self.stream.fileno())

    def _section(self, name: str, parts: Sequence[bytes] | Iterator[bytes]) -> None:
        self._write(bytes(-self.position % _ALIGN))
        start = self.position
        for part in parts:
            self._write(part)
        self.sections[name] = (start, self.position - start)

    def _write(self, data: bytes) -> None:
        self.stream.write(data)
        view = memoryview(data)
        while view:
            room = _BLOCK_BYTES - (self.position - _HEAD_BYTES) % _BLOCK_BYTES
            self.crc = zlib.crc32(view[:room], self.crc)
            self.position += len(view[:room])
            if (self.position - _HEAD_BYTES) % _BLOCK_BYTES == 0:
                self.checksums.append(self.crc)
                self.crc = 0
            view = view[room:]
