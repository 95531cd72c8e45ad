"""Recordings that come from commands: lines of `wav.scp` that end in ``|`` are handed to a shell, as in Kaldi.

Whoever reads a data directory runs the commands in it. `SPEECH3_NO_COMMANDS` in the environment, or the option
``--no-commands``, refuses them; processes that are started inherit the choice.
"""

import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from speech3.errors import Speech3Error
from speech3.io.progress import say

VARIABLE = "SPEECH3_NO_COMMANDS"
_announced: set[Path] = set()


def is_command(location: str) -> bool:
    """Is a value of `wav.scp` a command, and not a path?"""
    return location.rstrip().endswith("|")


def refuse() -> None:
    """Run no commands in this process and in those that it starts."""
    os.environ[VARIABLE] = "1"


def refused() -> bool:
    """Whether commands are refused: the variable is set, and neither empty nor 0."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def check(listed: Path, recordings: Mapping[str, str]) -> None:
    """Say, once for each `wav.scp`, how many recordings come from commands, and show one.

    Raises
    ------
    Speech3Error
        There are some, and they are refused.
    """
    commands = [location for location in recordings.values() if is_command(location)]
    if not commands:
        return
    some = f"{len(commands):,} of {len(recordings):,} recordings come from commands, such as: {commands[0]}"
    if refused():
        raise Speech3Error(
            f"{listed}: {some}; commands are refused ({_WHY}): convert these recordings to files, or"
            " allow commands if you trust the directory"
        )
    if listed.absolute() not in _announced:
        _announced.add(listed.absolute())
        say(f"{listed}: {some}; they are run in a shell, unless you give --no-commands")


_WHY = f"--no-commands, or {VARIABLE} in the environment"


class CommandError(Exception):
    """A command that was refused, failed or wrote nothing: the problem and the remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy


def output_of(command: str, directory: Path) -> bytes:
    """What a command that ends in ``|`` writes; it runs in `directory`, with nothing on its standard input.

    Raises
    ------
    CommandError
        It was refused, failed, or wrote nothing.
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
