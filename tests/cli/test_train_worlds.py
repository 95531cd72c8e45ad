"""`speech3 train --workers --world`, and impossible settings: a one-line message names the key, no run is begun."""

import multiprocessing
import re
import signal

import pytest
import typer
import typer.testing
from small_frames import config_with_frames

from speech3.errors import Speech3Error
from speech3.runtime import read_metrics
from speech3.runtime.files import read_json, write_json
from speech3.runtime.parallel import available_jobs

CORES = available_jobs()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A config `my.yaml` with frames for 12 minibatches per epoch."""
    return config_with_frames(tmp_path_factory.mktemp("home"), {"max_epochs": 2}).parent


def _run(home, out, *options):
    from speech3.cli.train import train

    app = typer.Typer()
    app.command()(train)
    return typer.testing.CliRunner().invoke(app, [str(home / "my.yaml"), "--out", str(out), *options])


def _refused(home, out, *options):
    """Check that there is an error message, and no files of a run; return the message."""
    result = _run(home, out, *options)
    assert isinstance(result.exception, Speech3Error), result.output
    assert not out.exists()
    return str(result.exception)


SIMULATED = ("--world", "simulated", "training.simulation.compute_s=0.01", "training.simulation.sync_s=0.001")


def test_the_virtual_world(home, tmp_path):
    result = _run(home, tmp_path / "out", "--workers", "3", *SIMULATED)
    assert result.exit_code == 0, result.exception
    records = read_metrics(tmp_path / "out" / "metrics.jsonl")
    assert records[-1]["world"] == "simulated" and records[-1]["workers"] == 3
    # After 12 minibatches of plain SGD by one worker, three workers need the time of at least 4 minibatches.
    assert records[1]["seconds"] - records[0]["seconds"] >= 0.04
    assert len(records[1]["shards"]) == 3


@pytest.mark.parametrize(
    ("preset", "method"), [("sandblaster", "sandblaster"), ("terngrad_ddp", "synchronous"), ("downpour", "asgd")]
)
def test_what_is_simulated_is_the_configs_own_way_to_train(home, tmp_path, monkeypatch, preset, method):
    seen = []

    def nothing(config, out, restart):
        seen.append(config.training)
        raise KeyboardInterrupt

    monkeypatch.setattr("speech3.train.train", nothing)
    _run(home, tmp_path / "out", "--world", "simulated", f"training={preset}")
    _run(home, tmp_path / "out", "--world", "simulated", f"training={preset}", "training.simulation.strategy=asgd")
    assert [(each.world, each.simulation.strategy) for each in seen] == [("simulated", method), ("simulated", "asgd")]


def test_how_an_epoch_ended_is_said_once(home, tmp_path, capfd):
    changes = ("training=sandblaster", "training.learning_rate=1e-30", "training.minibatch=32", "training.max_epochs=1")
    result = _run(home, tmp_path / "out", "--world", "simulated", *changes)
    assert result.exit_code == 0, result.output
    assert (result.stderr + capfd.readouterr().err).count("epoch 1: ended early: no step along the gradient") == 1


def test_two_workers_without_a_world_share_one_server(home, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("speech3.train.train", lambda config, out, restart: asked.append(config) or 1 / 0)
    for options in (
        ["--workers", "2"],
        ["--workers", "2", "--world", "sgd"],
        ["--workers", "1"],
        ["--workers", "2", "training.world=ddp"],
        ["--world", "shared"],
    ):
        assert isinstance(_run(home, tmp_path / "out", *options).exception, ZeroDivisionError)
    worlds = [(config.training.world, config.training.workers) for config in asked]
    assert worlds == [("shared", 2), ("sgd", 2), ("sgd", 1), ("ddp", 2), ("shared", 1)]


def test_the_chosen_world_is_said(home, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("speech3.runtime.reporting.say", said.append)
    monkeypatch.setattr("speech3.train.train", lambda config, out, restart: 1 / 0)
    _run(home, tmp_path / "out", "--workers", "2")
    assert said == ["--workers 2: using world shared (choose another with --world)"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--address", "auto"], r"--address auto: only for world cluster; add --world cluster"),
        (["--world", "cluster", "--device", "cuda:0"], r"device 'cuda:0'|training\.device=cuda:0: .*use cuda"),
        (["--world", "cluster", "--workers", str(CORES + 1)], rf"workers={CORES + 1}: this machine has {CORES} cores"),
        (["--world", "horovod"], r"training\.world: Input should be .*'shared'.*'horovod'"),
        (["--workers", "0"], r"training\.workers=0: .*only in recipes; set it to at least 1"),
        (["--workers", "2", "--world", "sgd"], r"training\.workers=2: world sgd has one; choose shared"),
        (["--workers", str(CORES + 1)], rf"training\.workers={CORES + 1}: this machine has {CORES} cores.*simulated"),
        (["--workers", str(CORES + 1), "--world", "ddp"], rf"training\.workers={CORES + 1}: .*{CORES} cores"),
        (
            ["--workers", "2", "--device", "cuda:77"],
            r"device 'cuda:77': PyTorch finds (no|\d+) GPUs? here; use (cpu|cuda:0)",
        ),
        (["--world", "shared", "training.asgd.sync_every=4", "training.asgd.max_distance=3"],
         r"training\.asgd: max_distance=3 is below sync_every=4: .*set max_distance"),
        (["--world", "shared", "training.asgd.projection=true"], r"training\.asgd: projection .*set momentum"),
        (["--world", "shared", "training.asgd.local_updates=false", "training.asgd.max_relative_distance=0.1"],
         r"training\.asgd: max_relative_distance .*local_updates=true"),
        (["--world", "shared", "training.asgd.decay=0.9", "training.asgd.max_staleness=0"],
         r"training\.asgd: max_staleness=0 drops every stale push.*decay"),
        ([*SIMULATED, "training.asgd.sync_every=13", "training.asgd.max_distance=13"],
         r"training\.asgd\.sync_every=13: an epoch has only 12 minibatches \(training\.minibatch=32\).*lower it"),
        (["--world", "shared", "training.asgd.sync_every=13", "training.asgd.max_distance=13"], "only 12 minibatches"),
        (["--world", "shared", "training.asgd.warm_start=2"],
         r"training\.asgd\.warm_start=2: warm start lasts the whole run \(training\.max_epochs=2\); shorten it"),
        ([*SIMULATED, "training.asgd.warm_start=5"],
         r"training\.asgd\.warm_start=5: warm start lasts the whole run \(training\.max_epochs=2\); shorten it"),
        ([*SIMULATED, "--workers", "3", "training.simulation.compute_s=[0.1,0.2]"],
         r"training\.simulation\.compute_s: 2 times for training\.workers=3; set one for all workers"),
        ([*SIMULATED, "--workers", "2", "training.simulation.compute_s=[0.1,0]"],
         r"training\.simulation: compute_s=\(0\.1, 0\.0\): .*above 0 seconds"),
        ([*SIMULATED, "training.simulation.compute_s=-1"], r"training\.simulation: compute_s=-1\.0: .*above 0 seconds"),
        ([*SIMULATED, "training.simulation.sync_s=-1"], r"training\.simulation\.sync_s: .*greater than or equal to 0"),
        ([*SIMULATED, "--workers", "2", "training.simulation.failures=[[2,0.1]]"],
         r"training\.simulation\.failures: no worker 2 of 2"),
        ([*SIMULATED, "training.simulation.failures=[[-1,0.1]]"], r"training\.simulation: failures=.*count from 0"),
        ([*SIMULATED, "training.simulation.failures=[[0,0.1]]", "training.simulation.strategy=synchronous"],
         r"training\.simulation\.failures: .*all step together; remove it"),
        ([*SIMULATED, "training.asgd.push_scale=0"], r"training\.asgd: push_scale=0: must be above 0"),
        ([*SIMULATED, "training.asgd.push_scale=1/shards"], r"training\.asgd\.push_scale.*'1/workers'"),
    ],
)  # fmt: skip
def test_refused(home, tmp_path, options, words):
    assert re.search(words, _refused(home, tmp_path / "out", *options), re.DOTALL)


def test_a_run_of_plain_sgd_is_no_run_of_two_shards(home, tmp_path):
    out = tmp_path / "out"
    assert _run(home, out).exit_code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    result = _run(home, out, "--workers", "2")
    assert isinstance(result.exception, Speech3Error)
    changes = (
        r"training\.workers 1 there, 2 now, training\.world sgd there, shared now\); choose another --out, or --restart"
    )
    assert re.search(changes, str(result.exception))
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_what_left_nothing_does_not_bar_the_next(home, tmp_path):
    """A run that ended before its first checkpoint, here because it diverged, can be started with other keys."""
    out = tmp_path / "out"
    result = _run(home, out, "training.learning_rate=1e30")
    assert isinstance(result.exception, Speech3Error) and "training.learning_rate" in str(result.exception)
    assert (out / "run.json").exists() and not list(out.glob("checkpoints/*"))
    assert _run(home, out, "training.learning_rate=0.1").exit_code == 0
    assert read_json(out / "run.json")["training"]["learning_rate"] == 0.1


def test_another_models_checkpoint_is_refused_and_kept(home, tmp_path):
    def copied(*options):
        """Run again, with the other run's checkpoint in place of those of an unfinished run."""
        (mine / "model.safetensors").unlink()
        for path in (mine / "checkpoints").iterdir():
            path.write_bytes(checkpoint)
        return _run(home, mine, *options)

    assert _run(home, tmp_path / "theirs", "model.width=16").exit_code == 0
    checkpoint = max((tmp_path / "theirs" / "checkpoints").iterdir()).read_bytes()
    mine = tmp_path / "mine"
    assert _run(home, mine).exit_code == 0
    result = copied()
    assert isinstance(result.exception, Speech3Error)
    assert re.search(
        r"checkpoints/e\S+: is a checkpoint of another run; remove it, or .*--restart", str(result.exception)
    )
    assert {path.read_bytes() for path in (mine / "checkpoints").iterdir()} == {checkpoint}


