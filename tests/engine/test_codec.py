"""Codecs: the ternary code against an obvious one of the same random numbers, its mean, its bytes; what is lost.

Axes: P values.
"""

import math

import numpy as np
import pytest
import torch

from speech3.engine.codecs import Bf16, Sender, Ternary, TopK, as_floats, key_of, layout, rows_of


def views(*shapes, gap=0):
    """Tensors in one vector, as `flatten` lays them, with `gap` values between them."""
    sizes = [math.prod(shape) for shape in shapes]
    vector = torch.zeros(sum(sizes) + gap * len(sizes))
    places = np.cumsum([0, *(size + gap for size in sizes)])
    return vector, [vector[at : at + size].view(s) for at, size, s in zip(places, sizes, shapes, strict=False)]


def drawn(size, seed=0, scale=1.0):
    return scale * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def decoded(codec, values_P, key=1):
    out_P = torch.zeros_like(values_P)
    codec.add(codec.encode(values_P, key), out_P)
    return out_P


def random24(counters, key):
    """The mixer, in integers without an end."""
    x = (counters + (key & 0xFFFFFFFF)) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = (x ^ (x >> 15)) ^ (key >> 32)
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    return ((x ^ (x >> 16)) >> 8) / 2**24


def obvious(values, counter, key, clip=2.5):
    """The ternary code of a bucket as its definition has it, without bits."""
    limit = clip * values.double().std(unbiased=False)
    scale = torch.minimum(values.abs().max(), limit.float())
    clipped = values.sign() * values.abs().clamp(max=float(limit.float()))
    random = torch.tensor([random24(counter + i, key) for i in range(len(values))], dtype=torch.float32)
    return scale * values.sign() * (random * scale < clipped.abs())


SIZES = (1, 2, 3, 5, 15, 16, 17, 31, 63, 64, 65, 255, 1000, 1023, 1024, 1025, 2047, 2048, 2500, 5000)


@pytest.mark.parametrize("size", SIZES[1:])
def test_code_equals_definition_with_same_random_numbers(size):
    vector, tensors = views((3,), (size,), gap=5)
    vector.copy_(drawn(len(vector), size))
    key = key_of(7, size)
    out = decoded(Ternary(layout(tensors)), vector, key)
    for tensor in tensors:
        start = tensor.storage_offset()
        torch.testing.assert_close(out[start : start + tensor.numel()], obvious(tensor, start, key), rtol=1e-6, atol=0)
    assert out[3:8].eq(0).all() and out[-5:].eq(0).all()  # what belongs to no tensor is not sent


