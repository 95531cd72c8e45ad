"""The directories that steps make: never a user's own files, and an earlier result stays until there is a new one."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from speech3.errors import Speech3Error

_FILES, _RECORD = "files", "record.json"  # of a result that was put aside


def check_owned(owned: Mapping[str, Path]) -> None:
    """Refuse to replace files that no step has made; `owned`: the directories of steps that never ran, by their names.

    Raises
    ------
    Speech3Error
        One of them is there and not empty.
    """
    for name, directory in owned.items():
        if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
            raise Speech3Error(
                f"{directory}: exists, but was not made by a recipe, which would replace it ({name}); move it away, or"
                " choose another --out"
            )


def check_inputs(inputs: Sequence[Path], owned: Mapping[str, Path]) -> None:
    """Refuse inputs in directories that steps make anew; `owned`: these directories, by the names of their steps.

    Raises
    ------
    Speech3Error
        The message names both.
    """
    for path in inputs:
        for name, directory in owned.items():
            if path.resolve().is_relative_to(directory.resolve()):
                raise Speech3Error(
                    f"{path}: is in {directory}, which {name} makes anew; copy it elsewhere, or choose another --out"
                )


def put_aside(directory: Path, record: Path, aside: Path) -> None:
    """Move the result of a finished step, and the record that it is finished, to the directory `aside`."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    _move(directory, aside / _FILES)
    record.rename(aside / _RECORD)


def put_back(directory: Path, record: Path, aside: Path) -> bool:
    """Replace what a failed step has left by what was put aside; return whether there was anything."""
    if not (aside / _RECORD).exists():
        return False
    remove(directory, aside / "failed")
    _move(aside / _FILES, directory)
    (aside / _RECORD).rename(record)
    shutil.rmtree(aside, ignore_errors=True)
    return True


def remove(directory: Path, trash: Path) -> None:
    """Remove a directory, which is first renamed to `trash`: if killed, no part of it is left in its place."""
    for each in (trash, directory):
        if each.is_symlink():
            each.unlink()  # what it points to is not ours
    if trash.exists():
        shutil.rmtree(trash, ignore_errors=True)
    _move(directory, trash)
    shutil.rmtree(trash, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    if source.exists() or source.is_symlink():
        try:
            source.rename(target)
        except OSError:  # the place where a disk is mounted, say
            shutil.rmtree(source, ignore_errors=True)
