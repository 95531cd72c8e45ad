"""The server's step against DESIGN.md's formulas in float64, its fast form against the plain one, and torch.optim.SGD.

Axes: P parameters.
"""

import numpy as np
import pytest
import tiny
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from speech3.config import AsgdConfig
from speech3.engine import server_optimizer
from speech3.engine.backends.one_process import Simulated, Times
from speech3.engine.server_optimizer import (
    ServerOptimizer,
    ServerVectors,
    ShardVectors,
    server_optimizer_of,
    step_torch,
)

P = 1000
# The server's slots and the kind of push; few, since each set of them is compiled for itself.
RULES = [
    (ServerOptimizer(), True),
    (ServerOptimizer(0.2, decay=0.7), True),
    (ServerOptimizer(None, momentum=0.9), True),
    (ServerOptimizer(0.25), False),
    (ServerOptimizer(1.0, momentum=0.9, projection=True), False),
    (ServerOptimizer(0.5, momentum=0.9, projection=True, decay=0.9), True),
    (ServerOptimizer(0.3, adagrad=0.05, decay=0.9), False),
    (ServerOptimizer(1.0, momentum=0.9, adagrad=0.05, projection=True, decay=0.9), True),
]


def _tensor(values):
    return None if values is None else torch.from_numpy(values.astype(np.float32))


def _case(optimizer, local, seed=0):
    """Old state, an empty new one, and a shard's side that fetched other parameters than the old ones."""
    random = np.random.default_rng(seed)
    old_P, fetched_P = random.standard_normal(P), random.standard_normal(P)
    push_P = 0.02 * random.standard_normal(P)
    velocity_P = 0.01 * random.standard_normal(P) - (0.3 * push_P if optimizer.projection else 0)
    squares_P = random.random(P)
    slots = (_tensor(velocity_P) if optimizer.momentum else None, _tensor(squares_P) if optimizer.adagrad else None)
    old = ServerVectors(_tensor(old_P), *slots)
    new = ServerVectors(*(None if t is None else torch.full_like(t, 7.0) for t in (old.parameters_P, *slots)))
    if local:
        return old, new, ShardVectors(_tensor(fetched_P - push_P), _tensor(fetched_P), None)
    return old, new, ShardVectors(_tensor(fetched_P), None, _tensor(push_P))


def _formulas(optimizer, old, own, staleness, minibatches):
    """DESIGN.md's definitions, in float64."""

    def double(tensor):
        return None if tensor is None else tensor.numpy().astype(np.float64)

    p, v, s = double(old.parameters_P), double(old.velocity_P), double(old.squares_P)
    d = double(own.fetched_P) - double(own.parameters_P) if own.push_P is None else double(own.push_P)
    plain = d
    if optimizer.projection and plain @ v < 0:
        d = d - (plain @ v) / (v @ v) * v
    scale = {None: 1 / minibatches}.get(optimizer.push_scale, optimizer.push_scale)
    if s is not None:
        s = s + d * d
        d, scale = optimizer.adagrad / np.sqrt(s) * d, 1.0
    d = scale * d * optimizer.decay**staleness
    if v is not None:
        v = d = optimizer.momentum * v + d
    return p - d, v, s, np.sqrt(d @ d) / np.sqrt(p @ p)


@pytest.mark.parametrize("staleness", [0, 3])
@pytest.mark.parametrize(("optimizer", "local"), RULES)
def test_step_equals_formulas_in_float64(optimizer, local, staleness):
    old, new, own = _case(optimizer, local)
    p, v, s, length = _formulas(optimizer, old, own, staleness, 4)
    before = old.parameters_P.clone()
    got = optimizer.step(old, new, own, staleness=staleness, minibatches=4)
    np.testing.assert_allclose(new.parameters_P, p, rtol=0, atol=2e-6)
    if v is not None:
        np.testing.assert_allclose(new.velocity_P, v, rtol=0, atol=1e-6)
    if s is not None:
        np.testing.assert_allclose(new.squares_P, s, rtol=1e-5)
    assert got == pytest.approx(length, rel=1e-4)
    assert torch.equal(old.parameters_P, before)
    assert torch.equal(own.parameters_P, new.parameters_P)
    if local:
        assert torch.equal(own.fetched_P, new.parameters_P)
    else:
        assert not own.push_P.any()


@pytest.mark.parametrize(("optimizer", "local"), RULES)
def test_one_pass_equals_step_torch(optimizer, local, monkeypatch):
    results = []
    for step in (server_optimizer._step_numba, step_torch):
        monkeypatch.setattr(server_optimizer, "_step_numba", step)
        old, new, own = _case(optimizer, local)
        norms = optimizer.step(old, new, own, staleness=2, minibatches=3)
        results.append((norms, new, own))
    (norm, new, own), (norm_torch, new_torch, own_torch) = results
    assert norm == pytest.approx(norm_torch, rel=1e-5)
    for name in ("parameters_P", "velocity_P", "squares_P"):
        if getattr(new, name) is not None:
            torch.testing.assert_close(getattr(new, name), getattr(new_torch, name), rtol=1e-5, atol=1e-6)
    for name in ("parameters_P", "fetched_P", "push_P"):
        if getattr(own, name) is not None:
            torch.testing.assert_close(getattr(own, name), getattr(own_torch, name), rtol=1e-5, atol=1e-6)


