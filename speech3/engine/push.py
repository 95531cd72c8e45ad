"""What a shard brings to a partition of the server, and takes from it.

A shard has one push for each partition, over that stretch of its copy of the parameters: what it computed since it last
brought something there. `pack` codes it before the partition is locked, and `unpack` reads what came down after it is
released, so nobody waits for a codec.

A push may be brought more or less often than the newest parameters are taken (`n_push` and `n_fetch` of Downpour SGD,
Dean et al. 2012). Where they are not taken, the shard's own copy, which has the push already, goes on; where they are
taken alone, what is not yet brought stays with the shard, as the paper's "accrued gradients" do. We depart from the
paper in two ways: a push has the learning rate in it, that of the shard's own steps; and nothing is sent in the
background, but a partition that is busy is left out, and gets the push, with what was computed since, in a later round.

Axes: K values of a stretch, P of them parameters.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from speech3.engine.flat import Flat, wait_for_gpus
from speech3.engine.rule import Own
from speech3.engine.wire import Wire


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
    wire
        By which it is sent.
    version
        Of the partition when the newest was taken last, and one more for each push that was brought since without
        taking it: what others published since then is the staleness of the push.
    numbers
        Minibatches in it.
    distance
        Minibatches since the last fetch.
    rate
        The learning rate of the last minibatch.
    finite
        False once a loss was not.
    brings, takes
        Is the push due, and are the newest parameters?
    packed
        The push as the rule sees it, between `pack` and the sync.
    came, whole, kept_P
        Between sync and `unpack`: the newest came; nothing more is to be done about it; what was not brought.
    """

    own: Flat
    fetched_P: Tensor | None
    push_P: Tensor | None
    wire: Wire = field(default_factory=Wire)
    version: int = -1
    numbers: list[int] = field(default_factory=list)
    distance: int = 0
    rate: float = 0.0
    finite: bool = True
    brings: bool = True
    takes: bool = True
    packed: Own | None = None
    came: bool = False
    whole: bool = False
    kept_P: Tensor | None = None

    def begin(self) -> None:
        """Nothing computed yet, and nothing known of what passed the wire."""
        self.version, self.distance, self.finite, self.numbers = -1, 0, True, []
        self.brings = self.takes = True
        self.wire.begin()

    def add(self, number: int, rate: float, key: int, *, finite: bool) -> None:
        """A minibatch was computed; `key` is of the random numbers by which it is coded."""
        self.numbers.append(number)
        self.distance, self.rate, self.wire.key = self.distance + 1, rate, key
        self.finite = self.finite and finite

    @torch.no_grad()
    def pack(self) -> None:
        """Before the partition is locked: code what is brought, if it is due and can be used."""
        self.packed = None
        if self.brings and self.numbers and self.finite:
            own = Own(self.own.parameters_P, self.fetched_P, self.push_P)
            if not self.takes:  # the rule leaves the newest in a copy
                own = Own(self.own.parameters_P.clone(), None, own.push())
            self.packed = self.wire.send(own, self.own.buffers)

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
        """Go on from the newest; none: the step has left it in `own`."""
        self.wire.settle(used=used)
        self.came, self.whole = True, newest_K is None and self.wire.plain
        # With local updates, what was not brought: steps that the newest, once it is in their place, knows nothing of.
        self.kept_P = self.fetched_P - self.own.parameters_P if self.fetched_P is not None and self.numbers else None
        if newest_K is not None:
            self.own.vector_K.copy_(newest_K)
            wait_for_gpus(self.own.vector_K, newest_K)
        self.version, self.distance, self.finite = version, 0, True

    @torch.no_grad()
    def unpack(self) -> None:
        """After the partition is released: what came down takes the place of the newest; what was not brought stays."""
        if not self.came:
            return
        self.came = False
        self.wire.receive(self.own)
        if self.fetched_P is not None and not self.whole:  # else the rule has done all of it, in its one pass
            self.fetched_P.copy_(self.own.parameters_P)
        if self.fetched_P is not None and self.kept_P is not None:
            self.fetched_P.add_(self.kept_P)
        if self.push_P is not None and not (self.whole or self.numbers):
            self.push_P.zero_()
