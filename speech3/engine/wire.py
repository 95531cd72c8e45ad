"""What passes between a shard and the server, and how many bytes it is.

Up goes the push, coded (`codec`) or as float32, and down come the newest parameters, as float32; with both, the
model's buffers, as float32. The server steps by what the codes stand for. On one host nothing needs to be sent, but the
codes are made and read all the same, so a run here is the run that it would be on a slow network.

Axes: P parameters.
"""

import torch
from torch import Tensor

from speech3.engine.codec import Codec, Sender
from speech3.engine.flat import Flat
from speech3.engine.rule import Own


class Wire:
    """The shard's end.

    Attributes
    ----------
    key
        Of the random numbers of the push that is sent next.
    up, down
        Bytes, since they were asked for.
    """

    def __init__(self, codec: Codec | None = None) -> None:
        self.sender = Sender(codec) if codec else None
        self.key = self.up = self.down = 0

    def begin(self) -> None:
        """Nothing is kept of pushes before: an epoch that goes on after a kill is one that was not killed."""
        if self.sender:
            self.sender.forget()

    def send(self, own: Flat, fetched_P: Tensor | None, push_P: Tensor | None) -> Own:
        """The push as the rule sees it."""
        sent = Own(own.parameters_P, fetched_P, push_P)
        self.up += own.buffers.nbytes
        if self.sender is None:
            self.up += own.parameters_P.nbytes
            return sent
        message = self.sender.encode(sent.push(), self.key)
        self.up += message.nbytes
        decoded_P = torch.zeros_like(own.parameters_P)
        self.sender.codec.add(message, decoded_P)
        if fetched_P is not None:
            own.parameters_P.copy_(fetched_P)  # delay compensation goes by what was fetched
        return Own(own.parameters_P, None, decoded_P)

    def receive(self, own: Flat, fetched_P: Tensor | None, push_P: Tensor | None, *, used: bool) -> None:
        """`own` is the newest; of a push that was coded, the rule did not see what else begins anew."""
        self.down += own.vector_K.nbytes
        if self.sender:
            self.sender.settle(used=used)
        if self.sender and fetched_P is not None:
            fetched_P.copy_(own.parameters_P)
        if self.sender and push_P is not None:
            push_P.zero_()

    def counted(self) -> tuple[int, int]:
        """Bytes up and down since the last call."""
        counts, self.up, self.down = (self.up, self.down), 0, 0
        return counts
