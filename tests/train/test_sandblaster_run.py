"""World sandblaster from a config: its preset, what cannot be, and a run that learns and goes on in mid-epoch."""

import numpy as np
import pytest
import torch

from speech3.config import LbfgsConfig, TrainConfig, TrainingConfig, load_preset
from speech3.engine.papers.sandblaster import Sandblaster
from speech3.engine.trainer import check_epoch, check_workers
from speech3.errors import SettingError, Speech3Error
from speech3.frames.packed import write_frames
from speech3.hmm.model import PdfsOnly
from speech3.models import load_network
from speech3.runtime import read_metrics
from speech3.train import train

DIM, SENONES = 6, 6


def _config(root="none", **training):
    return TrainConfig(
        frames=f"{root}/frames",
        hmm=f"{root}/hmm",
        model={
            "family": "dnn",
            "layers": 1,
            "width": 16,
            "normalization": "batch",
            "dropout": 0.1,
            "left_context": 1,
            "right_context": 1,
        },
        training=TrainingConfig(**{"world": "sandblaster", "schedule": "constant", "minibatch": 64, **training}),
    )


def test_the_preset_is_of_this_world():
    assert load_preset(TrainingConfig, "training", "sandblaster").world == "sandblaster"


def test_more_iterations_than_minibatches():
    training = _config(lbfgs=LbfgsConfig(batches=3, iterations=5)).training
    check_epoch(training, 15, 0.0)
    with pytest.raises(SettingError, match=r"training\.lbfgs: batches=3 with iterations=5 .* 14 "):
        check_epoch(training, 14, 0.0)


def test_a_gradient_that_is_cut_down():
    with pytest.raises(SettingError, match=r"training\.gradient_clip=1"):
        check_workers(_config(gradient_clip=1.0).training)
    for keys in ({"optimizer": "adamw"}, {"momentum": 0.9}):
        with pytest.raises(SettingError, match=r"training\.optimizer and training\.momentum"):
            check_workers(_config(**keys).training)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Frames around one point a senone, with noise: 25 minibatches."""
    root, rng = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    centers = rng.normal(0, 2.5, (SENONES, DIM)) + 10
    for name, utterances in (("train", 40), ("heldout", 8)):
        labels = {f"{name}{i}": rng.integers(0, SENONES, 8).repeat(5).astype(np.int32) for i in range(utterances)}
        feats = {u: (centers[x] + rng.normal(0, 1.5, (40, DIM))).astype(np.float32) for u, x in labels.items()}
        write_frames(root / "frames" / f"{name}.frames", feats, labels, SENONES, utterances=list(feats), info={})
    PdfsOnly(SENONES, "made by hand").save(root / "hmm")
    return root


def test_it_learns_and_resumes_in_the_middle_of_an_epoch(corpus, tmp_path, monkeypatch):
    """Two workers, killed in the second epoch before its fourth iteration is whole, against one who was left alone."""
    keys = {"max_epochs": 2, "checkpoint_s": 0.0, "lbfgs": LbfgsConfig(batches=2, iterations=3)}
    whole, config = train(_config(corpus, **keys), tmp_path / "whole"), _config(corpus, workers=2, **keys)
    records = [each for each in read_metrics(tmp_path / "whole" / "metrics.jsonl") if each["event"] == "epoch"]
    assert records[1]["train_loss"] < records[0]["train_loss"] and whole["heldout_accuracy"] > 0.7
    assert [each["versions"] for each in records] == [6, 6] and [each["frames"] for each in records] == [4800, 9600]
    accepted, count = [], Sandblaster.count

    def counted(backend, numbers, seen, versions=0):
        if versions and len(accepted) == most:
            raise KeyboardInterrupt
        accepted.extend([numbers] * versions)
        count(backend, numbers, seen, versions)

    monkeypatch.setattr(Sandblaster, "count", counted)
    most = 9
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "killed")
    most = 12
    train(config, tmp_path / "killed")
    assert len(accepted) == 12  # none twice
    parameters = [list(load_network(tmp_path / name)[0].parameters()) for name in ("whole", "killed")]
    for mine, theirs in zip(*parameters, strict=True):
        torch.testing.assert_close(theirs, mine, rtol=0.05, atol=0.02)  # sums in another order, over 12 iterations


def test_simulated_workers_learn_the_same_on_a_clock_of_their_own(corpus, tmp_path):
    keys = {"max_epochs": 2, "lbfgs": LbfgsConfig(iterations=4)}
    simulation = {"compute_s": 0.5, "sync_s": 0.01, "strategy": "sandblaster"}
    found = {}
    for name, more in {"real": {}, "virtual": {"world": "simulated", "workers": 16, "simulation": simulation}}.items():
        train(_config(corpus, **keys, **more), tmp_path / name)
        records = read_metrics(tmp_path / name / "metrics.jsonl")
        found[name] = [each for each in records if each["event"] == "epoch"]
    for real, virtual in zip(found["real"], found["virtual"], strict=True):
        assert virtual["train_loss"] == pytest.approx(real["train_loss"], rel=0.02)  # running means of 16, not of one
        assert (virtual["frames"], virtual["versions"]) == (real["frames"], real["versions"])
        assert virtual["bytes_per_minibatch"]["down"] > 0
    assert found["virtual"][0]["seconds"] > 5 * 0.5  # 25 minibatches by 16 workers, five times at least
    with pytest.raises(Speech3Error, match=r"training\.gradient_clip=1: .*line search of sandblaster"):
        check_workers(_config(gradient_clip=1.0, **keys, **more).training)