def test_projection_changes_only_pushes_against_momentum():
    optimizer = ServerOptimizer(momentum=0.9, projection=True)
    old, new, own = _case(optimizer, True)
    old.velocity_P.copy_(own.push())
    p, v, _, _ = _formulas(ServerOptimizer(momentum=0.9), old, own, 0, 1)
    optimizer.step(old, new, own, staleness=0, minibatches=1)
    np.testing.assert_allclose(new.velocity_P, v, rtol=0, atol=1e-6)

    old, new, own = _case(optimizer, True)
    against = own.push() - 2 * old.velocity_P
    own.parameters_P.copy_(own.fetched_P - against)
    assert against @ old.velocity_P < 0
    optimizer.step(old, new, own, staleness=0, minibatches=1)
    kept = new.velocity_P - 0.9 * old.velocity_P
    assert abs(float(kept @ old.velocity_P)) < 1e-4 * abs(float(against @ old.velocity_P))
    old, new, own = _case(ServerOptimizer(projection=True), True)
    p, *_ = _formulas(ServerOptimizer(), old, own, 0, 1)
    ServerOptimizer(projection=True).step(old, new, own, staleness=0, minibatches=1)
    np.testing.assert_allclose(new.parameters_P, p, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("optimizer", "local"), [RULES[0], RULES[4], RULES[6], RULES[7]])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("place", [0, 517, P - 1])
def test_length_is_not_finite_if_one_value_is_not(optimizer, local, value, place):
    old, new, own = _case(optimizer, local)
    (own.parameters_P if local else own.push_P)[place] = value
    assert not np.isfinite(optimizer.step(old, new, own, staleness=2, minibatches=1))


def test_push_scale_by_name():
    assert server_optimizer_of(AsgdConfig(), 5).push_scale == pytest.approx(0.2)
    assert server_optimizer_of(AsgdConfig(push_scale="1/accumulated"), 5).scale(0, 3) == pytest.approx(1 / 3)
    assert server_optimizer_of(AsgdConfig(push_scale=0.7), 5).scale(0, 3) == 0.7
    with pytest.raises(ValueError, match=r"push_scale=0: must be above 0"):
        AsgdConfig(push_scale=0.0)
    assert ServerOptimizer(1.0, decay=0.5).scale(4, 1) == 0.5**4


@pytest.mark.parametrize("local", [True, False])
def test_one_worker_that_always_syncs_is_torch_sgd_with_momentum(local):
    config = AsgdConfig(sync_every=1, push_scale=1.0, momentum=0.9, local_updates=local, max_push=10)
    world = Simulated(tiny.Build(weight_decay=0.01)(), config, Times((1.0,), 0.1))
    batches = tiny.Batches()
    world.load(world.snapshot().tensors | {"parameters": world.shards[0].sgd.parameters.vector_K.clone()})
    for epoch in (1, 2):
        list(world.epoch(epoch, tiny.waiting(batches), tiny.rate(0.1, epoch, batches)))

    stock = tiny.model()
    optimizer = torch.optim.SGD(stock.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for epoch in (1, 2):
        for number in range(len(batches)):
            inputs, targets = batches.draw(epoch, number)
            optimizer.zero_grad()
            tiny.loss(stock(inputs), targets)[0].backward()
            optimizer.step()
    ours = tiny.model()
    torch.nn.utils.vector_to_parameters(
        torch.cat([view.flatten() for view in world.shards[0].sgd.parameters.views]), ours.parameters()
    )
    for a, b in zip(ours.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert world.server.version == 24


@pytest.mark.parametrize(("optimizer", "local"), RULES)
def test_warm_up_compiles_step_and_changes_nothing(monkeypatch, optimizer, local):
    """A form: which arguments are missing, for numba compiles each set of them for itself."""
    forms = []
    monkeypatch.setattr(server_optimizer, "_one_pass", lambda *args: forms.append(tuple(map(type, args))) or (0.0,) * 3)
    old, new, own = _case(optimizer, local)
    before = [tensor.clone() for tensor in (old.parameters_P, own.parameters_P)]
    optimizer.warm_up(old, own)
    assert torch.equal(old.parameters_P, before[0]) and torch.equal(own.parameters_P, before[1])
    warm = set(forms)
    for staleness in (0, 3):
        optimizer.step(old, new, own, staleness=staleness, minibatches=2)
    assert warm and warm == set(forms)


class _Copies(TorchDispatchMode):
    """The addresses from which tensors are copied."""

    def __init__(self):
        super().__init__()
        self.sources = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == "copy_":
            self.sources.append(args[1].data_ptr())
        return func(*args, **(kwargs or {}))


def test_the_new_parameters_leave_the_servers_gpu_once():
    """What a shard keeps as fetched is a copy of its own parameters."""
    old, new, own = _case(ServerOptimizer(), True)
    with _Copies() as copies:
        step_torch(old, new, own, 1.0, 0.0, 0.0, 0.0)
    assert copies.sources == [new.parameters_P.data_ptr(), own.parameters_P.data_ptr()]
