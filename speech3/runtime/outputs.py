"""The one check of all verbs that an output replaces neither an input nor files of another kind."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from speech3.errors import OccupiedError


def check_output(
    out: Path,
    inputs: Iterable[Path | None] = (),
    written: Sequence[str] = (),
    *,
    marks: Collection[str] = (),
    not_in: Iterable[tuple[str, Sequence[str]]] = (),
    kind: tuple[str, Callable[[Path], bool]] | None = None,
    option: str = "",
) -> None:
    """Refuse an output that would replace an input, or files that belong to something else; nothing is written.

    Parameters
    ----------
    out
        The file that will be written, or with `written` the directory.
    inputs
        Files and directories that are read and must stay as they are; None, and files that do not exist, are skipped.
    written
        The files and directories that will be written, or removed, in `out`; patterns such as ``*.json`` are expanded.
    marks
        Names in `out`, of which any earlier output has at least one: without them, files that exist are the user's.
    not_in
        What `out` may not hold, and the files by which that is known, such as `speech3.io.A_MODEL`.
    kind
        What the file is, such as ``an ARPA file``, and whether a file is one: another file is not replaced.
    option
        What comes before the path in messages, such as ``--out ``.
    """
    given = [path for path in inputs if path is not None]
    if any(_same(out, path) for path in given):
        raise OccupiedError(f"{option}{out}: is one of the inputs; choose another place")
    if not written:
        if out.exists() and not out.is_file():  # a device would be replaced by a file, too
            what = "is a directory" if out.is_dir() else "is not an ordinary file"
            raise OccupiedError(f"{option}{out}: {what}; pass the name of a file")
        if kind and out.exists() and out.stat().st_size and not kind[1](out):
            raise OccupiedError(f"{option}{out}: exists and is not {kind[0]}; move it away, or choose another name")
        return
    if out.exists() and not out.is_dir():
        raise OccupiedError(f"{option}{out}: is a file; expected a directory: choose another name")
    for what, files in not_in:
        if any((out / name).exists() for name in files):
            raise OccupiedError(f"{option}{out}: holds {what}; choose another directory")
    places = [place for name in written for place in sorted(out.glob(name))]
    for place in places:
        if any(_same(place, path) or _inside(path, place) for path in given):
            raise OccupiedError(
                f"{option}{place}: is one of the inputs, or holds one, and would be replaced; choose another directory"
            )
    if places and marks and not any((out / mark).exists() for mark in marks):
        raise OccupiedError(
            f"{option}{places[0]}: exists, and is not from an earlier run of this command; move it away, or choose"
            " another directory"
        )


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)  # also by links, and in another letter case where that does not matter
    except OSError:  # one of them does not exist
        return False


def _inside(path: Path, directory: Path) -> bool:
    return path.exists() and any(_same(parent, directory) for parent in path.resolve().parents)
