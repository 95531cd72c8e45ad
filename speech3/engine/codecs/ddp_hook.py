"""TernGrad's synchronous form as a communication hook of PyTorch's DDP (Wen et al. 2017, sections 3.2 and 3.3).

All workers use the largest of their scales, so their codes can be added as integers: the sum of N codes has 2 N + 1
levels. Each worker adds up all workers' codes in its share of the words and sends the sums to all (`levels`): it is the
parameter server of that share. The mean gradient does not depend on the order of workers, and the random numbers depend
only on the key and a value's position among the model's parameters, not on how DDP divides tensors into buckets.

A gradient that is not finite makes the mean of its tensor NaN, as it would without codes.

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

# The name since PyTorch 2.13, in which the old one warns in every process.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass
class Exchange:
    """The state of the hook: the model's parameters, the config, and counts.

    Attributes
    ----------
    up, down
        Bytes that this worker sent and received for the means.
    """

    parameters: Sequence[Tensor]
    config: CodecConfig
    key: int = 0
    up: int = 0
    down: int = 0
    layouts: dict[tuple[int, ...], Layout] = field(default_factory=dict)

    def begin(self, key: int) -> None:
        """Begin a step, whose codes draw random numbers by `key`; without a codec, count the gradients as sent."""
        self.key = key
        if self.config.kind == "none":
            size = sum(parameter.nbytes for parameter in self.parameters)
            self.up, self.down = self.up + size, self.down + size

    def layout_of(self, bucket: dist.GradBucket) -> Layout:
        """The layout of a DDP bucket: positions of its tensors in the bucket, random numbers by those in the model."""
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
    """The communication hook: replace the gradients of a bucket by their mean over all workers."""
    values_P, where, workers = bucket.buffer(), state.layout_of(bucket), dist.get_world_size()
    if where.words:
        scales_B = values_P.new_empty(len(where.sizes_B))
        limits_B = torch.empty_like(scales_B)
        statistics(values_P, where, state.config.clip, limits_B, scales_B)
        scales_B.nan_to_num_(nan=torch.inf)  # so that it is the largest, whichever worker has it
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
    # A future must be told in advance which GPU its result is on.
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[values_P.device] if values_P.is_cuda else None
    )
    future.set_result(values_P)
    return future


def _sums(state: Exchange, words_NM: Tensor) -> Tensor:
    """Sums of all workers' codes, (16, N M), int16; row n of this worker's `words_NM` is added up by worker n."""
    workers, words = words_NM.shape
    theirs_NM = torch.empty_like(words_NM)
    state.up += words_NM.nbytes
    dist.all_to_all_single(theirs_NM.view(-1), words_NM.view(-1))
    mine = encode_levels(sum_codes(theirs_NM).flatten(), 2 * workers + 1)
    all_N = mine.new_empty(workers, len(mine))
    _all_gather(all_N.view(-1), mine)
    state.down += all_N.nbytes
    return decode_sums(all_N, words)
