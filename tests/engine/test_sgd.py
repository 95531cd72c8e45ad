"""Flat parameters and plain SGD against PyTorch's optimizer."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from speech3.engine.backends.one_process import OneWorker
from speech3.engine.flat import flatten
from speech3.engine.interface import USED, Rate, minibatch_seed
from speech3.engine.optimizers import Sgd
from speech3.errors import MismatchError, Speech3Error

PARTS = tiny.Build()()


def _train(world, numbers=range(12), rate=0.3, epoch=1):
    states_M = np.full(12, USED, np.int32)
    states_M[list(numbers)] = 0
    return list(world.epoch(epoch, states_M, Rate(rate, epoch, 12)))


def test_flat_parameters_are_the_models_own():
    model = tiny.model()
    before = copy.deepcopy(model)
    flat = flatten(model)
    for parameter, view, old in zip(model.parameters(), flat.views, before.parameters(), strict=True):
        assert torch.equal(parameter, old)
        assert parameter.data_ptr() == view.data_ptr()
        assert (parameter.data_ptr() - flat.vector_K.data_ptr()) % 64 == 0
    assert flat.vector_K.count_nonzero() == sum(p.count_nonzero() for p in model.parameters())
    assert flat.num_parameters == len(flat.vector_K)
    flat.vector_K.fill_(2)
    assert all((parameter == 2).all() for parameter in model.parameters())
    slot = flat.zeros_like()
    slot.views[1].fill_(1)
    assert slot.vector_K.sum() == flat.views[1].numel()
    assert slot.vector_K[flat.views[1].storage_offset()] == 1


def test_running_statistics_lie_behind_the_parameters():
    model = tiny.model(norm=True)
    stock = copy.deepcopy(model)
    flat = flatten(model)
    size = sum(-(-p.numel() // 16) * 16 for p in model.parameters())
    assert flat.num_parameters == len(flat.parameters_P) == size
    # Means, variances, padding; then the codes of what is not float32, the number of minibatches.
    assert flat.buffers[:32].tolist() == [0.0] * 16 + [1.0] * 7 + [0.0] * 9 and len(flat.buffers) == 48
    assert len(flat.zeros_like().vector_K) == size and len(flat.views) == 6

    inputs, _ = PARTS.source.draw(1, 0)
    for _ in range(3):
        assert torch.equal(model(inputs), stock(inputs))
    assert torch.equal(flat.buffers[:7], stock[1].running_mean) and flat.buffers[:7].any()
    assert torch.equal(flat.buffers[16:23], stock[1].running_var)
    taken = flat.vector_K.clone()
    assert torch.equal(model.eval()(inputs), stock.eval()(inputs))

    flat.vector_K.zero_()
    model.load_state_dict(stock.state_dict())
    assert torch.equal(flat.vector_K, taken)
    flat.buffers.fill_(4.0)
    assert (model[1].running_mean == 4).all()
    assert not torch.equal(model(inputs), stock(inputs))


def test_flat_refuses_other_types():
    with pytest.raises(ValueError, match=r"must be float32, not torch\.float64"):
        flatten(nn.Linear(2, 2).double())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_steps_are_those_of_torch_sgd(momentum, weight_decay):
    parts = tiny.Build(norm=True)()
    stock = copy.deepcopy(parts.model)
    optimizer = torch.optim.SGD(stock.parameters(), lr=0.3, momentum=momentum, weight_decay=weight_decay)
    world = OneWorker(replace(parts, weight_decay=weight_decay), momentum=momentum)
    moves = _train(world)
    loss_sum, right = 0.0, 0
    for number, done in enumerate(moves):
        inputs, targets = parts.source.draw(1, number)
        optimizer.zero_grad()
        loss, correct = tiny.loss(stock(inputs), targets)
        loss.backward()
        optimizer.step()
        loss_sum, right = loss_sum + 16 * loss.item(), right + int(correct)
        assert done.loss_sum == pytest.approx(loss_sum, rel=1e-5)
        assert (done.correct, done.frames, done.used) == (right, 16 * (number + 1), number + 1)
    for ours, theirs in zip(parts.model.state_dict().values(), stock.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert (world.snapshot().states_M == USED).all()


def test_velocity_holds_the_learning_rate():
    # DESIGN.md's server step: after the rate is halved, v still carries pushes made at the old rate.
    model = nn.Linear(1, 1, bias=False)
    sgd = Sgd(model, momentum=0.5)
    start = model.weight.item()
    sgd.step([torch.ones(1, 1)], 0.2)
    sgd.step([torch.ones(1, 1)], 0.1)
    assert model.weight.item() == pytest.approx(start - 0.2 - (0.5 * 0.2 + 0.1))


def test_resumed_run_equals_uninterrupted_run():
    """Also dropout is that of the minibatch, not of the process."""
    whole = OneWorker(tiny.Build(dropout=0.5, norm=True)(), momentum=0.5)
    _train(whole)
    first = OneWorker(tiny.Build(dropout=0.5, norm=True)(), momentum=0.5)
    _train(first, range(5))
    second = OneWorker(tiny.Build(dropout=0.5, norm=True)(), momentum=0.5)
    second.load(first.snapshot().tensors)
    torch.manual_seed(99)
    _train(second, range(5, 12))
    for name, tensor in whole.snapshot().tensors.items():
        assert torch.equal(tensor, second.snapshot().tensors[name])
    second.load({"parameters": whole.snapshot().tensors["parameters"]})
    assert not second.sgd.velocity.vector_K.any()


def test_seeds_of_minibatches_differ():
    seeds = {minibatch_seed(s, e, n) for s in range(3) for e in range(5) for n in range(50)}
    assert len(seeds) == 750


def test_learning_rate_schedules():
    assert [Rate(0.2, 3, 10)(number) for number in (0, 9)] == [0.2, 0.2]
    warm = Rate(0.2, 1, 10, warmup=0.5)
    assert [warm(n) for n in (0, 5, 9)] == pytest.approx([0.02, 0.2, 0.2])
    assert warm(2) == pytest.approx(0.2 * (0.1 + 0.9 * 0.4))
    falling = Rate(0.2, 2, 10, decay=0.25)
    assert [falling(0), falling(5)] == pytest.approx([0.05, 0.025])


def test_a_loss_that_is_not_finite_names_epoch_and_minibatch():
    def loss(outputs, targets):
        return outputs.sum() * float("nan"), targets.sum()

    parts = tiny.Build()()
    world = OneWorker(replace(parts, loss=loss))
    before = world.sgd.parameters.vector_K.clone()
    with pytest.raises(Speech3Error, match=r"epoch 2, minibatch 7: the loss is nan.*learning_rate"):
        _train(world, [7], epoch=2)
    assert torch.equal(world.sgd.parameters.vector_K, before)
    assert world.snapshot().states_M[7] == 0


def test_a_state_of_another_model_is_not_loaded():
    with pytest.raises(MismatchError):
        Sgd(nn.Linear(2, 2)).load({"parameters": torch.zeros(48)})
