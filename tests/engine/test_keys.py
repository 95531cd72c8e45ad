"""Every key of ``training`` in every world: it acts, or it is refused with the remedy; none is without effect."""

import moons
import numpy as np
import pytest
import torch
from torch import nn

from speech3.config import AsgdConfig, CodecConfig, TrainingConfig
from speech3.engine import fit, trainer as opening
from speech3.engine.backends import ddp, shared
from speech3.engine.fitting.dataset import data_of
from speech3.engine.fitting.fit import Build
from speech3.engine.trainer import Trainer, check_workers, open_backends, rate_of, times_of
from speech3.errors import SettingError, Speech3Error

DATA = {  # of the model, its minibatches and its loss, which every world is given
    "objective", "discriminative", "lfmmi", "minibatch", "sequence", "targets_inside", "chunk_context",
    "label_smoothing",
    "frequency_warp", "speeds", "time_masks", "time_mask_frames", "frequency_masks", "frequency_mask_bins",
    "chunk_frames", "dtype",
}  # fmt: skip
LOOP = {  # of the loop over epochs, which is around every world
    "max_epochs",
    "schedule",
    "halve_below",
    "stop_below",
    "average",
    "evaluations",
    "keep_checkpoints",
    "checkpoint_s",
}
PLACE = {"world", "workers", "model_partitions", "device", "threads", "precision", "cuda_graph"}  # test_fit_trouble
GROUPS = {"asgd", "lbfgs", "cluster", "simulation"}  # each names the world that it is for
ELSEWHERE = {"group_lasso"}  # tests/training/test_group_lasso.py
STEPS = {
    "learning_rate": {"learning_rate": 0.05},
    "warmup": {"warmup": 1.0},
    "final_rate": {"schedule": "exponential", "final_rate": 0.5},
    "optimizer": {"optimizer": "adamw"},
    "betas": {"optimizer": "adamw", "betas": (0.5, 0.9)},
    "momentum": {"momentum": 0.5},
    "weight_decay": {"weight_decay": 0.1},
    "gradient_clip": {"gradient_clip": 0.01},
    "codec": {"codec": "ternary"},
}
BEFORE = {"betas": {"optimizer": "adamw"}, "final_rate": {"schedule": "exponential"}}  # what these are compared with
BY_LBFGS = {"optimizer", "betas", "momentum", "gradient_clip", "codec"}
CLOCK = {"compute_s": 1.0, "sync_s": 0.1}
WORLDS = {
    "sgd": ({"world": "sgd", "workers": 1}, {"codec"}),
    "ddp": ({"world": "ddp"}, set()),
    "shared": ({"world": "shared"}, set()),
    "sandblaster": ({"world": "sandblaster"}, BY_LBFGS),
    "simulated asgd": ({"world": "simulated", "simulation": CLOCK}, set()),
    "simulated asgd, gradients": (
        {"world": "simulated", "simulation": CLOCK, "asgd": {"local_updates": False}},
        {"optimizer", "betas"},
    ),
    "simulated synchronous": ({"world": "simulated", "simulation": {**CLOCK, "strategy": "synchronous"}}, set()),
    "simulated sandblaster": ({"world": "simulated", "simulation": {**CLOCK, "strategy": "sandblaster"}}, BY_LBFGS),
}


def test_every_key_is_in_the_table():
    sets = [DATA, LOOP, PLACE, GROUPS, ELSEWHERE, set(STEPS)]
    assert set().union(*sets) == set(TrainingConfig.model_fields) == {key for keys in sets for key in keys}
    assert sum(map(len, sets)) == len(TrainingConfig.model_fields)


def _config(keys):
    training = TrainingConfig(
        **{
            "workers": 2,
            "minibatch": 30,
            "learning_rate": 0.1,
            "schedule": "constant",
            "max_epochs": 2,
            **keys,
            "lbfgs": {"iterations": 3},
            "asgd": {"warm_start": 0.5, "sync_every": 1, **keys.get("asgd", {})},
        }
    )
    check_workers(training)
    return training


def _build(training):
    data = data_of(moons.moons(300), training.minibatch, None, None, 1)
    return Build(moons.network(), data, nn.CrossEntropyLoss(), training, 1)


