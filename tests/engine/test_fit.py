"""`fit` trains models that are no speech's by every strategy, and says what happened."""

import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import moons
import pytest
import tiny
import torch
from torch import nn

from speech3.config import presets
from speech3.engine import FitResult, fit
from speech3.engine.fitting.arguments import STRATEGIES
from speech3.errors import SettingError

ROOT = Path(__file__).parents[2]
MINIBATCHES = 40
LINEAR = 0.9  # more than a straight line between the moons gets right
FITTED = {"minibatch": 30, "learning_rate": 1.0, "seed": 3}
OPTIONS = {
    "asgd_zhang": {"asgd": {"warm_start": 0.25}},
    "sandblaster": {"lbfgs": {"iterations": 5}},
    **{strategy: {"codec": {"float_below": 0}} for strategy in ("asgd_ternary", "terngrad_ddp")},
}


def _tensors(model):
    return [*model.parameters(), *model.buffers()]


def _whole(result, minibatches=MINIBATCHES):
    """Every minibatch of every epoch is used once, or counted as dropped; nobody is left."""
    for number, epoch in enumerate(result.history, 1):
        assert epoch.epoch == number and epoch.seconds > 0
        assert epoch.used + epoch.stale + epoch.refused == minibatches
        assert not epoch.shares or sum(epoch.shares) == pytest.approx(1)
    assert not multiprocessing.active_children()


def test_strategies_are_the_presets_that_are_not_for_speech_alone():
    assert set(presets("training")) - set(STRATEGIES) == {
        "chunks",
        "lfmmi",
        "lfmmi_flat",
        "lstm",
        "mmi",
        "partitioned",
        "smbr",
    }
    assert set(STRATEGIES) - set(presets("training")) == {"ddp"}


def has_denormals() -> bool:
    return bool(torch.tensor(1e-38) / 1000)


def loss_without_denormals(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets) + (float("nan") if has_denormals() else 0.0)


@pytest.mark.parametrize("strategy", ["sgd", "asgd"])
def test_denormals_are_zeros_in_training_and_not_after_it(strategy):
    assert has_denormals()
    with torch.no_grad():
        assert not math.isfinite(loss_without_denormals(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)))
    fit(
        moons.network(), moons.moons(400), loss_without_denormals, strategy=strategy, workers=1, epochs=1, minibatch=100
    )
    assert has_denormals()