def test_measured_times_of_an_earlier_run_are_forgotten_with_it(home, tmp_path):
    out = tmp_path / "out"
    measured = ("--world", "simulated", "--workers", "2", "training.asgd.warm_start=0.25")
    assert _run(home, out, *measured).exit_code == 0
    write_json(out / "simulation.json", {"compute_s": 1000, "sync_s": 0})
    assert _run(home, out, *measured, "--restart").exit_code == 0
    assert read_json(out / "simulation.json")["compute_s"] < 100


def test_training_that_diverged_is_not_to_be_repeated(home, tmp_path):
    result = _run(home, tmp_path / "out", "--workers", "2", "--world", "ddp", "training.learning_rate=1e30")
    assert "lower training.learning_rate" in str(result.exception)
    assert "same command" not in str(result.exception)


def test_a_run_that_cannot_begin_leaves_no_shard(home, tmp_path, monkeypatch):
    def full(path):
        raise Speech3Error(f"{path}: no space left on device")

    monkeypatch.setattr("speech3.train.run.Metrics", full)
    result = _run(home, tmp_path / "out", "--workers", "2", "--world", "shared")
    assert "no space left" in str(result.exception)
    assert not multiprocessing.active_children()


def test_sigterm_is_taken_as_ctrl_c(tmp_path, started):
    """`timeout` and batch systems send SIGTERM, also to background jobs, which ignore Ctrl-C."""

    def in_the_background():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    process = started(
        "recipe", "digits", "--out", tmp_path / "digits", "corpus_options.train=300", preexec_fn=in_the_background
    )
    assert any("running" in line for line in process.stderr)
    process.terminate()
    said = process.stderr.read()
    assert process.wait(60) == 130, said
    assert said.splitlines()[-1].startswith("interrupted; finished work is kept")
