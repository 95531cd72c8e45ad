"""Push and fetch: what a shard sends to a partition of the server, and what it receives.

A shard has one push for each partition, over that slice of its copy of the parameters: what it has computed since its
last push there. `pack` encodes it before the partition is locked, and `unpack` decodes the reply after the partition is
released, so that no shard waits for another's codec.

Pushes may be more or less frequent than fetches (`n_push` and `n_fetch` of Downpour SGD, Dean et al. 2012). After a
push without a fetch, the shard continues from its own copy, which already contains the push; after a fetch without a
push, what is not yet pushed stays with the shard, as the paper's "accrued gradients" do. We depart from the paper in
two ways: the gradients of a push are already multiplied by the learning rate of the shard's own steps; and nothing is
sent in the background: a busy partition is skipped, and receives the push in a later round, with what the shard has
computed in the meantime.

Axes: K values of a slice, of which P are parameters.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from speech3.engine.flat import Flat, wait_for_gpus
from speech3.engine.rule import Own
from speech3.engine.wire import Wire


@dataclass(eq=False)
class Push:
    """A shard's push to one partition.

    Attributes
    ----------
    own
        The partition's slice of the shard's copy.
    fetched_P
        With local updates, the parameters as fetched: the push is these minus the shard's own. A push without a fetch
        sets them to the shard's own parameters, and a fetch without a push adds to them what was not pushed, so that
        the difference stays the push.
    push_P
        Without local updates, the learning rate times the sum of the gradients.
    wire
        What encodes the push and decodes the reply.
    version
        The partition's version at the last fetch, plus one for each of the shard's pushes since. The staleness of the
        push is the partition's version minus this: the number of versions that other shards have published.
    numbers
        The numbers of the minibatches in the push.
    distance
        Minibatches since the last fetch.
    finite
        False once a loss or a gradient was not finite.
    packed
        The encoded push, as the rule sees it, between `pack` and the sync; None if there is none or it is not finite.
    fetched, complete, replaced, kept_P
        Between the sync and `unpack`: whether parameters were fetched, whether they need no more work, whether the
        buffers were fetched, too (they are the shard's own after its push), and what was not pushed.
    """

    own: Flat
    fetched_P: Tensor | None
    push_P: Tensor | None
    wire: Wire = field(default_factory=Wire)
    version: int = -1
    numbers: list[int] = field(default_factory=list)
    distance: int = 0
    finite: bool = True
    push_due: bool = True
    fetch_due: bool = True
    packed: Own | None = None
    fetched: bool = False
    complete: bool = False
    replaced: bool = False
    kept_P: Tensor | None = None

    def begin(self) -> None:
        """Reset: nothing is computed yet, and nothing was sent."""
        self.version, self.distance, self.finite, self.numbers = -1, 0, True, []
        self.push_due = self.fetch_due = True
        self.wire.begin()

    def add(self, number: int, key: int) -> None:
        """Count a computed minibatch; `key` selects the random numbers of the push's codec."""
        self.numbers.append(number)
        self.distance, self.wire.key = self.distance + 1, key

    def receive(self, version: int, numbers: list[int], key: int, *, fetch_due: bool, finite: bool) -> None:
        """Become a push that was sent to a partition on another host; without minibatches, it is a fetch only."""
        self.version, self.numbers, self.wire.key, self.finite = version, numbers, key, finite
        self.push_due, self.fetch_due = bool(numbers), fetch_due

    @torch.no_grad()
    def pack(self) -> None:
        """Encode the push, if it is due and finite; call before the partition is locked."""
        self.packed = None
        if self.push_due and self.numbers and self.finite:
            self.own.collect()
            own = Own(self.own.parameters_P, self.fetched_P, self.push_P)
            if not self.fetch_due:  # the rule writes into a copy, so that the shard keeps its own parameters
                own = Own(self.own.parameters_P.clone(), None, own.push())
            self.packed = self.wire.send(own, self.own.buffers)

    @torch.no_grad()
    def pushed(self) -> None:
        """The push was published without a fetch: the shard continues from its own parameters."""
        self.version += 1
        self.wire.settle(used=True)
        if self.fetched_P is not None:
            self.fetched_P.copy_(self.own.parameters_P)
        if self.push_P is not None:
            self.push_P.zero_()

    @torch.no_grad()
    def fetch(self, version: int, newest_K: Tensor | None, *, used: bool) -> None:
        """Fetch the newest parameters; `newest_K` is None if the server's step has already written them into `own`."""
        self.wire.settle(used=used)
        self.fetched, self.complete, self.replaced = True, newest_K is None and self.wire.plain, newest_K is not None
        # With local updates, what was not pushed: steps that the newest parameters do not contain.
        self.kept_P = self.fetched_P - self.own.parameters_P if self.fetched_P is not None and self.numbers else None
        if newest_K is not None:
            self.own.vector_K.copy_(newest_K)
            wait_for_gpus(self.own.vector_K, newest_K)
        self.version, self.distance, self.finite = version, 0, True

    @torch.no_grad()
    def unpack(self) -> None:
        """Decode the fetched parameters after the partition is released; what was not pushed stays with the shard."""
        if not self.fetched:
            return
        self.fetched = False
        if self.replaced:
            self.own.spread()
        self.wire.receive(self.own)
        if self.fetched_P is not None and not self.complete:  # else the rule has already copied them in its pass
            self.fetched_P.copy_(self.own.parameters_P)
        if self.fetched_P is not None and self.kept_P is not None:
            self.fetched_P.add_(self.kept_P)
        if self.push_P is not None and not (self.complete or self.numbers):
            self.push_P.zero_()