@pytest.mark.parametrize("bucket", [1, 2, 7, 16, 100, 1024, 1500])
@pytest.mark.parametrize("size", [1, 33, 1500, 2049])
def test_buckets(size, bucket):
    vector, tensors = views((size,))
    vector.copy_(drawn(size))
    codec = Ternary(layout(tensors, bucket=bucket))
    message = codec.encode(vector, 3)
    out = decoded(codec, vector, 3)
    for start in range(0, size, bucket):
        values = vector[start : start + bucket]
        expected = values if len(values) == 1 else obvious(values, start, 3)
        torch.testing.assert_close(out[start : start + bucket], expected, rtol=1e-6, atol=0)
    parts = [min(bucket, size - start) for start in range(0, size, bucket)]
    assert len(message) == sum(4 + 4 * sum(-(-min(1024, n - a) // 16) for a in range(0, n, 1024)) for n in parts)


def test_buckets_of_one_value_are_exact():
    vector, tensors = views((40, 30))
    vector.copy_(drawn(1200) * torch.logspace(-30, 30, 1200))
    vector[5] = 0
    assert torch.equal(decoded(Ternary(layout(tensors, bucket=1)), vector), vector)


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-20])
def test_equal_values_are_exact(value):
    vector, tensors = views((100,))
    vector.fill_(value)
    assert torch.equal(decoded(Ternary(layout(tensors)), vector), vector)


def test_the_mean_of_many_codings_is_the_clipped_gradient():
    vector, tensors = views((30, 50), (700,))
    vector.copy_(drawn(2200) ** 3)  # heavy tails: some are clipped
    codec, rounds = Ternary(layout(tensors)), 4000
    mean = torch.zeros_like(vector)
    for number in range(rounds):
        codec.add(codec.encode(vector, key_of(1, number)), mean, 1 / rounds)
    for tensor in tensors:
        flat, start = tensor.flatten(), tensor.storage_offset()
        limit = 2.5 * flat.std(unbiased=False)
        clipped, scale = flat.clamp(-limit, limit), min(flat.abs().max(), limit)
        assert (clipped != flat).any()
        error = mean[start : start + len(flat)] - clipped
        deviation = (scale * clipped.abs() - clipped**2).clamp(min=0).sqrt() / rounds**0.5
        assert (error.abs() <= 5.5 * deviation + 8 * scale / rounds).all()
        assert ((error / (deviation + 1e-9))[deviation > 1e-4].pow(2).mean() - 1).abs() < 0.2  # no less noise either


def test_random_numbers_are_even_and_of_no_other_key_or_neighbour():
    size = 1 << 16
    vector, tensors = views((size,))
    vector.fill_(0.5)
    vector[0], vector[1] = 1.0, -1.0  # so s is 1, and the others are sent with probability one half
    codec = Ternary(layout(tensors), clip=1e9)
    sent = [2 * decoded(codec, vector, key)[2:] - 1 for key in map(key_of, range(8))]
    for number, each in enumerate(sent):
        assert abs(each.mean()) < 5 / size**0.5
        for lag in (1, 2, 16, 64, 1024):
            assert abs((each[lag:] * each[:-lag]).mean()) < 5 / size**0.5, lag
        for other in sent[:number]:
            for lag in (0, 1, 64):
                assert abs((each[lag:] * other[: len(other) - lag]).mean()) < 5 / size**0.5


def test_the_same_bytes_for_the_same_key():
    vector, tensors = views((37, 41), (90,))
    vector.copy_(drawn(len(vector)))
    codec = Ternary(layout(tensors))
    first, again, other = codec.encode(vector, 5), codec.encode(vector, 5), codec.encode(vector, 6)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert key_of(1, 2) == key_of(1, 2) != key_of(2, 1) and 0 <= key_of(-3) < 1 << 63


def test_code_of_tensor_does_not_depend_on_its_offset():
    vector, tensors = views((50,), (1500,))
    vector.copy_(drawn(len(vector)))
    there = decoded(Ternary(layout(tensors)), vector)[50:]
    alone = vector[50:].clone()
    here = decoded(Ternary(layout([alone], counters=[50])), alone)
    assert torch.equal(here, there)


def test_golden_words():
    """Written down once: on any machine the same."""
    vector, tensors = views((40,))
    vector.copy_(torch.arange(40) - 20.0)
    message = Ternary(layout(tensors)).encode(vector, 12345)
    assert message.view(torch.float32)[0] == 20
    assert message.view(torch.int32)[1:].tolist() == GOLDEN


GOLDEN = [89194703, 21234636, 16842767]


def test_small_tensors_and_last_layer_are_sent_as_float32():
    vector, tensors = views((30, 20), (20,), (300, 30), (300,))
    vector.copy_(drawn(len(vector)))
    codec = Ternary(layout(tensors, floats=as_floats(tensors, below=100, last=True)))
    out = decoded(codec, vector)
    assert torch.equal(out[600:], vector[600:]) and out[:600].unique().numel() == 3
    assert codec.encode(vector, 1).numel() == 4 + 600 // 4 + 2 + 4 * (20 + 9000 + 300)
    assert as_floats([tensors[1], tensors[3]], last=True) == [False, False]  # no matrix, so no last one
    whole = Ternary(layout(tensors, floats=as_floats(tensors, below=10**6)))
    assert torch.equal(decoded(whole, vector), vector)


def test_empty_vector_is_coded():
    for tensors in ([], [torch.zeros(0)]):
        codec = Ternary(layout(tensors))
        message = codec.encode(torch.zeros(0), 1)
        assert message.numel() == 0
        codec.add(message, torch.zeros(0))


@pytest.mark.parametrize("stretch", [slice(None), slice(0, 7), slice(7, 30), slice(13, 14), slice(30, 77)])
def test_rows_that_are_not_zero_are_sent_without_loss(stretch):
    vector, tensors = views((6, 5), (9,), (3, 2, 4), (0, 4))
    vector.copy_(drawn(len(vector)))
    for zero in (slice(5, 15), slice(20, 30), slice(30, 39), slice(47, 55)):
        vector[zero] = 0
    codec, part = rows_of(tensors, stretch), vector[stretch]
    out = torch.ones(len(part))
    message = codec.encode(part.clone(), 1)
    codec.add(message, out, -0.5)
    assert torch.equal(out, 1 - 0.5 * part)
    assert len(message) < 4 * len(part) + 12
    if stretch == slice(None):  # ten rows, each marked in a byte: two of five values and two of eight are not zero
        assert len(message) == 12 + 4 * (2 * 5 + 2 * 8)


@pytest.mark.parametrize("codec", ["ternary", "bf16", "topk", "rows"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 700, 2999])
def test_values_that_are_not_finite_decode_to_nan(codec, value, place):
    vector, tensors = views((3000,), (10,))
    vector.copy_(drawn(len(vector)))
    vector[place] = value
    codecs = {"ternary": Ternary(layout(tensors)), "bf16": Bf16(), "topk": TopK(0.01), "rows": rows_of(tensors)}
    out = decoded(codecs[codec], vector)
    assert not torch.isfinite(out.norm()) and torch.isfinite(out[3000:]).all()


@pytest.mark.parametrize("codec", [Bf16(), TopK(0.05)])
def test_error_feedback_sums_to_the_truth(codec):
    sender, truth, out = Sender(codec), torch.zeros(500), torch.zeros(500)
    for number in range(60):
        values = drawn(500, number) + 0.1
        truth += values
        sender.encode(torch.full((500,), 7.0), number)  # the server was busy: the next is sent in its place
        codec.add(sender.encode(values, number), out)
        sender.acknowledge(used=True)
        torch.testing.assert_close(out + sender.lost_P, truth, rtol=1e-4, atol=1e-4)
    alone = Sender(codec)
    assert (sender.lost_P.norm() < 0.5 * truth.norm()) and alone.lost_P is None
    before = sender.lost_P.clone()
    sender.encode(torch.full((500,), math.nan), 0)  # is refused, and what was lost before is not
    sender.acknowledge(used=False)
    assert torch.equal(sender.lost_P, before)
    sender.forget()
    assert torch.equal(sender.encode(values, 1), alone.encode(values, 1))


def test_an_unbiased_sender_keeps_nothing():
    vector, tensors = views((100,))
    vector.copy_(drawn(100))
    sender = Sender(Ternary(layout(tensors)))
    sender.encode(vector, 1)
    assert sender.lost_P is None


def test_bytes():
    values = drawn(1000)
    assert Bf16().encode(values, 0).numel() == 2000
    assert torch.equal(decoded(Bf16(), values), values.bfloat16().float())
    message, out = TopK(0.02).encode(values, 0), decoded(TopK(0.02), values)
    assert message.numel() == 8 * 20 and out.count_nonzero() == 20
    assert out.abs()[out != 0].min() >= values.abs()[out == 0].max() and torch.equal(out[out != 0], values[out != 0])
    assert TopK(1e-9).encode(values, 0).numel() == 8 and TopK(1.0).encode(values, 0).numel() == 8000
