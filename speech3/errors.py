"""The exceptions for a user's mistakes, lists in messages, the limit on the share of bad utterances, the platform.

A message has the form ``where: problem; remedy``. Its class says what kind of problem it is, for programs that react to
it, and for tests, which need not quote sentences. What reads a file raises one for a file that is missing, damaged or
of another format; docstrings name what else is raised.
"""

import sys
from collections.abc import Iterable, Mapping
from functools import cached_property

MOST_BAD = 0.05  # share of all utterances
MOST_UNALIGNED = 0.25  # the same where training goes on with those that can be aligned
_SHOWN = 10


class Speech3Error(Exception):
    """A problem that the user can fix: the message names the file, utterance or key at fault and what to do.

    The command line prints it as ``error: ...`` with exit status 1 and without a traceback.
    """

    @cached_property
    def remedy(self) -> str:
        """What to do, the end of the message; empty if it does not say."""
        return str(self).partition("; ")[2]

    def restated(self, message: str) -> "Speech3Error":
        """An error of the same kind with another message, for a caller that knows more about the place."""
        kind = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        assert issubclass(kind, Speech3Error)
        return kind(message)


class MissingError(Speech3Error):
    """A file, an utterance, a word or a name is not there."""


class FormatError(Speech3Error):
    """A file or stream is damaged, or is not of the format that it should have."""


class SettingError(Speech3Error):
    """A key, an option or an argument has a value that cannot be used, or excludes another one."""


class MismatchError(Speech3Error):
    """Two inputs do not belong together, such as features and a model trained on other features."""


class DataError(Speech3Error):
    """Recordings, transcripts or features are unusable, too few, or none."""


class OccupiedError(Speech3Error):
    """What would be written exists already, belongs to something else, or is in use by another run."""


class MachineError(Speech3Error):
    """This machine lacks memory, disk, GPUs, permissions or a package, or killed a process."""


class TrainingError(Speech3Error):
    """Training or an estimate failed: it diverged, or its statistics are singular."""


def check_platform() -> None:
    """Raise an error on Windows, which has neither the locks nor the signals that speech3 relies on."""
    if sys.platform == "win32":
        raise MachineError("speech3 runs on Linux and macOS; on Windows, install it in WSL (`wsl --install`)")


def listed(names: Iterable[str], most: int = _SHOWN) -> str:
    """The first names for a message, and how many more there are.

    >>> listed("abcde", 3)
    'a, b, c and 2 more'
    """
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def counted(number: int, what: str) -> str:
    """A number and its noun, in the plural unless the number is one."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def check_bad(
    bad: Mapping[str, str], total: int, what: str, problem: str = "are bad", remedy: str = "", most: float = MOST_BAD
) -> None:
    """Raise an error if too many of `total` utterances are bad, or if there are no utterances at all.

    Parameters
    ----------
    bad
        The reason for each bad utterance; the message shows the first few.
    what, problem, remedy
        Parts of the message: ``what: 2 of 20 utterances problem, more than 5 %; remedy: ...``.
    most
        The largest share that may be bad. With 1 an error is raised only if there are no utterances.
    """
    if not total:
        raise DataError(f"{what}: no utterances")
    if len(bad) <= most * total:
        return
    shown = [f"\n  {utterance}: {reason.removeprefix(f'{utterance}: ')}" for utterance, reason in bad.items()]
    if total == 1:
        raise DataError(f"{what}: {shown[0].strip()}{'; ' + remedy if remedy else ''}")
    more = f"\n  and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    raise DataError(
        f"{what}: {len(bad)} of {total} utterances {problem}, more than {100 * most:g} %"
        f"{'; ' + remedy if remedy else ''}:{''.join(shown[:_SHOWN])}{more}"
    )