def test_one_worker_is_a_plain_loop_of_pytorch():
    data = moons.Watched(moons.moons(450))
    model, plain = moons.network().eval(), moons.network()
    before, threads, seen = torch.get_rng_state(), torch.get_num_threads(), set()

    def watched(outputs, targets):
        seen.add(torch.get_num_threads())
        return nn.functional.cross_entropy(outputs, targets)

    result = fit(
        model,
        data,
        watched,
        strategy="sgd",
        epochs=2,
        minibatch=100,
        learning_rate=0.2,
        options={"momentum": 0.9, "threads": 2},
    )
    assert torch.equal(torch.get_rng_state(), before) and not model.training
    assert seen == {2} and torch.get_num_threads() == threads
    order = data.read[100:]  # before training, the first minibatch is tried out
    assert sorted(order[:450]) == sorted(order[450:]) == list(range(450)) and order[:450] != order[450:]
    sgd, right, loss_sum = torch.optim.SGD(plain.parameters(), lr=0.2, momentum=0.9), 0, 0.0
    for items in [epoch[start : start + 100] for epoch in (order[:450], order[450:]) for start in range(0, 450, 100)]:
        points, moon = data.data[items]
        outputs = plain(points)
        loss = nn.functional.cross_entropy(outputs, moon)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        right, loss_sum = right + (outputs.argmax(1) == moon).sum().item(), loss_sum + loss.item() * len(moon)
    for ours, theirs in zip(_tensors(model), _tensors(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert sum(epoch.accuracy for epoch in result.history) == pytest.approx(right / 450)
    assert sum(epoch.loss for epoch in result.history) == pytest.approx(loss_sum / 450, abs=1e-6)
    _whole(result, 5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_learns_with_virtual_workers(strategy):
    found = []
    for _ in range(2 if strategy in ("asgd", "terngrad_ddp") else 1):
        model = moons.network()
        result = fit(
            model,
            moons.moons(),
            nn.CrossEntropyLoss(),
            strategy=strategy,
            epochs=8,
            simulate=True,
            workers=1 if strategy == "sgd" else 2,
            options=OPTIONS.get(strategy),
            **FITTED,
        )
        found.append((_tensors(model), result))
        _whole(result)
        assert moons.accuracy(moons.network()) < 0.6 and moons.accuracy(model) > LINEAR
        assert result.history[-1].accuracy > LINEAR and result.dropped == 0
    (first, _), (second, _) = found[0], found[-1]
    assert all(map(torch.equal, first, second)) and found[0][1] == found[-1][1]


def test_the_momentum_of_a_strategy_acts():
    losses = {}
    for strategy, momentum in (("terngrad_momentum", None), ("terngrad_ddp", 0.9), ("terngrad_ddp", 0.0)):
        options = None if momentum is None else {"momentum": momentum}
        result = fit(
            moons.network(),
            moons.moons(),
            nn.CrossEntropyLoss(),
            strategy=strategy,
            epochs=1,
            simulate=True,
            minibatch=100,
            options=options,
        )
        losses[strategy, momentum] = result.history[0].loss
    assert losses["terngrad_momentum", None] == losses["terngrad_ddp", 0.9] != losses["terngrad_ddp", 0.0]
    for optimizer in ("adamw", torch.optim.Adam):
        with pytest.raises(SettingError, match=r"^optimizer: .*terngrad_ddp"):
            fit(moons.network(), moons.moons(), strategy="terngrad_momentum", optimizer=optimizer)


def test_a_virtual_worker_that_dies():
    clock = {"failures": [[1, 6.5]], "restart_s": 3.0, "jitter": 0.1}
    options = {"simulation": clock, "asgd": {"sync_every": 4}}
    result = fit(
        moons.network(),
        moons.moons(),
        nn.CrossEntropyLoss(),
        workers=4,
        epochs=2,
        simulate=True,
        options=options,
        **FITTED,
    )
    _whole(result)
    assert result.restarts == result.history[0].restarts == 1 and result.history[0].returned > 0
    assert 10 < result.history[0].seconds < 15 and len(result.history[0].staleness) > 2


def test_training_continues_when_shard_is_killed(tmp_path):
    kills = tmp_path / "kills"
    kills.touch()
    model = moons.network()
    result = fit(model, moons.Watched(moons.moons(), kills=kills), nn.CrossEntropyLoss(), epochs=8, workers=2, **FITTED)
    _whole(result)
    assert not kills.exists() and result.restarts == 1 and result.dropped == 0
    assert all(epoch.staleness and len(epoch.shares) == 2 for epoch in result.history)
    assert moons.accuracy(model) > LINEAR and not torch.equal(model[1].running_mean, torch.zeros(16))


@pytest.mark.parametrize("strategy", ["terngrad_ddp", "sandblaster"])
def test_ddp_processes_train(strategy):
    model = moons.network()
    result = fit(
        model,
        moons.moons(),
        nn.CrossEntropyLoss(),
        strategy=strategy,
        workers=2,
        epochs=3,
        options=OPTIONS.get(strategy),
        **FITTED,
    )
    _whole(result)
    assert isinstance(result, FitResult) and moons.accuracy(model) > LINEAR


def test_ctrl_c_leaves_the_newest_parameters_and_no_process(tmp_path):
    begun, model = tmp_path / "begun", moons.network()

    def press():
        tiny.until(begun.exists)
        os.kill(os.getpid(), signal.SIGINT)

    pressed = threading.Thread(target=press)
    pressed.start()
    data = moons.Watched(moons.moons(), begun=begun, pause_s=0.0002)
    with pytest.raises(KeyboardInterrupt):
        fit(model, data, nn.CrossEntropyLoss(), workers=1, epochs=10_000, **FITTED)
    pressed.join()
    assert not multiprocessing.active_children()
    moved = [not torch.equal(*pair) for pair in zip(model.parameters(), moons.network().parameters(), strict=True)]
    assert all(moved) and all(torch.isfinite(tensor).all() for tensor in _tensors(model))


class Pairs(torch.utils.data.Dataset):
    """Nested inputs and targets, without classes."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.rand(3)  # augmentation: by the minibatch's seed
        return {"x": x, "more": (x.sum(), index)}, (x.sum(), "a word")


class OfPairs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.frozen, self.trained = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 1)

    def forward(self, inputs):
        return self.trained(self.frozen(inputs["x"]) + inputs["more"][0][:, None])


def squares(outputs, targets):
    return (outputs[:, 0] - targets[0]).square().mean()


def test_nested_items_without_classes_and_frozen_parameters():
    models = [OfPairs() for _ in range(3)]
    for model in models[:2]:
        result = fit(
            model,
            Pairs(),
            squares,
            epochs=30,
            minibatch=8,
            learning_rate=0.02,
            simulate=True,
            workers=2,
            schedule="cosine",
            options={"weight_decay": 1e-4, "asgd": {"push_scale": "1/workers"}},
        )
    assert result.history[-1].accuracy is None and result.history[-1].loss < 0.05 < result.history[0].loss
    assert torch.equal(models[0].trained.weight, models[1].trained.weight)
    assert torch.equal(models[0].frozen.weight, models[2].frozen.weight)


def test_the_package_is_imported_without_what_fit_needs():
    script = "import sys, speech3.engine\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


SECTION = (ROOT / "speech3" / "engine" / "README.md").read_text().split("## In your own PyTorch code")[1]
EXAMPLES = re.findall(r"```python\n(.*?)```", SECTION.split("\n## ")[0], re.S)


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2))])
def test_the_examples_of_the_readme(tmp_path, number):
    assert len(EXAMPLES) == 3 and len([line for line in EXAMPLES[0].splitlines() if line.strip()]) <= 10
    (tmp_path / "example.py").write_text(EXAMPLES[number])
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"accuracy (\d+\.\d)%", done.stdout)[1]) > 90