def _trained(keys):
    """The parameters after two epochs in this process."""
    training = _config(keys)
    build = _build(training)
    clock = times_of(training.simulation, training.workers) if training.world == "simulated" else None
    trainer = Trainer(*open_backends(training, build.parts("cpu"), build, clock=clock), training.asgd.warm_start)
    for epoch in (1, 2):
        list(trainer.epoch(rate_of(training.learning_rate, epoch, trainer.minibatches, training)))
        trainer.begin_epoch()
    return trainer.tensors["parameters"]


def _given(keys, monkeypatch):
    """What the processes of a world are given, without starting any."""
    training, given = _config(keys), []

    def world(*args, **kwargs):
        given.append((*args, kwargs))

    monkeypatch.setattr(shared, "Shared", world)
    monkeypatch.setattr(ddp, "Ddp", world)
    monkeypatch.setattr(opening, "Sandblaster", world)
    build = _build(training)
    open_backends(training, build.parts("cpu"), build)
    parts, rates = build.parts("cpu"), [rate_of(training.learning_rate, epoch, 10, training)(0) for epoch in (1, 2)]
    settings = [each for each in given[0] if isinstance(each, AsgdConfig | CodecConfig | dict)]
    return repr((settings, parts.optimizer, parts.betas, parts.weight_decay, parts.max_norm, rates))


@pytest.mark.parametrize("key", STEPS)
@pytest.mark.parametrize("world", WORLDS)
def test_a_key_acts_or_is_refused(world, key, monkeypatch):
    where, refused = WORLDS[world]
    keys = {**where, **STEPS[key]}
    if key in refused:
        with pytest.raises(
            (Speech3Error, ValueError), match=r"remove it|remove them|supports only none|needs asgd\.local"
        ):
            _config(keys)
    elif world.startswith(("simulated", "sgd")):
        found, plain = _trained(keys), _trained({**where, **BEFORE.get(key, {})})
        assert found.isfinite().all() and not torch.equal(found, plain)
    else:
        assert _given(keys, monkeypatch) != _given({**where, **BEFORE.get(key, {})}, monkeypatch)


def test_momentum_is_the_servers_and_steps_keep_their_size_at_the_end_of_the_warm_start(monkeypatch):
    keys = {**WORLDS["simulated asgd"][0], "workers": 1, "momentum": 0.9}
    wanted = {"warm_start": 0.5, "sync_every": 1, "push_scale": 1.0, "max_push": np.inf}
    # One worker that always pushes computes what plain SGD does, across the end of the warm start.
    found, plain = _trained({**keys, "asgd": wanted}), _trained({"world": "sgd", "workers": 1, "momentum": 0.9})
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
    for momenta in ({"momentum": 0.5, "asgd": {"momentum": 0.5}}, {"asgd": {"momentum": 0.5}}):
        assert TrainingConfig(**momenta).server.momentum == 0.5
    with pytest.raises(SettingError, match=r"momentum=0\.9 and training\.asgd\.momentum=0\.5"):
        _config({**keys, "asgd": {"momentum": 0.5}})


@pytest.mark.parametrize(
    "codec",
    [
        {"share": 0.1},
        {"kind": "topk", "bucket": 64},
        {"kind": "bf16", "clip": 2.0},
        {"kind": "ternary", "share": 0.1},
        {"float_last": True},
    ],
)
def test_keys_of_another_codec_are_refused(codec):
    with pytest.raises(SettingError, match=r"training\.codec\.\w+=.*has no effect with"):
        _config({"world": "shared", "codec": codec})
    _config({"world": "shared", "codec": {"down": "ternary", "bucket": 8, "float_below": 3}})


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ddp", {"asgd": {"sync_every": 1}}),
        ("sgd", {"lbfgs": {"history": 3}}),
        ("asgd", {"lbfgs": {"history": 3}}),
        ("asgd", {"betas": (0.5, 0.9)}),
        ("sandblaster", {"asgd": {"sync_every": 1}}),
        ("sgd", {"final_rate": 0.1}),
    ],
)
def test_options_of_another_strategy_are_refused(strategy, options):
    name = next(iter(options))
    with pytest.raises(Speech3Error, match=f"^options: {name} has no effect here: .*strategy='{strategy}'"):
        fit(moons.network(), moons.moons(300), nn.CrossEntropyLoss(), strategy=strategy, minibatch=30, options=options)
