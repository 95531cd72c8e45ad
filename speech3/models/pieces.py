"""An utterance of any length goes through a recurrent model in pieces, its state carried from one to the next."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """Consecutive steps of an utterance; a step reads a frame, those after the last frame read it again.

    Attributes
    ----------
    start, stop
        Steps, with those that only look ahead.
    own
        How many of them, the first, are the piece's own: they have scores and change the state.
    begin, end
        Frames that the last of the own steps score; the others come before the delay is over.
    """

    start: int
    stop: int
    own: int
    begin: int
    end: int


def pieces(frames: int, *, delay: int, at_a_time: int, beyond: int) -> Iterator[Piece]:
    """All of an utterance.

    Parameters
    ----------
    delay
        Steps by which a frame's score comes later than the frame.
    at_a_time, beyond
        Steps of a piece, and those that it sees beyond them.
    """
    steps = frames + delay if frames else 0
    for start in range(0, steps, at_a_time):
        own = min(at_a_time, steps - start)
        begin, end = (max(0, step - delay) for step in (start, start + own))
        yield Piece(start, min(start + own + beyond, steps), own, begin, end)
