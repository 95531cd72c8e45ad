"""TernGrad's synchronous form as a communication hook of PyTorch's DDP (Wen et al. 2017, sections 3.2 and 3.3).

All workers take the largest of their scales, so their codes can be added up as numbers: of N codes, 2 N + 1 levels.
Each worker adds up the codes of its share of the words, all workers', and sends the sums to all (`levels`): it is the
server of that share. What the mean gradient then is depends on no order, and the random numbers only on the key and a
value's place among the model's parameters, so not on how DDP puts tensors into buckets.

A gradient that is not finite makes its tensor's mean NaN, as it does without codes.

Axes: P values of a DDP bucket, B buckets of the code, M words, N workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from speech3.config import CodecConfig
from speech3.engine.codecs.codec import Layout, add_sums, as_floats, layout, pack, statistics
from speech3.engine.codecs.levels import decode_sums, encode_levels, sum_codes

# Its name from PyTorch 2.13 on, where the old one warns in every process.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass
class Exchange:
    """What the hook knows of the model, and counts.

    Attributes
    ----------
    up, down
        Bytes that this worker handed over for a mean, and that came back with it.
    """

    parameters: Sequence[Tensor]
    config: CodecConfig
    key: int = 0
    up: int = 0
    down: int = 0
    layouts: dict[tuple[int, ...], Layout] = field(default_factory=dict)

    def begin(self, key: int) -> None:
        """A step: its gradients are coded by `key`; without codes they are what is sent."""
        self.key = key
        if self.config.kind == "none":
            size = sum(parameter.nbytes for parameter in self.parameters)
            self.up, self.down = self.up + size, self.down + size

    def layout_of(self, bucket: dist.GradBucket) -> Layout:
        """Of a DDP bucket: its tensors' places there, and their random numbers by their places in the model."""
        places = tuple(int(parameter.storage_offset()) for parameter in bucket.parameters())
        if places not in self.layouts:
            as_they_are = as_floats(self.parameters, below=self.config.float_below, last=self.config.float_last)
            floats = {int(p.storage_offset()): kept for p, kept in zip(self.parameters, as_they_are, strict=True)}
            self.layouts[places] = layout(
                bucket.gradients(), bucket=self.config.bucket, floats=[floats[place] for place in places],
                counters=places,
            )  # fmt: skip
        return self.layouts[places]


def mean_of_codes(state: Exchange, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook: the mean gradient, in place."""
    values_P, where, workers = bucket.buffer(), state.layout_of(bucket), dist.get_world_size()
    if where.words:
        scales_B = values_P.new_empty(len(where.sizes_B))
        limits_B = torch.empty_like(scales_B)
        statistics(values_P, where, state.config.clip, limits_B, scales_B)
        scales_B.nan_to_num_(nan=torch.inf)  # which is the largest, whoever has it
        state.up += scales_B.nbytes
        dist.all_reduce(scales_B, dist.ReduceOp.MAX)
        state.down += scales_B.nbytes
        words_NM = torch.zeros(workers, -(-where.words // workers), dtype=torch.int32, device=values_P.device)
        pack(values_P, where, limits_B, scales_B, state.key, words_NM.view(-1))
    floats = [values_P[each].clone() for each in where.floats]
    values_P.zero_()
    if where.words:
        add_sums(_sums(state, words_NM), where, scales_B, 1 / workers, values_P)
    if floats:
        together = torch.cat(floats)
        state.up += together.nbytes
        dist.all_reduce(together)
        state.down += together.nbytes
        for each, mean in zip(where.floats, together.split([len(each) for each in floats]), strict=True):
            values_P[each] = mean / workers
    # A future refuses a result on a GPU of which it was not told.
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[values_P.device] if values_P.is_cuda else None
    )
    future.set_result(values_P)
    return future


def _sums(state: Exchange, words_NM: Tensor) -> Tensor:
    """Sums of all workers' codes, (16, N M), int16; `words_NM` are this worker's, by who is to add them up."""
    workers, words = words_NM.shape
    theirs_NM = torch.empty_like(words_NM)
    state.up += words_NM.nbytes
    dist.all_to_all_single(theirs_NM.view(-1), words_NM.view(-1))
    mine = encode_levels(sum_codes(theirs_NM).flatten(), 2 * workers + 1)
    all_N = mine.new_empty(workers, len(mine))
    _all_gather(all_N.view(-1), mine)
    state.down += all_N.nbytes
    return decode_sums(all_N, words)
