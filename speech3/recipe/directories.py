"""The directories that steps make: never a user's own files, and an earlier result stays until there is a new one."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from speech3.errors import Speech3Error

_FILES, _RECORD = "files", "record.json"  # of a result that was put aside


def check_places(
    out: Path, sources: Mapping[str, Path | str | None], models: Mapping[str, Path | str | int | None]
) -> None:
    """Refuse sources that hold `out`, and language models that the recipe itself writes there.

    Parameters
    ----------
    sources, models
        By the text that comes before the path in a message: ``--source ``, ``lm.arpa``. Numbers are not paths.

    Raises
    ------
    Speech3Error
        The message names the path.
    """
    for name, given in sources.items():
        if given and out.is_relative_to(Path(given).resolve()):
            raise Speech3Error(
                f"{out}: is inside {name}{Path(given).resolve()}, so every run would change its own input and start"
                " again; give an --out elsewhere"
            )
    for name, model in models.items():
        if isinstance(model, str | Path) and Path(model).resolve().is_relative_to(out / "lm"):
            raise Speech3Error(f"{name}={model}: is made by this recipe; copy it elsewhere, or choose another --out")


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
