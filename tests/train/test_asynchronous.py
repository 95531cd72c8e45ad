"""Whole runs with several workers: they learn, account for every minibatch, and go on in the middle of an epoch.

A shard takes seconds to start, so runs with real processes are few and looked at by several tests.
"""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

from speech3.config import DnnConfig, TrainConfig, TrainingConfig
from speech3.engine import shard as shard_module
from speech3.engine.backends.one_process import OneWorker, Simulated
from speech3.engine.backends.processes import Unkillable
from speech3.errors import Speech3Error, TrainingError
from speech3.frames.packed import open_packed, write_frames
from speech3.hmm.model import PdfsOnly
from speech3.io.checkpoint import load_tensors
from speech3.models import load_network, logits
from speech3.runtime import read_metrics
from speech3.train import run as run_module, train
from speech3.train.parts import BuildParts
from speech3.train.rundir import RunDirectory
from speech3.train.simulation import own_strategies, simulate

DIM, SENONES, FRAMES, HELDOUT = 6, 6, 40 * 40, 8 * 40


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Frames around one point a senone, with noise; senones last for several frames."""
    root, rng = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    centers = rng.normal(0, 2.5, (SENONES, DIM)) + 10
    for name, frames in (("train", FRAMES), ("heldout", HELDOUT)):
        labels = {f"{name}{i}": rng.integers(0, SENONES, 8).repeat(5).astype(np.int32) for i in range(frames // 40)}
        feats = {u: (centers[x] + rng.normal(0, 1.5, (40, DIM))).astype(np.float32) for u, x in labels.items()}
        write_frames(root / "frames" / f"{name}.frames", feats, labels, SENONES, utterances=list(feats), info={})
    PdfsOnly(SENONES, "made by hand").save(root / "hmm")
    return root


def _config(corpus, model=(), init=None, asgd=(), **training):
    """100 minibatches an epoch."""
    values = {
        "minibatch": 16,
        "learning_rate": 0.1,
        "max_epochs": 3,
        "schedule": "constant",
        "world": "simulated",
        "workers": 2,
        "asgd": {"warm_start": 0.5, **dict(asgd)},
        "simulation": {"compute_s": 0.01, "sync_s": 0.001},
        **training,
    }
    return TrainConfig(
        frames=str(corpus / "frames"),
        hmm=str(corpus / "hmm"),
        init=init and str(init),
        training=TrainingConfig(**values),
        model=DnnConfig(**{"layers": 2, "width": 24, "left_context": 2, "right_context": 2, **dict(model)}),
    )


def _epochs(out):
    return [record for record in read_metrics(out / "metrics.jsonl") if record["event"] == "epoch"]


def _accounted(records, minibatches=100):
    """Every minibatch of every epoch was used or dropped, once; the frames are those of the corpus."""
    for before, record in zip([{"frames": 0}, *records[:-1]], records, strict=True):
        ended = record["minibatches"]
        assert ended["used"] + ended["stale"] + ended["refused"] == minibatches
        if not ended["stale"] and not ended["refused"]:
            assert record["frames"] - before["frames"] == FRAMES


def _accuracy(corpus, directory):
    """Of the stored model on the held-out frames, utterance by utterance."""
    model, _, about = load_network(directory)
    heldout, right = open_packed(corpus / "frames" / "heldout.frames"), 0
    for start, stop in zip(heldout.offsets_U1[:-1], heldout.offsets_U1[1:], strict=True):
        scores = logits(model, torch.from_numpy(heldout.frames_NF[start:stop].copy()))
        right += int((scores.argmax(1).numpy() == heldout.senones_N[start:stop]).sum())
    return right / len(heldout), about


def _same(first, second):
    (a, about_a), (b, about_b) = (load_tensors(out / "model.safetensors", "nn") for out in (first, second))
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)

    assert about_a["history"] == about_b["history"]


# The shared world: real processes.


@pytest.fixture(scope="module")
def shared(corpus, tmp_path_factory):
    """A finished run of two shards with normalised layers: half an epoch of warm start, three looks an epoch.

    No shard is so fast that nothing is left for the other.
    """
    out, gate = tmp_path_factory.mktemp("shared") / "out", tiny.Gate(tmp_path_factory.mktemp("gate"), each=5)
    config = _config(corpus, {"normalization": "batch"}, world="shared", evaluations=3, checkpoint_s=0, max_epochs=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "BuildParts", lambda *args: tiny.Gated(BuildParts(*args), gate))
        return out, train(config, out)


def test_two_shards_learn(shared):
    _, about = shared
    assert about["heldout_accuracy"] > 0.8
    assert about["training"]["world"] == "shared" and about["training"]["workers"] == 2


def test_two_shards_account_for_every_minibatch(shared):
    records = _epochs(shared[0])
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    _accounted(records)
    for record, minibatches in zip(records, [50, 100, 100, 100], strict=True):  # the first 50: plain SGD
        assert sum(record["staleness"]) == minibatches >= record["versions"] > 0
        assert sum(shard["minibatches"] for shard in record["shards"]) == minibatches
        assert len(record["shards"]) == 2 and all(shard["minibatches"] >= 5 for shard in record["shards"])


def test_statistics_of_normalisation_travel_with_the_parameters(corpus, shared):
    accuracy, about = _accuracy(corpus, shared[0])
    assert accuracy == pytest.approx(about["heldout_accuracy"], abs=1e-9)
    tensors = load_tensors(shared[0] / "model.safetensors", "nn")[0]
    assert (tensors["layers.norms.0.running_mean"] != 0).any() and (tensors["layers.norms.1.running_var"] != 1).all()


def test_looks_inside_an_epoch_are_recorded(shared):
    looks = [record for record in read_metrics(shared[0] / "metrics.jsonl") if record["event"] == "heldout"]
    epochs = {record["epoch"]: record for record in _epochs(shared[0])}
    assert {1} <= {look["epoch"] for look in looks}  # plain SGD yields after every minibatch, shards now and then
    for look in looks:
        assert look["frames"] < epochs[look["epoch"]]["frames"] and look["seconds"] <= epochs[look["epoch"]]["seconds"]
        assert 0 < look["heldout_accuracy"] <= 1


def test_what_is_the_end_already_is_no_look_inside_the_epoch(corpus, tmp_path, monkeypatch):
    """Progress is told late: the copy that is taken then is of the end."""
    epoch = Simulated.epoch
    monkeypatch.setattr(Simulated, "epoch", lambda *args: iter(list(epoch(*args))))
    train(_config(corpus, evaluations=3, checkpoint_s=0, max_epochs=2), tmp_path / "out")
    looks = [record for record in read_metrics(tmp_path / "out" / "metrics.jsonl") if record["event"] == "heldout"]
    assert [(look["epoch"], look["frames"]) for look in looks] == [(1, 34 * 16)]  # of the warm start
    _accounted(_epochs(tmp_path / "out"))


_SCRIPT = """
import sys
from pathlib import Path
sys.path.append({path!r})
import tiny
from speech3.config import TrainConfig
from speech3.train import run, train
from speech3.train.parts import BuildParts
if __name__ == "__main__":
    config, out, gate, at = sys.argv[1:]
    run.BuildParts = lambda *args: tiny.Gated(BuildParts(*args), tiny.Gate(Path(gate), int(at)))
    train(TrainConfig.model_validate_json(config), out)
