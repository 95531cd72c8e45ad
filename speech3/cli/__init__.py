"""The `speech3` program: one file for each group of verbs. `main` reports a user's mistake in one line."""

import errno
import keyword
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from speech3 import __version__
from speech3.cli._verb import HELP_NAMES, Group, Quiet, Verb, quietable, with_flag
from speech3.errors import MachineError, Speech3Error, check_platform
from speech3.runtime import ONE_THREAD, allow_open_files, explained_limit, restart_in_utf8, suit_terminals

INTERRUPTED = 130  # exit status after Ctrl-C, as in shells
# Of the system, not of a verb: no permission, a disk that is read-only, fails or is gone.
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE}
# The groups of `speech3 --help`, in this order, with the modules that define their verbs: a function of the verb's name
# or, for a group of verbs such as `speech3 lm train`, `lm_verbs`.
_GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "Data": {
        "data": ("validate", "fix", "stats", "subset", "combine", "split", "speakers", "augment", "extract"),
    },
    "Train": {"train": ("recipe", "pack", "train", "pretrain", "simulate"), "language": ("lm", "g2p")},
    "Recognise and align": {
        "recognise": ("transcribe", "decode", "rescore", "graph", "align", "tune", "forward", "export")
    },
    "Measure": {"measure": ("score", "boundaries")},
    "Kaldi": {"kaldi": ("import", "export-kaldi")},
    "Inspect": {"inspect": ("doctor", "inspect", "model-info", "watch", "compare")},
}

_REPEAT_S = 0.05  # after which a lost Ctrl-C is raised again
_lost_interrupt = threading.Event()
# Verbs that read data directories, whose wav.scp may have commands.
_READ_DATA = {*_GROUPS["Data"]["data"], "recipe", "pack", "pretrain", "decode", "align", "tune", "forward", "inspect"}


def _refuse_commands(refused: bool) -> None:
    if refused:
        from speech3.data import refuse_commands

        refuse_commands()


_NO_COMMANDS = Annotated[
    bool,
    typer.Option(
        "--no-commands",
        callback=_refuse_commands,
        help="Refuse recordings that come from commands (lines of wav.scp that end in |).",
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"speech3 {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="speech3",
    cls=Group,
    context_settings=HELP_NAMES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="From recordings and transcripts to a hybrid NN-HMM recogniser and its word error rate.",
)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    pass


def _register() -> None:
    if app.registered_commands:
        return
    import importlib

    for group, modules in _GROUPS.items():
        for module, verbs in modules.items():
            defined = importlib.import_module(f"{__name__}.{module}")
            for verb in verbs:
                if verbs_of := getattr(defined, f"{verb}_verbs", None):
                    for each in verbs_of.registered_commands:
                        each.callback, each.cls = quietable(each.callback), Verb
                    app.add_typer(verbs_of, name=verb, rich_help_panel=group, cls=Group)
                    continue
                name = verb.replace("-", "_")
                function = getattr(defined, f"{name}_" if keyword.iskeyword(name) else name)
                if verb in _READ_DATA:
                    function = with_flag(function, "no_commands", _NO_COMMANDS)
                app.command(verb, rich_help_panel=group, cls=Verb)(quietable(function))


def main() -> None:
    """Run one verb; the entry point of the `speech3` program."""
    # One thread by default, so that results do not depend on the number of cores (training.threads overrides it).
    # Several threads that spin while they wait for work are ten times slower on a busy machine than a single thread.
    for name in ONE_THREAD:
        os.environ.setdefault(name, "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    restart_in_utf8()
    suit_terminals()
    try:
        _check_place()
        check_platform()
        allow_open_files()
        signal.signal(signal.SIGTERM, _terminated)
        sys.unraisablehook = _unraisable
        _register()
        app()
    except Speech3Error as error:
        _fail(error)
    except BrokenPipeError:
        sys.exit(1)
    except NotADirectoryError as error:
        found = next((path for path in Path(error.filename or "").parents if path.is_file()), error.filename)
        _fail(f"{found}: is a file; expected a directory")
    except (OSError, RuntimeError, MemoryError) as error:
        if _lost_interrupt.is_set():  # numba fails where its callback was interrupted
            _interrupted()
            sys.exit(INTERRUPTED)
        if found := explained_limit(error):
            _fail(found)
        if not isinstance(error, OSError):
            raise
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            _fail(f"{error.filename}: {error.strerror}; choose another path")
        if error.filename and error.errno in _REFUSED:
            _fail(f"{error.filename}: {error.strerror}; check its disk and permissions")
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        _fail(f"{error}; free some space and run the same command again")
    except KeyboardInterrupt:
        _interrupted()
        sys.exit(INTERRUPTED)
    except (ImportError, SystemError) as error:
        # How Ctrl-C arrives during the import of a C++ module, and in code that numba compiled.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        _interrupted()
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer turns a KeyboardInterrupt inside a verb into this
            _interrupted()
        raise


def _fail(message: object) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def _check_place() -> None:
    """Refuse to work in a directory that was removed: libraries that look for it end with messages of their own."""
    try:
        os.getcwd()  # noqa: PTH109
    except OSError as error:
        raise MachineError(
            f"{os.environ.get('PWD', '.')}: this directory was removed or cannot be read ({error.strerror}); change to"
            " another one"
        ) from error


def _terminated(number: int, frame: FrameType | None) -> None:
    # Batch systems and `timeout` send SIGTERM first: treat it as Ctrl-C, even where Ctrl-C itself is ignored (as in a
    # background job), so that there is time to save finished work.
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(number, frame)


def _unraisable(unraisable: Any) -> None:
    """Raise Ctrl-C again where it was lost: in a callback from C, as those of numba's compiler, nobody can catch it."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    _lost_interrupt.set()
    again = threading.Timer(_REPEAT_S, os.kill, (os.getpid(), signal.SIGTERM))  # SIGINT may be ignored
    again.daemon = True
    again.start()


def _interrupted() -> None:
    # Objects that Ctrl-C left half made may fail when they are deleted (llvmlite's do), which Python would print.
    sys.unraisablehook = lambda _: None
    print("interrupted; finished work is kept: run the same command again to resume", file=sys.stderr)
