"""The mean of N workers' ternary codes in one process, bit for bit that of `ddp_hook` in N processes.

It is used for workers on a virtual clock, and to measure the time of one worker's part of the exchange.

Axes: P values of the gradient, B buckets of the code, M words, Q words of digits, N workers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.config import CodecConfig
from speech3.engine.codecs.codec import add_sums, as_floats, key_of, layout, pack, statistics
from speech3.engine.codecs.levels import decode_sums, encode_levels, sum_codes
from speech3.engine.flat import Flat


class SharedCodes:
    """The mean of gradients that are coded with a shared scale, for parameters in a flat vector."""

    def __init__(self, parameters: Flat, config: CodecConfig) -> None:
        self.config, self.mean_P, self.values_P = config, parameters.zeros_like(), parameters.zeros_like()
        floats = as_floats(parameters.views, below=config.float_below, last=config.float_last)
        self.layout = layout(self.mean_P.views, bucket=config.bucket, floats=floats)

    def mean(
        self, gradients: Sequence[Sequence[Tensor]], workers: int, key: tuple[int, ...]
    ) -> tuple[Sequence[Tensor], int, int]:
        """The mean gradient, and the bytes that each worker sends and receives for it.

        Parameters
        ----------
        gradients
            Gradients of the first workers, parameter by parameter; the other workers code zeros, as in `ddp`.
        key
            Numbers that select the random numbers, together with the worker's number.
        """
        where, weight = self.layout, workers / len(gradients)
        limits_NB = torch.zeros(len(gradients), len(where.sizes_B), device=self.values_P.vector_K.device)
        scales_NB = torch.zeros_like(limits_NB)
        for g, limits_B, scales_B in zip(gradients, limits_NB, scales_NB, strict=True):
            statistics(self._flat(g, weight), where, self.config.clip, limits_B, scales_B)
        shared_B = scales_NB.nan_to_num(nan=torch.inf).amax(0)  # so that it is the largest, whichever worker has it
        share = -(-where.words // workers)  # words whose sums each worker computes
        words_NM = torch.zeros(workers, workers * share, dtype=torch.int32, device=shared_B.device)
        mean = self.mean_P
        mean.vector_K.zero_()
        for worker, (g, limits_B) in enumerate(zip(gradients, limits_NB, strict=True)):
            values_P = self._flat(g, weight)
            pack(values_P, where, limits_B, shared_B, key_of(*key, worker), words_NM[worker])
            for each in where.floats:
                mean.vector_K[each] += values_P[each]
        for each in where.floats:
            mean.vector_K[each] /= workers
        shares = words_NM.split(share, dim=1)
        coded_NQ = torch.stack([encode_levels(sum_codes(each).flatten(), 2 * workers + 1) for each in shares])
        add_sums(decode_sums(coded_NQ, share), where, shared_B, 1 / workers, mean.vector_K)
        plain = shared_B.nbytes + 4 * where.num_floats
        return mean.views, words_NM[0].nbytes + plain, coded_NQ.nbytes + plain

    def alone(self, g: Sequence[Tensor], workers: int) -> tuple[int, int]:
        """Do one worker's part of `mean`, to time it, with its own codes for the others'; returns bytes up and down."""
        where, values_P = self.layout, self._flat(g, 1.0)
        limits_B = values_P.new_empty(len(where.sizes_B))
        scales_B = torch.empty_like(limits_B)
        statistics(values_P, where, self.config.clip, limits_B, scales_B)
        share = -(-where.words // workers)
        words_NM = torch.zeros(workers, share, dtype=torch.int32, device=values_P.device)
        pack(values_P, where, limits_B, scales_B, 0, words_NM.view(-1))
        coded_Q = encode_levels(sum_codes(words_NM).flatten(), 2 * workers + 1)
        coded_NQ = coded_Q.repeat(workers, 1)
        add_sums(decode_sums(coded_NQ, share), where, scales_B, 1 / workers, self.mean_P.vector_K)
        plain = scales_B.nbytes + 4 * where.num_floats
        return words_NM.nbytes + plain, coded_NQ.nbytes + plain

    @torch.no_grad()
    def _flat(self, g: Sequence[Tensor], weight: float) -> Tensor:
        for view, each in zip(self.values_P.views, g, strict=True):
            torch.mul(each, weight, out=view)
        return self.values_P.vector_K
