"""Where recordings and archives are: paths in a data directory, and commands that write audio.

Paths of audio (`wav.scp`) and archives (`feats.scp`) are relative to the data directory or to the working directory.
Lines of `wav.scp` that end in ``|`` are commands, handed to a shell, as in Kaldi: whoever reads a data directory runs
them. `SPEECH3_NO_COMMANDS` in the environment, or the option ``--no-commands``, refuses them; processes that are
started inherit the choice.
"""

import functools
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from speech3.errors import DataError
from speech3.runtime import say

# What systems and programs leave beside files: resource forks of macOS, pictures and settings of folders, locks of
# office programs; and copies that synchronisation makes of a file that was changed in two places (Dropbox, Nextcloud,
# Syncthing, Resilio), whose original is there, too.
_LEFT = re.compile(
    r"\._.*|\.DS_Store|\.localized|Icon\r|Thumbs\.db|ehthumbs\.db|desktop\.ini|~\$.*|\.~lock\..*|\.fuse_hidden.*|\.nfs.*"
    r"|\.directory|\.syncthing\..*|~syncthing~.*|.*\.(?:part|partial|crdownload|tmp|bak)|.*~",
    re.IGNORECASE | re.DOTALL,
)
_CONFLICT = re.compile(
    r".*(?:\([^)]*(?:conflicted copy|case conflict|sync conflict|conflict \d|konflikt stehende kopie|copie en conflit"
    r"|copia en conflicto)[^)]*\)|[._]sync-conflict-\d|_conflict-\d{8}|\.conflict(?:\.|$)).*",
    re.IGNORECASE | re.DOTALL,
)
_LEFT_FOLDERS = frozenset(
    [
        *("__macosx", ".appledouble", ".trashes", ".spotlight-v100", ".fseventsd", ".temporaryitems"),  # macOS
        *("@eadir", "$recycle.bin", "system volume information"),  # Synology, Windows
        *(".stfolder", ".stversions", ".dropbox.cache"),
    ]
)
VARIABLE = "SPEECH3_NO_COMMANDS"
_announced: set[Path] = set()
_WHY = f"--no-commands, or {VARIABLE} in the environment"


def pipe_directory(command: str, directory: Path) -> Path:
    """Where the command of a pipe runs: the data directory if it names a file there, else the working directory."""
    try:
        words = shlex.split(command.rstrip("| \t"))
    except ValueError:
        words = command.split()
    relative = (Path(word) for word in words if not word.startswith("/"))
    return directory if any((directory / word).is_file() for word in relative) else Path.cwd()


def resolve_path(value: str, directory: Path) -> Path:
    """Path of a file; a relative one is looked up in the data directory, then in the working directory."""
    inside = directory / value
    return inside if Path(value).is_absolute() or inside.exists() or not Path(value).exists() else Path(value)


def moved_value(value: str, old: Path, new: Path) -> str:
    """Rewrite a value in wav.scp of the directory `old` so that it is valid in the directory `new`."""
    if value.endswith("|"):
        here = pipe_directory(value, old)
        return value if here == Path.cwd() or old == new else f"cd {shlex.quote(os.path.abspath(old))} && {value}"  # noqa: PTH100
    path = resolve_path(value, old)
    again = resolve_path(value, new)
    same = again.exists() and path.exists() and again.samefile(path) and (new / value).exists()
    # abspath, not resolve: it keeps the name that the user gave if that is a link.
    return value if same else os.path.abspath(path)  # noqa: PTH100


def moved_rspecifier(value: str, old: Path, new: Path) -> str:
    """`moved_value` for a line of feats.scp or cmvn.scp: a pipe, or an archive with offset and range (``:12[0:9]``)."""
    parts = re.fullmatch(r"(.*?)((?::\d+)?(?:\[[^\]]*\])?)", value)
    assert parts  # both parts may be empty
    return moved_value(parts[1].rstrip(), old, new) + parts[2]


