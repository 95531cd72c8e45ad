"""The one exception that a user's mistake may raise, and the one rule for how many bad utterances are too many."""

from collections.abc import Mapping

MOST_BAD = 0.05  # of all utterances
_SHOWN = 10


class Speech3Error(Exception):
    """Something the user can mend: the message names the file, utterance or key at fault and what to do.

    The command line prints it as ``error: ...`` with exit status 1 and without a traceback.
    """


def check_bad(bad: Mapping[str, str], total: int, what: str, problem: str = "are bad", remedy: str = "") -> None:
    """Stop if too many of `total` utterances are bad, or there are none at all.

    Parameters
    ----------
    bad
        The reason for each bad utterance; the first few are shown.
    what, problem, remedy
        Make the message: ``what: 2 of 20 utterances problem, more than 5 %; remedy: ...``.

    Raises
    ------
    Speech3Error
    """
    if not total:
        raise Speech3Error(f"{what}: there was no utterance")
    if len(bad) <= MOST_BAD * total:
        return
    shown = [f"\n  {utterance}: {reason.removeprefix(f'{utterance}: ')}" for utterance, reason in bad.items()]
    more = f"\n  and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    raise Speech3Error(
        f"{what}: {len(bad)} of {total} utterances {problem}, more than {100 * MOST_BAD:g} %"
        f"{'; ' + remedy if remedy else ''}:{''.join(shown[:_SHOWN])}{more}"
    )
