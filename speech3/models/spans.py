"""Division of an utterance into the spans that a recurrent model scores one by one, carrying its state along."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Consecutive steps of an utterance, each with the frames of an output; steps after the last repeat its last frame.

    Attributes
    ----------
    start, stop
        Steps, including those that serve only as lookahead.
    own
        How many of the first steps are the span's own: they have scores and change the state.
    begin, end
        Outputs whose scores the last of the own steps give; own steps before those fall within the initial delay.
    """

    start: int
    stop: int
    own: int
    begin: int
    end: int


def spans(outputs: int, *, delay: int, at_a_time: int, beyond: int) -> Iterator[Span]:
    """Yield the spans of an utterance.

    Parameters
    ----------
    delay
        Steps by which the scores of an output come later than its frames.
    at_a_time, beyond
        Number of own steps of a span, and of lookahead steps after them.
    """
    steps = outputs + delay if outputs else 0
    for start in range(0, steps, at_a_time):
        own = min(at_a_time, steps - start)
        begin, end = (max(0, step - delay) for step in (start, start + own))
        yield Span(start, min(start + own + beyond, steps), own, begin, end)