def entry_of_any_case(directory: Path, name: str) -> Path | None:
    """Path of `name` in a directory; None if absent. The case is ignored: copies of old CD-ROMs have upper or lower."""
    if (exact := directory / name).exists():
        return exact
    if not directory.is_dir():
        return None
    return next((path for path in directory.iterdir() if path.name.lower() == name.lower()), None)


def is_sync_conflict(path: Path) -> bool:
    """Whether synchronisation made this copy of another file because both had changed."""
    return bool(_CONFLICT.fullmatch(path.name))


def is_left_behind(path: Path) -> bool:
    """Whether a system, not a user, left this beside files, such as `._a.wav` (macOS) and `Thumbs.db`."""
    return bool(_LEFT.fullmatch(path.name)) or path.name.lower() in _LEFT_FOLDERS or is_sync_conflict(path)


def matching_paths(directory: Path, pattern: str) -> list[Path]:
    """Sorted paths that match a pattern of `Path.glob`, without what systems leave behind."""
    paths = (path for path in directory.glob(pattern) if not is_left_behind(path))
    return sorted(path for path in paths if not any(map(is_left_behind, path.relative_to(directory).parents)))


def files_below(directory: Path, *, conflicts: bool = False) -> Iterator[Path]:
    """All files below a directory, without what systems leave behind (`is_left_behind`).

    Linked directories are entered, too, but none twice, and none that contains it. `conflicts`: include copies that
    synchronisation made.
    """
    visited = set(directory.resolve().parents)
    for root, directories, names in os.walk(directory, followlinks=True):
        place = Path(root)
        if (real := place.resolve()) in visited:
            directories.clear()
            continue
        visited.add(real)
        directories[:] = [name for name in directories if name.lower() not in _LEFT_FOLDERS]
        directories.sort()  # of several names of a directory the same one is always taken
        paths = (place / name for name in sorted(names))
        wanted = (path for path in paths if not is_left_behind(path) or (conflicts and is_sync_conflict(path)))
        yield from (path for path in wanted if path.is_file())


def is_command(location: str) -> bool:
    return location.rstrip().endswith("|")


def refuse_commands() -> None:
    """Run no commands in this process and in those that it starts."""
    os.environ[VARIABLE] = "1"


def refused() -> bool:
    """Whether commands are refused: the variable is set, and neither empty nor 0."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def check(listed: Path, recordings: Mapping[str, str]) -> None:
    """Say, once for each `wav.scp`, how many recordings come from commands; if these are refused, raise an error."""
    commands = [location for location in recordings.values() if is_command(location)]
    if not commands:
        return
    some = f"{len(commands):,} of {len(recordings):,} recordings come from commands, such as: {commands[0]}"
    if refused():
        raise DataError(
            f"{listed}: {some}; commands are refused ({_WHY}): convert these recordings to files, or"
            " allow commands if you trust the directory"
        )
    if listed.absolute() not in _announced:
        _announced.add(listed.absolute())
        say(f"{listed}: {some}; they are run in a shell, unless you add --no-commands")


class CommandError(Exception):
    """A command that was refused, failed or wrote nothing: the problem and the remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy


def output_of(command: str, directory: Path) -> bytes:
    """What a command that ends in ``|`` writes; it runs in `directory`, with nothing on its standard input.

    Raises `CommandError` if it was refused, failed, or wrote nothing.
    """
    if refused():
        raise CommandError(
            f"is a command, and commands are refused ({_WHY})",
            "convert the recording to a file, or allow commands if you trust the directory",
        )
    done = subprocess.run(
        command.rstrip("| \t"), shell=True, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True
    )
    if done.returncode or not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        problem = f"the command ended with status {done.returncode}" if done.returncode else "the command wrote nothing"
        raise CommandError(
            f"{problem}{f' ({said[-1]})' if said else ''}", "run it in a shell and correct it in wav.scp"
        )
    return done.stdout


# The segments of one recording are mostly read one after another; the cache avoids running its command for each one.
cached_output_of = functools.lru_cache(maxsize=1)(output_of)
