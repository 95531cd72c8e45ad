"""Paths of audio (`wav.scp`) and archives (`feats.scp`), relative to the data directory or to the working directory.

Also: names in a directory whatever their case, and all files below it.
"""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path


def pipe_directory(command: str, directory: Path) -> Path:
    """Where the command of a pipe runs: the data directory if it names a file there, else the working directory."""
    try:
        words = shlex.split(command.rstrip("| \t"))
    except ValueError:
        words = command.split()
    relative = (Path(word) for word in words if not word.startswith("/"))
    return directory if any((directory / word).is_file() for word in relative) else Path.cwd()


def resolve(value: str, directory: Path) -> Path:
    """Path of a file; a relative one is looked up in the data directory, then in the working directory."""
    inside = directory / value
    return inside if Path(value).is_absolute() or inside.exists() or not Path(value).exists() else Path(value)


def moved(value: str, old: Path, new: Path) -> str:
    """Rewrite a value in wav.scp of the directory `old` so that it is valid in the directory `new`."""
    if value.endswith("|"):
        here = pipe_directory(value, old)
        return value if here == Path.cwd() or old == new else f"cd {shlex.quote(os.path.abspath(old))} && {value}"  # noqa: PTH100
    path = resolve(value, old)
    again = resolve(value, new)
    same = again.exists() and path.exists() and again.samefile(path) and (new / value).exists()
    # abspath, not resolve: it keeps the name that the user gave if that is a link.
    return value if same else os.path.abspath(path)  # noqa: PTH100


def moved_rspecifier(value: str, old: Path, new: Path) -> str:
    """`moved` for a line of feats.scp or cmvn.scp: a pipe or an archive, with offset and range (``:123[0:9]``)."""
    parts = re.fullmatch(r"(.*?)((?::\d+)?(?:\[[^\]]*\])?)", value)
    assert parts  # both parts may be empty
    return moved(parts[1].rstrip(), old, new) + parts[2]


def entry(directory: Path, name: str) -> Path | None:
    """Path of `name` in a directory; None if absent. The case is ignored: copies of old CD-ROMs have upper or lower."""
    if (exact := directory / name).exists():
        return exact
    if not directory.is_dir():
        return None
    return next((path for path in directory.iterdir() if path.name.lower() == name.lower()), None)


def files_below(directory: Path) -> Iterator[Path]:
    """All files below a directory; linked directories are entered, too, but none twice, and none that contains it."""
    visited = set(directory.resolve().parents)
    for root, directories, names in os.walk(directory, followlinks=True):
        place = Path(root)
        if (real := place.resolve()) in visited:
            directories.clear()
            continue
        visited.add(real)
        directories.sort()  # of several names of a directory the same one is always taken
        yield from (path for name in sorted(names) if (path := place / name).is_file())
