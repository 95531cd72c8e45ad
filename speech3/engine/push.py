"""What a shard brings to a partition of the server, and takes from it.

A shard has one push for each partition, over that stretch of its copy of the parameters: what it computed since it last
brought something there. Minibatches are the shard's, and each is counted once, by the partition that takes it first.

A push may be brought more or less often than the newest parameters are taken (`n_push` and `n_fetch` of Downpour SGD,
Dean et al. 2012). Where they are not taken, the shard's own copy, which has the push already, goes on; where they are
taken alone, what is not yet brought stays with the shard, as the paper's "accrued gradients" do. We depart from the
paper in two ways: a push has the learning rate in it, that of the shard's own steps; and nothing is sent in the
background, but a partition that is busy is left out, and gets the push, with what was computed since, in a later round.

Axes: K values of a stretch, P of them parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from speech3.engine.flat import Flat, wait_for_gpus
from speech3.engine.gradient import Step
from speech3.engine.rule import Own
from speech3.engine.wire import Wire


@dataclass(slots=True)
class Minibatch:
    """One that is computed and in no published version.

    Attributes
    ----------
    partitions, open
        To how many it is brought, and how many of them have not refused it.
    """

    step: Step
    partitions: int
    open: int = field(init=False)

    def __post_init__(self) -> None:
        self.open = self.partitions


@dataclass(eq=False)
class Hand:
    """What a shard has in hand, whatever the partition: all its pushes share it.

    Attributes
    ----------
    minibatches
        By number.
    staleness
        The largest, over the partitions that took a push in this round of visits; -1: none did.
    missed
        How often a partition refused a minibatch of which not all did: where it was used, its steps lack that stretch.
    """

    minibatches: dict[int, Minibatch] = field(default_factory=dict)
    staleness: int = -1
    missed: int = 0

    def counted(self, numbers: Sequence[int]) -> list[Step]:
        """Of these minibatches that a partition publishes, what no other has counted."""
        return [self.minibatches.pop(number).step for number in numbers if number in self.minibatches]

    def refused(self, numbers: Sequence[int]) -> list[int]:
        """A partition does not take these; returns those that none takes."""
        self.missed += len(numbers)
        for number in numbers:
            if number in self.minibatches:
                self.minibatches[number].open -= 1
        dropped = [number for number in numbers if number in self.minibatches and not self.minibatches[number].open]
        self.missed -= sum(self.minibatches.pop(number).partitions for number in dropped)
        return dropped


@dataclass(eq=False)
class Push:
    """What is brought to one partition.

    Attributes
    ----------
    own
        The stretch of the shard's copy.
    fetched_P
        With local updates, the parameters as fetched: the push is fetched minus own. After a push without a fetch they
        are those of that moment, after a fetch without a push what was not brought is added: so it holds then, too.
    push_P
        Without, the learning rate times the sum of the gradients.
    version
        Of the partition when the newest was taken last, and one more for each push that was brought since without
        taking it: what others published since then is the staleness of the push.
    numbers
        Minibatches in it.
    distance
        Minibatches since the last fetch.
    finite
        False once a loss was not.
    brings, takes
        Is the push due, and are the newest parameters?
    wire
        By which it is sent.
    """

    own: Flat
    fetched_P: Tensor | None
    push_P: Tensor | None
    hand: Hand = field(default_factory=Hand)
    wire: Wire = field(default_factory=Wire)
    version: int = -1
    numbers: list[int] = field(default_factory=list)
    distance: int = 0
    rate: float = 0.0
    finite: bool = True
    brings: bool = True
    takes: bool = True

    def begin(self) -> None:
        """Nothing computed yet, and nothing known of what passed the wire."""
        self.version, self.distance, self.finite, self.numbers = -1, 0, True, []
        self.brings = self.takes = True
        self.wire.begin()

    def as_own(self) -> Own:
        """As the rule sees it, once it is sent. Where the newest is not taken, the rule leaves it in a copy."""
        own = Own(self.own.parameters_P, self.fetched_P, self.push_P)
        if not self.takes:
            own = Own(self.own.parameters_P.clone(), None, own.push())
        return self.wire.send(own, self.own.buffers)

    @torch.no_grad()
    def brought(self) -> None:
        """It was published, and the newest is not taken: the shard goes on from where it is."""
        self.version += 1
        self.wire.settle(used=True)
        if self.fetched_P is not None:
            self.fetched_P.copy_(self.own.parameters_P)
        if self.push_P is not None:
            self.push_P.zero_()

    @torch.no_grad()
    def take(self, version: int, newest_K: Tensor | None, *, used: bool) -> None:
        """Go on from the newest; none: the step has left it in `own`. What was not brought stays in the push."""
        self.wire.settle(used=used)
        whole = newest_K is None and self.wire.plain  # then the rule has done all of it, in its one pass
        # With local updates, what was not brought: steps that the newest, once it is in their place, knows nothing of.
        kept_P = self.fetched_P - self.own.parameters_P if self.fetched_P is not None and self.numbers else None
        if newest_K is not None:
            self.own.vector_K.copy_(newest_K)
            wait_for_gpus(self.own.vector_K, newest_K)
        self.wire.receive(self.own)
        if self.fetched_P is not None and not whole:
            self.fetched_P.copy_(self.own.parameters_P)
        if self.fetched_P is not None and kept_P is not None:
            self.fetched_P.add_(kept_P)
        if self.push_P is not None and not (whole or self.numbers):
            self.push_P.zero_()
        self.version, self.distance, self.finite = version, 0, True
