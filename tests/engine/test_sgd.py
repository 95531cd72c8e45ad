"""Flat parameters and plain SGD against PyTorch's optimizer."""

import copy

import pytest
import torch
from torch import nn

from speech3.engine.flat import flatten
from speech3.engine.sgd import Sgd, minibatch_seed, train_minibatches
from speech3.errors import Speech3Error


class _Batches:
    """Random inputs whose class is the largest of them."""

    def __len__(self):
        return 12

    def draw(self, epoch, number):
        generator = torch.Generator().manual_seed(100 * epoch + number)
        inputs = torch.randn(16, 5, generator=generator)
        return inputs, inputs.argmax(1)


def _loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets), (outputs.argmax(1) == targets).sum()


def _model(dropout=0.0):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Dropout(dropout), nn.Linear(7, 5))


def _train(model, sgd, numbers, rate=0.3, epoch=1):
    return list(
        train_minibatches(model, sgd, _Batches(), _loss, epoch=epoch, numbers=numbers, learning_rate=rate, seed=1)
    )


def test_flat_parameters_are_the_models_own():
    model = _model()
    before = copy.deepcopy(model)
    flat = flatten(model)
    for parameter, view, old in zip(model.parameters(), flat.views, before.parameters(), strict=True):
        assert torch.equal(parameter, old)
        assert parameter.data_ptr() == view.data_ptr()
        assert (parameter.data_ptr() - flat.vector_P.data_ptr()) % 64 == 0
    assert flat.vector_P.count_nonzero() == sum(p.count_nonzero() for p in model.parameters())
    flat.vector_P.fill_(2)
    assert all((parameter == 2).all() for parameter in model.parameters())
    slot = flat.zeros_like()
    slot.views[1].fill_(1)
    assert slot.vector_P.sum() == flat.views[1].numel()
    assert slot.vector_P[flat.views[1].storage_offset()] == 1


def test_flat_refuses_other_types():
    with pytest.raises(ValueError, match="float64"):
        flatten(nn.Linear(2, 2).double())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_steps_are_those_of_torch_sgd(momentum, weight_decay):
    model = _model()
    stock = copy.deepcopy(model)
    optimizer = torch.optim.SGD(stock.parameters(), lr=0.3, momentum=momentum, weight_decay=weight_decay)
    steps = _train(model, Sgd(model, momentum=momentum, weight_decay=weight_decay), range(12))
    for step in steps:
        inputs, targets = _Batches().draw(1, step.number)
        optimizer.zero_grad()
        loss, correct = _loss(stock(inputs), targets)
        loss.backward()
        optimizer.step()
        assert step.loss == pytest.approx(loss.item(), rel=1e-5)
        assert (step.correct, step.frames) == (correct, 16)
    for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_velocity_holds_the_learning_rate():
    # DESIGN.md's server step: after the rate is halved, v still carries pushes made at the old rate.
    model = nn.Linear(1, 1, bias=False)
    sgd = Sgd(model, momentum=0.5)
    start = model.weight.item()
    sgd.step([torch.ones(1, 1)], 0.2)
    sgd.step([torch.ones(1, 1)], 0.1)
    assert model.weight.item() == pytest.approx(start - 0.2 - (0.5 * 0.2 + 0.1))


def test_dropout_is_the_same_whenever_a_minibatch_is_computed():
    whole, parts = _model(0.5), _model(0.5)
    _train(whole, Sgd(whole), range(12))
    sgd = Sgd(parts)
    _train(parts, sgd, range(5))
    torch.manual_seed(99)
    _train(parts, sgd, range(5, 12))
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(a, b)
    seeds = {minibatch_seed(s, e, n) for s in range(3) for e in range(5) for n in range(50)}
    assert len(seeds) == 750


def test_a_loss_that_is_not_finite_names_epoch_and_minibatch():
    model = _model()
    sgd = Sgd(model)
    _train(model, sgd, range(3))
    before = sgd.parameters.vector_P.clone()

    def loss(outputs, targets):
        return outputs.sum() * float("nan"), targets.sum()

    with pytest.raises(Speech3Error, match=r"epoch 2, minibatch 7: the loss is nan.*learning_rate"):
        list(train_minibatches(model, sgd, _Batches(), loss, epoch=2, numbers=[7], learning_rate=0.3, seed=1))
    assert torch.equal(sgd.parameters.vector_P, before)
