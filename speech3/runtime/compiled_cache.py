"""Where numba keeps compiled code: it must be able to write it, or nothing that is compiled can be imported.

numba keeps it beside the source, else in the user's cache directory. In containers neither may be writable: packages
are installed by root, and a user without an entry in ``passwd`` has no home.
"""

import os
import stat
from pathlib import Path

_VARIABLE = "NUMBA_CACHE_DIR"  # numba also passes it on to processes, which inherit the environment


def keep_compiled_code() -> None:
    """Let numba keep compiled code in a private temporary directory, if it can write neither of its own places."""
    if os.environ.get(_VARIABLE) or _beside_sources() or _in_home():
        return
    import tempfile

    try:
        place = Path(tempfile.gettempdir()) / f"speech3-compiled-{os.getuid()}"
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    except OSError:
        return  # numba's own error follows, which `explained_limit` explains
    # Compiled code of somebody else must not be run.
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        os.environ[_VARIABLE] = str(place)


def _beside_sources() -> bool:
    package = Path(__file__).parent.parent
    places = [path / "__pycache__" for path in (package, *package.iterdir()) if (path / "__init__.py").exists()]
    return all(_writable(place) for place in places)


def _in_home() -> bool:
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    except RuntimeError:  # a user who is not in passwd, without HOME
        return False
    return cache.is_absolute() and _writable(cache)


def _writable(place: Path) -> bool:
    """Whether the directory is writable, or can be made."""
    there = next(path for path in (place, *place.parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
