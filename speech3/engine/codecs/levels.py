"""Coding the mean of N workers' ternary codes of one shared scale: 2 N + 1 levels (TernGrad, section 3.2), as bytes.

The sum of N codes, plus N, is a digit in base 2 N + 1. As many digits as fit are written into a word of 32 bits as one
number: 10 digits for four workers, so 3.2 bits per value where log2(9) is 3.17. The word is that number as a fraction
of the largest, rounded up, so that decoding needs no division: after multiplication by the base, the part above 32 bits
is the next digit.

Axes: N workers, M words of codes, D digits, Q words of digits.
"""

import torch
from torch import Tensor

from speech3.errors import Speech3Error

MOST_WORKERS = 2**14 - 1  # so that 2 N, the largest digit, is an int16
_WORD = 2.0**32


def check_levels(workers: int) -> None:
    """Refuse more workers than the sums of their codes can be written for.

    Raises
    ------
    Speech3Error
        There are more than `MOST_WORKERS`.
    """
    if workers > MOST_WORKERS:
        raise Speech3Error(
            f"{workers:,} workers: the mean of ternary codes is written in 16 bits per value before it is packed, for "
            f"{MOST_WORKERS:,} workers at most; use fewer"
        )


def digits_in_word(levels: int) -> int:
    """How many digits in base `levels` fit into a word of 32 bits."""
    count = 1
    while levels ** (count + 1) < _WORD:
        count += 1
    return count


def sum_codes(words_NM: Tensor) -> Tensor:
    """Digits (16, M), int32, from 0 to 2 N: the sums over workers of the 16 codes in each word, plus N."""
    sums = [((words_NM << (30 - 2 * k)) >> 30).sum(0, dtype=torch.int32) for k in range(16)]
    return torch.stack(sums) + len(words_NM)


def encode_levels(digits_D: Tensor, levels: int) -> Tensor:
    """The words (Q), int32, that code the digits; the most significant digit of word q is digit q, the next is Q + q.

    Raises
    ------
    Speech3Error
        There are too many workers: see `check_levels`.
    """
    check_levels(levels // 2)
    count = digits_in_word(levels)
    words = -(-len(digits_D) // count)
    digits = digits_D.new_zeros(count * words)
    digits[: len(digits_D)] = digits_D
    number_Q = digits.new_zeros(words, dtype=torch.int64)
    for digit_Q in digits.view(count, words):
        number_Q = number_Q * levels + digit_Q
    # Rounded up, or incremented if it was exact. This stays below the next number, since 2^32 / levels^count is above
    # 1 + 2^-11 for all numbers of workers up to `MOST_WORKERS`; that margin is far above float64 rounding.
    fraction_Q = (number_Q.double() * (_WORD / levels**count) + 2.0**-16).floor() + 1
    return fraction_Q.long().to(torch.int32)


def decode_levels(words_Q: Tensor, levels: int, digits: int) -> Tensor:
    """Decode the first `digits` digits, int16; raises as `encode_levels` does."""
    check_levels(levels // 2)
    count = digits_in_word(levels)
    out = words_Q.new_empty(count, len(words_Q), dtype=torch.int16)
    fraction_Q = words_Q.long() & 0xFFFFFFFF
    for each_Q in out:
        fraction_Q *= levels
        each_Q.copy_(fraction_Q >> 32)
        fraction_Q &= 0xFFFFFFFF
    return out.flatten()[:digits]


def decode_sums(coded_NQ: Tensor, share: int) -> Tensor:
    """Decode the sums of codes, int16 (16, N share), of which each worker encoded those of its `share` words."""
    workers, words = coded_NQ.shape
    levels = 2 * workers + 1
    count = digits_in_word(levels)
    digits = decode_levels(coded_NQ.flatten(), levels, coded_NQ.numel() * count)
    # Sizes are explicit, since -1 is ambiguous without words, which is so if all tensors are sent as float32.
    each_ND = digits.view(count, workers, words).transpose(0, 1).reshape(workers, count * words)[:, : 16 * share]
    return each_ND.view(workers, 16, share).transpose(0, 1).reshape(16, workers * share) - workers
