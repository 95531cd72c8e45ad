"""Whether the files that a step reads from outside are those that it read before.

Names, sizes and times tell at once that nothing has changed. Where they differ, the content decides: a corpus that was
copied again, unpacked again or mounted elsewhere by the same name has other times and the same bytes.
"""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from speech3.data import files_below
from speech3.runtime import progress

_READERS = 8  # threads; disks of networks answer slowly


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stamp_of(path: Path) -> list[Any]:
    """Size and modification time of a file; names, sizes and times of all files below a directory."""
    if path.is_dir():
        return [[str(p.relative_to(path)), *stamp_of(p)] for p in sorted(files_below(path))]
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


@lru_cache
def content_of(path: Path, stamp: str) -> str:
    """A digest of the names and the content of a file or of all files below a directory; of no times.

    `stamp`: digest of `stamp_of`; as long as it is the same, the files are not read again.
    """
    files = sorted(files_below(path)) if path.is_dir() else [path]
    names = [os.path.relpath(file, path) for file in files]
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(progress(pool.map(_content, files), len(files), f"comparing the files of {path}"))
    return digest_of(json.dumps([names, found]))


def _content(path: Path) -> list[Any]:
    """Size and digest of a file; the digest is empty if it cannot be read, as the step that needs it will say."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "blake2b").hexdigest()
            return [os.fstat(file.fileno()).st_size, digest]
    except OSError:
        return [-1, ""]