"""


@pytest.mark.slow
def test_a_run_of_two_shards_resumes_in_the_middle_of_an_epoch(corpus, tmp_path):
    """Ctrl-C, going on, SIGKILL of everything, going on to the end: one epoch in three lives."""
    config = _config(
        corpus,
        {"width": 256},
        world="shared",
        minibatch=1,
        max_epochs=1,
        checkpoint_s=0,
        learning_rate=0.01,
        asgd={"warm_start": 0.05, "sync_every": 1},
    )
    out, script, at = tmp_path / "out", tmp_path / "script.py", 80  # of the warm start
    script.write_text(_SCRIPT.format(path=tiny.PATH))
    tiny.Gate(tmp_path).close("epoch1")
    for kind, closed in ((signal.SIGINT, 600), (signal.SIGKILL, 1200)):  # later minibatches wait until they are killed
        command = [sys.executable, str(script), config.model_dump_json(), str(out), str(tmp_path), str(closed)]
        stderr = _stopped_behind(at, out, kind, command)
        assert ("KeyboardInterrupt" in stderr) == (kind == signal.SIGINT), stderr
        assert (f"resuming at epoch 1, minibatch {at}" in stderr) == (at > 80)
        tensors, about = load_tensors(max((out / "checkpoints").iterdir()), "nn-checkpoint")
        before, at = at, about["state"]["done"]["used"]
        assert before < at <= closed and int((tensors["states"] == -1).sum()) == at
    about = train(config, out)
    (record,) = _epochs(out)
    _accounted([record], FRAMES)
    # Each minibatch is a frame: trained on once in the three lives; all but the warm start's came in a push.
    assert record["minibatches"]["used"] == record["frames"] == FRAMES
    assert sum(record["staleness"]) == FRAMES - 80 >= record["versions"]
    assert about["heldout_accuracy"] > 0.5


def _stopped_behind(minibatch, out, kind, command):
    """Start a process, send it and its children a signal after a later checkpoint, and return what it said."""
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    later = f"e0001-m{minibatch + 1:08d}"
    tiny.until(lambda: process.poll() is not None or any(p.name > later for p in out.glob("checkpoints/e*")), 120)
    assert process.poll() is None
    os.killpg(process.pid, kind)
    stderr = process.communicate(timeout=60)[1].decode()
    assert process.returncode != 0
    return stderr


def test_synchronous_processes_train(corpus, tmp_path):
    out = tmp_path / "out"
    about = train(_config(corpus, world="ddp", minibatch=32, max_epochs=2, learning_rate=0.2), out)
    assert about["heldout_accuracy"] > 0.7
    records = _epochs(out)
    _accounted(records, 50)
    assert "staleness" not in records[0]


# The simulated world: the same run, in one process.


def test_a_simulation_is_the_same_every_time(corpus, tmp_path):
    config = _config(corpus, workers=3, asgd={"max_staleness": 1, "momentum": 0.3})
    config = config.model_copy(
        update={
            "training": config.training.model_copy(
                update={"simulation": config.training.simulation.model_copy(update={"jitter": 0.5})}
            )
        }
    )
    about = train(config, tmp_path / "one")
    train(config, tmp_path / "two")
    _same(tmp_path / "one", tmp_path / "two")
    records = _epochs(tmp_path / "one")
    _accounted(records)
    assert any(record["minibatches"]["stale"] for record in records)
    assert about["heldout_accuracy"] > 0.6


@pytest.mark.parametrize("asgd", [{"momentum": 0.3}, {"local_updates": False, "adagrad": 0.05, "warm_start": 0}])
def test_a_simulation_resumes_at_the_end_of_an_epoch(corpus, tmp_path, monkeypatch, asgd):
    config = _config(corpus, workers=3, asgd=asgd)
    train(config, tmp_path / "whole")
    end, ends = run_module._Run._end_epoch, []

    def killed(run):
        if ends:
            raise ZeroDivisionError
        ends.append(end(run))

    monkeypatch.setattr(run_module._Run, "_end_epoch", killed)
    with pytest.raises(ZeroDivisionError):
        train(config, tmp_path / "killed")
    monkeypatch.undo()
    train(config, tmp_path / "killed")
    _same(tmp_path / "whole", tmp_path / "killed")


def test_a_table_with_a_worker_that_dies(corpus, tmp_path):
    """In the rows that have such a worker and go on without it."""
    simulation = {"compute_s": 0.01, "sync_s": 0.001, "failures": [(2, 0.3)]}
    config = _config(corpus, max_epochs=1, asgd={"warm_start": 0}, simulation=simulation)
    outcomes, failed = simulate(own_strategies(config), [2, 3], tmp_path)
    assert not failed
    assert [outcome.variant.name for outcome in outcomes] == ["sgd", "async2", "async3", "sync2", "sync3"]
    records = {name: _epochs(tmp_path / f"{name}_rate0.1_seed1") for name in ("async2", "async3")}
    assert [record["restarts"] for (record,) in records.values()] == [0, 1]
    _accounted(records["async3"])


@pytest.mark.parametrize("method", ["asgd", "synchronous"])
def test_a_simulation_resumes_inside_an_epoch(corpus, tmp_path, monkeypatch, method):
    """Not bit for bit, for what was out is computed again: but every minibatch is counted once over both lives."""
    config = _config(
        corpus,
        workers=3,
        checkpoint_s=0,
        max_epochs=2,
        evaluations=4,
        simulation={"compute_s": 0.01, "sync_s": 0.001, "strategy": method},
    )
    save, saves = RunDirectory.save, []

    def killed(directory, state, *arguments):
        save(directory, state, *arguments)
        saves.append(state.minibatch)
        if state.epoch == 2 and state.minibatch >= 40:
            raise ZeroDivisionError

    monkeypatch.setattr(RunDirectory, "save", killed)
    with pytest.raises(ZeroDivisionError):
        train(config, tmp_path / "out")
    monkeypatch.undo()
    train(config, tmp_path / "out")
    assert 40 <= saves[-1] < 100
    _accounted(_epochs(tmp_path / "out"))
    looks = [r for r in read_metrics(tmp_path / "out" / "metrics.jsonl") if (r["event"], r["epoch"]) == ("heldout", 2)]
    assert [4 * (look["frames"] - FRAMES) // FRAMES for look in looks] == [1, 2, 3]  # the first from before the kill


@pytest.mark.parametrize(
    ("method", "first", "then"), [("asgd", 4, 3), ("asgd", 2, 1), ("synchronous", 2, 3), ("sandblaster", 2, 3)]
)
def test_a_run_resumes_with_another_number_of_workers(corpus, tmp_path, monkeypatch, capsys, method, first, then):
    """It says so, and every minibatch is counted once; a finished run is not taken for one of other workers."""
    keys = {
        "checkpoint_s": 0,
        "max_epochs": 2,
        "lbfgs": {"iterations": 2},
        "simulation": {"compute_s": 0.01, "sync_s": 0.001, "strategy": method},
    }
    save = RunDirectory.save

    def killed(directory, state, *arguments):
        save(directory, state, *arguments)
        if state.minibatch >= 40:
            raise ZeroDivisionError

    monkeypatch.setattr(RunDirectory, "save", killed)
    with pytest.raises(ZeroDivisionError):
        train(_config(corpus, workers=first, **keys), tmp_path / "out")
    monkeypatch.undo()
    other = _config(corpus, workers=then, learning_rate=0.2, **keys)
    with pytest.raises(Speech3Error, match=f"learning_rate 0.1 there, 0.2 now, training.workers {first} there"):
        train(other, tmp_path / "out")
    capsys.readouterr()
    train(_config(corpus, workers=then, **keys), tmp_path / "out")
    said = capsys.readouterr().err
    assert f"was run with training.workers={first}, continues with {then}\n" in said and "resuming at epoch 1" in said
    if method != "sandblaster":  # which counts the frames of accepted points
        _accounted(_epochs(tmp_path / "out"))
    train(_config(corpus, workers=then, **keys), tmp_path / "out")
    with pytest.raises(Speech3Error, match=rf"training.workers {then} there, {first} now.*--restart"):
        train(_config(corpus, workers=first, **keys), tmp_path / "out")


def test_a_process_that_cannot_be_killed_ends_the_run_after_a_checkpoint(corpus, tmp_path, monkeypatch):
    epoch = Simulated.epoch

    def stuck(world, *args):
        for done in epoch(world, *args):
            yield done
            if done.used >= 20:
                raise Unkillable("shard 1 hung", [SimpleNamespace(pid=77)])

    monkeypatch.setattr(Simulated, "epoch", stuck)
    with pytest.raises(Speech3Error, match="shard 1 hung, and SIGKILL does not end it: process 77"):
        train(_config(corpus, max_epochs=2), tmp_path / "out")
    monkeypatch.undo()
    tensors, about = load_tensors(max((tmp_path / "out" / "checkpoints").iterdir()), "nn-checkpoint")
    assert about["state"]["done"]["used"] == (tensors["states"] == -1).sum() >= 50 + 20
    train(_config(corpus, max_epochs=2), tmp_path / "out")
    _accounted(_epochs(tmp_path / "out"))


def test_without_warm_start_the_server_gets_the_first_parameters(corpus, tmp_path, monkeypatch):
    loaded, load = [], Simulated.load
    monkeypatch.setattr(Simulated, "load", lambda world, *state: loaded.append(state[0]) or load(world, *state))
    monkeypatch.setattr(OneWorker, "epoch", lambda *_: 1 / 0)  # plain SGD is not asked
    about = train(_config(corpus, asgd={"warm_start": 0}, max_epochs=2), tmp_path / "out")
    assert len(loaded) == 2 and (loaded[0]["parameters"] != 0).any()
    _accounted(about["history"])
    assert [record["versions"] > 0 for record in about["history"]] == [True, True]


def test_a_trained_model_needs_no_warm_start(corpus, tmp_path, monkeypatch):
    train(_config(corpus, world="sgd", workers=1, max_epochs=1), tmp_path / "old")
    monkeypatch.setattr(OneWorker, "epoch", lambda *_: 1 / 0)
    config = _config(corpus, init=tmp_path / "old", asgd={"warm_start": 1}, max_epochs=1)
    about = train(config, tmp_path / "new")
    assert about["before"]["heldout_loss"] >= about["heldout_loss"]
    assert about["history"][0]["versions"] > 0


def test_an_epoch_that_makes_it_worse_is_taken_back(corpus, tmp_path, monkeypatch):
    losses, states = iter([1.0, 1.2, 1.1, 1.3]), []
    look, end = run_module._Run._heldout, run_module._Run._end_epoch
    monkeypatch.setattr(run_module._Run, "_heldout", lambda run: (next(losses), look(run)[1]))

    def watched(run):
        reached = run.trainer.tensors["parameters"].clone()
        end(run)
        states.append((reached, run.trainer.tensors))

    monkeypatch.setattr(run_module._Run, "_end_epoch", watched)
    config = _config(corpus, schedule="halving", asgd={"warm_start": 0, "momentum": 0.5})
    about = train(config, tmp_path / "out")
    assert about["best_epoch"] == 1 and len(states) == 3
    best = states[0][0]
    assert torch.equal(states[0][1]["parameters"], best) and "server.velocity" in states[0][1]
    for reached, after in states[1:]:
        assert not torch.equal(reached, best)
        assert torch.equal(after["parameters"], best) and set(after) == {"parameters"}  # no momentum from there


def test_too_many_refused_minibatches_stop_the_run(corpus, tmp_path, monkeypatch):
    compute, broken = shard_module.Shard.compute, set(range(50, 70))

    def diverging(shard, epoch, number, rate):
        step = compute(shard, epoch, number, rate)
        shard.pushes[0].finite = shard.pushes[0].finite and number not in broken
        return step

    monkeypatch.setattr(shard_module.Shard, "compute", diverging)
    config = _config(corpus, asgd={"warm_start": 0.5, "sync_every": 1}, max_epochs=1)
    with pytest.raises(TrainingError, match=r"epoch 1: \d+ of 100 minibatches were refused"):
        train(config, tmp_path / "out")
    assert not (tmp_path / "out" / "model.safetensors").exists()
    broken = {60, 61}
    about = train(config, tmp_path / "out")
    assert about["history"][0]["minibatches"] == {"used": 98, "stale": 0, "refused": 2, "returned": 0}
    _accounted(about["history"])
