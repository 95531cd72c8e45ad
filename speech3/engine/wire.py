"""The wire between a shard and the server: what is sent in each direction, how it is encoded, and its size in bytes.

Up (to the server) goes the push, encoded (`codecs`) or as float32. The server applies the decoded values. On one host
nothing needs to be sent, but pushes are encoded and decoded all the same, so that a run has the same result as it would
have over a network.

Down (to the shard) go the newest parameters as float32, or the ternary code of their difference from those that the
shard has. The server encodes them and knows what the shard has (`has_P`), so the error of one encoding is part of the
next difference. That is stable only if the error of an encoding is smaller than the encoded difference. With one scale
for 64 values, the error stays at 2.6 times the step between two fetches (if steps are normally distributed); with one
scale for a whole tensor it grows without bound, to 60 times the step after 200 fetches. So buckets here have at most 64
values, which takes 2.5 bits per value. The first fetch of an epoch is float32.

The model's buffers are sent in both directions as float32.

Axes: P parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.config import CodecConfig
from speech3.engine.codecs.codec import Codec, Sender, key_of, make_codec, warm_up
from speech3.engine.flat import Flat, wait_for_gpus
from speech3.engine.rule import Own

_DOWN_BUCKET = 64


def wire_of(config: CodecConfig, views: Sequence[Tensor], stretch: slice = slice(None)) -> "Wire":
    """The configured wire for the slice `stretch` of a model's flat vector; `views` are its parameters."""
    down = None
    if config.down == "ternary":
        bucket = min(config.bucket or _DOWN_BUCKET, _DOWN_BUCKET)
        down = make_codec(config.model_copy(update={"kind": "ternary", "bucket": bucket}), views, stretch)
    return Wire(make_codec(config, views, stretch), down)


class Wire:
    """The shard's end of the wire.

    Attributes
    ----------
    has_P
        The parameters that the server knows the shard to have; None before the first fetch.
    key
        Selects the random numbers of the next push.
    up, down
        Bytes since the last call of `counted`.
    sent
        Bytes sent up that are not yet counted in `up`.
    came
        What the shard received last: float32 parameters, or codes.
    """

    received: Tensor

    def __init__(self, codec: Codec | None = None, down: Codec | None = None) -> None:
        self.sender = Sender(codec) if codec else None
        self.down_codec = down
        self.has_P: Tensor | None = None
        self.key = self.up = self.down = self.sent = 0

    @property
    def plain(self) -> bool:
        """Whether float32 is sent in both directions."""
        return self.sender is None and self.down_codec is None

    def begin(self) -> None:
        """Forget all earlier encoding errors, so that an epoch resumed after a crash equals one without a crash."""
        self.has_P, self.sent = None, 0
        if self.sender:
            self.sender.forget()

    def warm_up(self, like_P: Tensor) -> None:
        """Load the compiled code of both directions."""
        warm_up((self.sender.codec if self.sender else None, self.down_codec), like_P)

    def send(self, own: Own, buffers: Tensor) -> Own:
        """Encode a push; returns it as the rule sees it, decoded. If the server is busy, a later call replaces it."""
        self.sent = buffers.nbytes
        if self.sender is None:
            self.sent += own.parameters_P.nbytes
            return own
        message = self.sender.encode(own.push(), self.key)
        self.sent += message.nbytes
        decoded_P = torch.zeros_like(own.parameters_P)
        self.sender.codec.add(message, decoded_P)
        wait_for_gpus(decoded_P)  # or the server's step would wait for the codec's kernels, with the partition locked
        return Own(own.parameters_P, own.fetched_P, decoded_P)

    def settle(self, *, used: bool) -> None:
        """Count the last push, if there is one, as received by the server, which used or refused it."""
        self.up, self.sent = self.up + self.sent, 0
        if self.sender:
            self.sender.settle(used=used)

    def receive(self, own: Flat) -> None:
        """Replace the newest parameters in `own` by those that the shard decodes."""
        self.received = self._encode_fetch(own.parameters_P)
        self.down += own.buffers.nbytes + self.received.nbytes

    def _encode_fetch(self, own_P: Tensor) -> Tensor:
        """What is sent to the shard for the newest parameters `own_P`, which are replaced by the decoded ones."""
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
