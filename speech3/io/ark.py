"""Kaldi archives: matrices of features and integer vectors of alignments, through the kaldi-io library."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from speech3.errors import Speech3Error
from speech3.io.atomic import atomic_path, write_text


def _import_kaldi_io():  # type: ignore[no-untyped-def]
    # kaldi_io warns about a missing KALDI_ROOT and puts a shell's guess of Kaldi's programs on PATH as it is imported.
    saved = {name: os.environ.get(name) for name in ("KALDI_ROOT", "PATH")}
    os.environ.setdefault("KALDI_ROOT", "/")
    try:
        import kaldi_io
    finally:
        for name, value in saved.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    return kaldi_io


_kaldi_io = _import_kaldi_io()


def write_ark(ark: Path | str, items: Iterable[tuple[str, np.ndarray]], scp: Path | str | None = None) -> int:
    """Write ``(utterance, array)`` pairs as a binary archive and, if asked, its index; return their number.

    Parameters
    ----------
    items
        float32 or float64 matrices (T, F), or int32 vectors (T,).
    scp
        Gets ``utterance /absolute/path.ark:offset`` lines, sorted, whatever the order of `items`.

    Both files appear only once everything was written.
    """
    index: list[str] = []
    with atomic_path(ark) as temporary, temporary.open("wb") as stream:
        for utterance, array in items:
            stream.write(utterance.encode("utf-8") + b" ")
            index.append(f"{utterance} {Path(ark).resolve()}:{stream.tell()}\n")
            if array.ndim == 2:
                _kaldi_io.write_mat(stream, np.ascontiguousarray(array))
            else:
                _kaldi_io.write_vec_int(stream, np.ascontiguousarray(array, dtype=np.int32))
    if scp is not None:
        write_text(scp, "".join(sorted(index)))
    return len(index)


def read_scp(path: Path | str) -> dict[str, str]:
    """Read ``key value`` lines (values may hold spaces); duplicates and empty values are errors."""
    entries: dict[str, str] = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise Speech3Error(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise Speech3Error(f"{path}: not UTF-8 text ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        key, *rest = line.split(maxsplit=1)
        if not rest:
            raise Speech3Error(f"{path}:{number}: {key} has no value")
        if key in entries:
            raise Speech3Error(f"{path}:{number}: {key} stands here a second time")
        entries[key] = rest[0].strip()
    return entries


def _seek(location: str) -> tuple[str, int]:
    path, _, offset = location.rpartition(":")
    return (path, int(offset)) if path and offset.isdigit() else (location, 0)


def _open(location: str, directory: Path) -> IO[bytes]:
    name, offset = _seek(location)
    path = Path(name)
    if not path.is_absolute() and not path.exists():
        path = directory / path
    stream = path.open("rb")
    stream.seek(offset)
    return stream


class ArkReader(Mapping[str, np.ndarray]):
    """The matrices of a ``feats.scp``, read when asked for; the object is small and can be pickled."""

    def __init__(self, scp: Path | str) -> None:
        self.path = Path(scp)
        self._entries = read_scp(scp)

    def __getitem__(self, utterance: str) -> np.ndarray:
        """Matrix (T, F) float32 of one utterance; KeyError if the scp lacks it."""
        location = self._entries[utterance]
        if location.endswith("|"):
            raise Speech3Error(f"{self.path}: {utterance}: features through a pipe are not read; write them to an ark")
        try:
            with _open(location, self.path.parent) as stream:
                return np.array(_kaldi_io.read_mat(stream), dtype=np.float32)
        except OSError as error:
            raise Speech3Error(f"{self.path}: {utterance}: {location}: {error.strerror}") from error
        except Exception as error:
            raise Speech3Error(
                f"{self.path}: {utterance}: {location} is cut short or no Kaldi matrix; extract it again"
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def read_int_ark(ark: Path | str) -> dict[str, np.ndarray]:
    """Read all int32 vectors of an archive, such as an ``ali.ark`` (gzipped if the name ends in .gz)."""
    vectors = {}
    try:
        with contextlib.closing(_kaldi_io.open_or_fd(str(ark))) as stream:
            while key := _key(stream):
                start = stream.tell()
                vectors[key] = np.array(_kaldi_io.read_vec_int(stream), dtype=np.int32)
                if stream.tell() == start:  # kaldi_io takes the end of the file for an empty vector
                    raise EOFError(key)
    except OSError as error:
        raise Speech3Error(f"{ark}: {error.strerror or f'{error}; make it again'}") from error
    except Exception as error:
        raise Speech3Error(f"{ark}: cut short or no archive of integer vectors; make it again") from error
    return vectors


def _key(stream: IO[bytes]) -> str:
    letters = bytearray()
    while (byte := stream.read(1)) not in (b"", b" "):
        letters += byte
    return letters.strip().decode("utf-8")
