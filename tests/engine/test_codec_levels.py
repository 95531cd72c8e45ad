"""The mean of ternary codes: its levels, its bits, and every digit back."""

import math

import pytest
import torch

from speech3.engine.papers.terngrad import MOST_WORKERS, decode_levels, digits_in_word, encode_levels, sum_codes
from speech3.errors import Speech3Error


@pytest.mark.parametrize("workers", [*range(1, 41), 63, 64, 100, 127, 512, 1000, MOST_WORKERS])
def test_every_digit_comes_back(workers):
    levels, generator = 2 * workers + 1, torch.Generator().manual_seed(workers)
    count = digits_in_word(levels)
    assert levels**count < 2**32 <= levels ** (count + 1)
    for size in (0, 1, count, count + 1, 10_007):
        digits = torch.randint(levels, (size,), generator=generator)
        words = encode_levels(digits, levels)
        assert torch.equal(decode_levels(words, levels, size).long(), digits)
        assert words.dtype == torch.int32 and len(words) == -(-size // count)
    # The numbers at both ends and around those that are even in base and in bits.
    numbers = {0, 1, 2, levels - 1, levels, levels**count - 1, levels**count - 2, levels ** (count - 1)}
    numbers |= {min(max(2**bits // 2 + each, 0), levels**count - 1) for bits in range(33) for each in (-1, 0, 1)}
    rows = [[number // levels**place % levels for place in reversed(range(count))] for number in sorted(numbers)]
    digits = torch.tensor(rows).T.flatten()
    assert torch.equal(decode_levels(encode_levels(digits, levels), levels, len(digits)).long(), digits)


def test_more_workers_than_fit_16_bits_are_refused():
    """One more, and the largest digit would come back below 0."""
    levels = 2 * (MOST_WORKERS + 1) + 1
    digits = torch.tensor([0, levels - 1])
    for work in (lambda: encode_levels(digits, levels), lambda: decode_levels(digits.to(torch.int32), levels, 2)):
        with pytest.raises(Speech3Error, match=r"16,384 workers: .* for 16,383 workers at most; use fewer"):
            work()


def test_bits_of_the_mean():
    """Below the whole bits that TernGrad counts with, but for 12 to 15 workers (5.33 for 5) and the like."""
    bits = {workers: 32 / digits_in_word(2 * workers + 1) for workers in (1, 2, 3, 4, 5, 8)}
    assert bits == {1: 1.6, 2: 32 / 13, 3: 32 / 11, 4: 3.2, 5: 32 / 9, 8: 32 / 7}
    assert all(math.log2(2 * n + 1) <= each <= math.ceil(math.log2(2 * n + 1)) for n, each in bits.items())
    assert 4 * 100_000 / encode_levels(torch.zeros(100_000, dtype=torch.int64), 9).nbytes >= 8


def test_sums_of_codes():
    codes = torch.randint(-1, 2, (5, 16, 30), generator=torch.Generator().manual_seed(0))
    words = sum((codes[:, k] & 3) << 2 * k for k in range(16)).to(torch.int32)
    digits = sum_codes(words)
    assert torch.equal(digits, codes.sum(0) + 5) and digits.min() >= 0 and digits.max() <= 10
