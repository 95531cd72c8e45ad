"""The clipped LSTM against finite differences, `nn.LSTM`, autograd through the formulas, and its own plain steps."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from speech3.models import clipped
from speech3.models.clipped import clipped_lstm

VARIANTS = [(False, 0), (True, 0), (False, 3), (True, 3)]  # peepholes, outputs of the projection (0: none)


def draw(frames, streams, inputs, cells, *, peep=False, proj=0, dtype=torch.float64, scale=0.5, seed=0):
    """The arguments in their order: x, h0, c0, weight_ih, weight_hh, bias, weight_peep, weight_hr."""
    generator = torch.Generator().manual_seed(seed)
    outputs = proj or cells
    shapes = [
        (frames, streams, inputs),
        (streams, outputs),
        (streams, cells),
        (4 * cells, inputs),
        (4 * cells, outputs),
        (4 * cells,),
        (3, cells) if peep else None,
        (outputs, cells) if proj else None,
    ]
    tensors = [shape and torch.randn(shape, generator=generator, dtype=torch.float64) * scale for shape in shapes]
    return [None if tensor is None else tensor.to(dtype).requires_grad_() for tensor in tensors]


def ours(x, h0, c0, w_ih, w_hh, bias, w_peep=None, w_hr=None, *, clip):
    return clipped_lstm(x, h0, c0, w_ih, w_hh, bias, clip=clip, weight_peep_3C=w_peep, weight_hr_RC=w_hr)


def formulas(x, h, c, w_ih, w_hh, bias, w_peep=None, w_hr=None, *, clip):
    """The layer as it is defined, frame by frame, for autograd."""
    p_i, p_f, p_o = w_peep if w_peep is not None else torch.zeros(3, c.shape[1], dtype=c.dtype)
    y = []
    for frame in x:
        i, f, g, o = (frame @ w_ih.T + h @ w_hh.T + bias).chunk(4, 1)
        i, f = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c)
        c = (f * c + i * torch.tanh(g)).clamp(-clip, clip)
        h = torch.sigmoid(o + p_o * c) * torch.tanh(c)
        h = h if w_hr is None else h @ w_hr.T
        y.append(h)
    return torch.stack(y), h, c


def with_gradients(function, arguments, **options):
    """Its outputs, and the gradients of what takes one for random gradients of all three outputs."""
    outputs = function(*arguments, **options)
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype) for out in outputs]
    leaves = [argument for argument in arguments if argument is not None and argument.requires_grad]
    return [*outputs, *torch.autograd.grad(outputs, leaves, grads)]


def assert_same(found, expected, tolerance):
    """Each to so much of its largest value."""
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert (ours.double() - theirs.double()).abs().max() <= tolerance * theirs.abs().max().clamp(min=1e-3)


@pytest.mark.parametrize(("peep", "proj"), VARIANTS)
def test_gradients_by_finite_differences_through_an_active_clamp(peep, proj):
    arguments, clip = draw(4, 2, 3, 5, peep=peep, proj=proj), 0.35
    c = ours(*arguments, clip=clip)[2].abs()
    assert 0.05 < (c == clip).double().mean() < 0.95  # some are clipped, some are not
    assert ((c == clip) | (c < clip - 1e-4)).all()  # and finite differences do not step from one to the other

    def function(*leaves):
        values = iter(leaves)
        return ours(*(None if argument is None else next(values) for argument in arguments), clip=clip)

    assert torch.autograd.gradcheck(function, [argument for argument in arguments if argument is not None])


@pytest.mark.parametrize(("peep", "proj"), VARIANTS)
@pytest.mark.parametrize("clip", [0.35, math.inf])
def test_outputs_and_gradients_are_those_of_the_formulas(peep, proj, clip):
    arguments = draw(11, 3, 7, 20, peep=peep, proj=proj, scale=0.3)
    expected = with_gradients(formulas, arguments, clip=clip)
    assert_same(with_gradients(ours, arguments, clip=clip), expected, 1e-12)
    narrow = [argument if argument is None else argument.detach().float().requires_grad_() for argument in arguments]
    # float32 rounds to 6e-8; sums of 20 products and 11 frames make of it 1e-6 (measured: up to 1.1e-6).
    assert_same(with_gradients(ours, narrow, clip=clip), expected, 4e-6)


@pytest.mark.parametrize("proj", [0, 24])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 5e-6)])
def test_without_a_clip_it_is_nn_lstm(library, proj, dtype, tolerance):
    # float32: both are off float64 by 1e-6 of the largest value or less: 20 frames, sums of 40 to 160 products.
    lstm = nn.LSTM(30, 40, proj_size=proj, dtype=dtype)
    x, h0, c0, *_ = draw(20, 6, 30, 40, proj=proj, dtype=dtype)
    w_ih, w_hh, b_ih, b_hh, *w_hr = lstm.parameters()

    def theirs(x, h0, c0, *_):
        y, (h, c) = lstm(x, (h0[None], c0[None]))
        return y, h[0], c[0]

    expected = with_gradients(theirs, [x, h0, c0, w_ih, w_hh, b_ih, None, *w_hr])
    bias = (b_ih + b_hh).detach().requires_grad_()
    found = with_gradients(ours, [x, h0, c0, w_ih, w_hh, bias, None, *w_hr], clip=math.inf)
    assert_same(found, expected, tolerance)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 20), st.integers(1, 40), st.sampled_from(VARIANTS))
def test_compiled_steps_compute_what_the_plain_ones_do(frames, streams, inputs, cells, variant):
    peep, proj = variant
    arguments = draw(frames, streams, inputs, cells, peep=peep, proj=proj, dtype=torch.float32, scale=0.3)
    found = with_gradients(ours, arguments, clip=0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clipped, "_fast_steps", lambda x: None)
        expected = with_gradients(ours, arguments, clip=0.3)
    assert_same(found, expected, 1e-5)


def test_every_product_library_computes_the_same(library):
    arguments = draw(9, 4, 30, 24, peep=True, proj=10, dtype=torch.float32, scale=0.3)
    wide = [argument.detach().double().requires_grad_() for argument in arguments]
    assert_same(with_gradients(ours, arguments, clip=0.5), with_gradients(formulas, wide, clip=0.5), 4e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_cell_at_the_clip_exactly_passes_its_gradient(dtype):
    # As torch.clamp: the gates make c = 1 * c0 + 0 * g, in every precision.
    c0 = torch.tensor([[2.0, -2.0, 1.5, 2.5]], dtype=dtype).requires_grad_()
    bias = torch.cat([torch.full((4,), value, dtype=dtype) for value in (-2000.0, 1000.0, 0.0, 0.0)])
    x, h0 = torch.zeros(1, 1, 1, dtype=dtype), torch.zeros(1, 4, dtype=dtype)
    w_ih, w_hh = torch.zeros(16, 1, dtype=dtype), torch.zeros(16, 4, dtype=dtype)
    for function in (ours, formulas):
        c = function(x, h0, c0, w_ih, w_hh, bias, clip=2.0)[2]
        torch.testing.assert_close(c, torch.tensor([[2.0, -2.0, 1.5, 2.0]], dtype=dtype), rtol=0, atol=0)
        (gradient,) = torch.autograd.grad(c.sum(), c0)
        torch.testing.assert_close(gradient, torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=dtype), rtol=0, atol=0)


def test_the_clip_limits_the_cells():
    arguments = draw(50, 3, 4, 16, dtype=torch.float32)
    arguments[5] = arguments[5].detach() + 3  # gates open, candidates high: c grows by nearly one in every frame
    for clip in (1.0, 7.5):
        c = torch.cat([ours(arguments[0][:t], *arguments[1:], clip=clip)[2] for t in (1, 10, 50)]).abs()
        assert c.max() == clip
    assert ours(*arguments, clip=math.inf)[2].abs().max() > 7.5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 4e-6)])
def test_chunks_that_pass_their_state_on_are_the_whole(dtype, tolerance):
    arguments = draw(23, 3, 5, 12, peep=True, proj=4, dtype=dtype, scale=0.3)

    def chunked(x, h, c, *weights, clip):
        outputs = []
        for first, last in itertools.pairwise((0, 9, 10, 23)):
            y, h, c = ours(x[first:last], h, c, *weights, clip=clip)
            outputs.append(y)
        return torch.cat(outputs), h, c

    found, expected = (with_gradients(function, arguments, clip=0.3) for function in (chunked, ours))
    assert_same(found, expected, tolerance)


def test_state_from_outside_the_clip_is_taken_as_it_is():
    arguments = draw(2, 2, 3, 8, peep=True, scale=3.0)
    assert_same(with_gradients(ours, arguments, clip=1.0), with_gradients(formulas, arguments, clip=1.0), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_inputs_and_gradients_of_any_strides(dtype):
    x, *rest = (argument for argument in draw(6, 4, 5, 8, dtype=dtype) if argument is not None)
    expected = torch.autograd.grad(ours(x, *rest, clip=1.0)[0].sum(), [x, *rest])  # an expanded gradient
    turned = x.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    wide = torch.zeros(6, 4, 10, dtype=dtype)
    wide[..., ::2] = x.detach()
    for strided in (turned, wide.requires_grad_()[..., ::2]):
        states = [torch.stack([state, state], -1).detach()[..., 0].requires_grad_() for state in rest[:2]]
        leaves = [strided, *states, *rest[2:]]
        y = ours(*leaves, clip=1.0)[0]
        grads = torch.autograd.grad(y, leaves, torch.ones_like(y).transpose(0, 1).contiguous().transpose(0, 1))
        assert not strided.is_contiguous()
        assert_same(grads, expected, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_not_hidden(dtype, value):
    arguments = draw(5, 2, 3, 6, dtype=dtype)
    with torch.no_grad():
        arguments[0][2, 1, 0] = value
        arguments[3][:, 0] = torch.tensor([1.0, -1.0], dtype=dtype).repeat(12)
    y, h, c = ours(*arguments, clip=1.0)
    assert y[:, 0].isfinite().all()
    assert y[:2, 1].isfinite().all()
    if math.isnan(value):
        for wrong in (y[2:, 1], h[1], c[1], *torch.autograd.grad(y.sum(), arguments[3:6])):
            assert wrong.isnan().any()
        assert y[2:, 1].isnan().all()
    else:  # gates take an infinite input: they are 0 or 1, as nn.LSTM's
        assert_same([y, h, c], formulas(*arguments, clip=1.0), 1e-6)
        grads = torch.autograd.grad(y.sum(), arguments[3:6])
        assert grads[0][:, 0].isnan().any()


def test_without_a_gradient_for_the_input_its_product_is_skipped(monkeypatch):
    count = []

    def counted(*operands):
        count.append(1)
        return multiply(*operands)

    multiply = clipped.multiply
    monkeypatch.setattr(clipped, "multiply", counted)
    arguments = draw(6, 4, 5, 8)
    counts, gradients = [], []
    for needs in ((True, True), (False, True), (False, False)):  # x, h0
        arguments[0].requires_grad_(needs[0])
        arguments[1].requires_grad_(needs[1])
        count.clear()
        gradients.append(with_gradients(ours, arguments, clip=1.0)[-3:])
        counts.append(len(count))
    assert counts == [counts[0], counts[0] - 1, counts[0] - 2]
    for other in gradients[1:]:
        assert_same(other, gradients[0], 0)


def test_inference_remembers_nothing():
    arguments = draw(6, 4, 5, 8, dtype=torch.float32)
    expected = ours(*arguments, clip=1.0)
    with torch.no_grad():
        found = ours(*arguments, clip=1.0)
    assert all(out.grad_fn is None for out in found)
    assert_same(found, expected, 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_backward_twice(dtype):
    arguments = draw(6, 4, 5, 8, dtype=dtype)
    y, _, _ = ours(*arguments, clip=0.4)
    first, second = (torch.autograd.grad(y.sum(), arguments[0], retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    d_y = torch.ones_like(y, requires_grad=True)
    (gradient,) = torch.autograd.grad(y, arguments[0], d_y, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_outputs_changed_in_place_are_noticed():
    arguments = draw(6, 4, 5, 8)
    y, _, _ = ours(*arguments, clip=0.4)
    with pytest.raises(RuntimeError, match="modified inplace"):
        y.mul_(2).sum().backward()


@pytest.mark.parametrize(
    ("gate", "others", "exact"), [(0, (0.0, 0.0, 200.0, 0.0), torch.sigmoid), (2, (200.0, 0.0, 0.0, 0.0), torch.tanh)]
)
def test_sigmoid_and_tanh_are_exact_to_the_rounding_of_float32(gate, others, exact):
    # The other factor of c = i g is 1, and c0 is 0.
    size = torch.logspace(-30, 1.9, 4001, dtype=torch.float64)
    x = torch.cat([size, -size]).float()
    w_ih = torch.zeros(4, 1)
    w_ih[gate] = 1
    zero = torch.zeros(len(x), 1)
    c = clipped_lstm(x[None, :, None], zero, zero, w_ih, torch.zeros(4, 1), torch.tensor(others), clip=10.0)[2]
    expected = exact(x.double())
    assert ((c[:, 0].double() - expected).abs() <= 3e-7 * expected.abs()).all()


@pytest.mark.parametrize(("frames", "clip"), [(0, 1.0), (2, 0.0), (2, -1.0), (2, math.nan)])
def test_nothing_to_compute_and_no_clip_are_errors(frames, clip):
    with pytest.raises(ValueError, match=f"clip {clip} must be above zero, and {frames} frames"):
        ours(*draw(frames, 2, 3, 4), clip=clip)
