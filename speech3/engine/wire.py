"""What passes between a shard and the server, and how many bytes it is.

Up goes the push, coded (`codecs`) or as float32; with both ways, the model's buffers, as float32. The server steps by
what the codes stand for. On one host nothing needs to be sent, but the codes are made and read all the same, so a run
here is the run that it would be on a slow network.

Down come the newest parameters as float32, or ternary codes of their difference from what the shard has. Who codes it,
the server, knows what the shard has (here: `has_P`), so what a coding lost is in the difference the next time. That
holds only while a coding loses less than it is given: with a scale for 64 values the error settles at 2.6 times the
step between two fetches (of normally distributed steps), with one for a whole tensor it grows without end, 60 times the
step after 200 fetches. So buckets are of 64 at most here, 2.5 bits a value. The first fetch of an epoch is of float32.

Axes: P parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.config import CodecConfig
from speech3.engine.codecs.codec import Codec, Sender, key_of, make_codec
from speech3.engine.flat import Flat
from speech3.engine.rule import Own

_DOWN_BUCKET = 64


def wire_of(config: CodecConfig, views: Sequence[Tensor], stretch: slice = slice(None)) -> "Wire":
    """As configured, for a stretch of a flat vector that a model's parameters are these views of."""
    down = None
    if config.down == "ternary":
        bucket = min(config.bucket or _DOWN_BUCKET, _DOWN_BUCKET)
        down = make_codec(config.model_copy(update={"kind": "ternary", "bucket": bucket}), views, stretch)
    return Wire(make_codec(config, views, stretch), down)


class Wire:
    """The shard's end.

    Attributes
    ----------
    key
        Of the random numbers of the push that is sent next.
    up, down
        Bytes, since they were asked for.
    sent
        Bytes on their way up.
    came
        What came down last: parameters, or codes.
    """

    came: Tensor

    def __init__(self, codec: Codec | None = None, down: Codec | None = None) -> None:
        self.sender = Sender(codec) if codec else None
        self.down_codec = down
        self.has_P: Tensor | None = None
        self.key = self.up = self.down = self.sent = 0

    @property
    def plain(self) -> bool:
        """Everything passes as it is."""
        return self.sender is None and self.down_codec is None

    def begin(self) -> None:
        """Nothing is kept of what was before: an epoch that goes on after a kill is one that was not killed."""
        self.has_P, self.sent = None, 0
        if self.sender:
            self.sender.forget()

    def send(self, own: Own, buffers: Tensor) -> Own:
        """The push as the rule sees it. Where the server turns out to be busy, a later one is sent in its place."""
        self.sent = buffers.nbytes
        if self.sender is None:
            self.sent += own.parameters_P.nbytes
            return own
        message = self.sender.encode(own.push(), self.key)
        self.sent += message.nbytes
        decoded_P = torch.zeros_like(own.parameters_P)
        self.sender.codec.add(message, decoded_P)
        return Own(own.parameters_P, own.fetched_P, decoded_P)

    def settle(self, *, used: bool) -> None:
        """What was sent last, if anything was, has arrived, and was used or refused."""
        self.up, self.sent = self.up + self.sent, 0
        if self.sender:
            self.sender.settle(used=used)

    def receive(self, own: Flat) -> None:
        """`own` is the newest; what comes down is in its place afterwards."""
        self.came = self._come_down(own.parameters_P)
        self.down += own.buffers.nbytes + self.came.nbytes

    def _come_down(self, own_P: Tensor) -> Tensor:
        """What is sent to the shard in place of the newest."""
        if self.down_codec is None:
            return own_P
        if self.has_P is None:
            self.has_P = own_P.clone()
            return own_P
        message = self.down_codec.encode(own_P - self.has_P, key_of(self.key, 1))
        self.down_codec.add(message, self.has_P)
        own_P.copy_(self.has_P)
        return message

    def counted(self) -> tuple[int, int]:
        """Bytes up and down since the last call."""
        counts, self.up, self.down = (self.up, self.down), 0, 0
        return counts
