"""Training runs on a small made-up corpus: they learn, go on exactly where they were killed, refuse what is wrong."""

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from speech3.config import DnnConfig, TrainConfig, TrainingConfig
from speech3.engine import optimizers as sgd
from speech3.engine.interface import USED, WAITING, Progress
from speech3.errors import Speech3Error
from speech3.frames.packed import open_packed, write_frames
from speech3.hmm.model import Hmm, monophone_tree
from speech3.io.checkpoint import load_tensors
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.models import load_network, logits
from speech3.runtime import read_metrics
from speech3.runtime.files import write_text
from speech3.train import run as run_module, train
from speech3.train.parts import log_priors
from speech3.train.rundir import RunDirectory, RunState, Schedule

DIM, SENONES = 6, 6


@pytest.fixture
def corpus(tmp_path):
    """Frames around one point a senone, with noise; senones last for several frames."""
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 2.5, (SENONES, DIM)) + 10
    data = tmp_path / "frames"
    for name, count in (("train", 40), ("heldout", 8)):
        labels = {f"{name}{i}": rng.integers(0, SENONES, 8).repeat(5).astype(np.int32) for i in range(count)}
        feats = {u: (centers[x] + rng.normal(0, 1.5, (40, DIM))).astype(np.float32) for u, x in labels.items()}
        write_frames(
            data / f"{name}.frames", feats, labels, SENONES, utterances=list(feats), info={"features": "made up"}
        )
    write_text(data / "features.yaml", f"kind: fbank\nnum_mel_bins: {DIM}\nsample_frequency: 8000\n")
    _hmm("a").save(tmp_path / "hmm")
    return tmp_path


def _hmm(*phones):
    """Three senones for each of the phones, and three for silence."""
    lexicon = Lexicon((Pronunciation("WORD", phones),))
    return Hmm(lexicon, monophone_tree(np.arange(1 + len(phones))), np.full(3 + 3 * len(phones), 0.5))


def _config(corpus, model=(), seed=1, **training):
    values = {"minibatch": 64, "learning_rate": 0.2, "max_epochs": 4, **training}
    return TrainConfig(
        frames=str(corpus / "frames"),
        hmm=str(corpus / "hmm"),
        seed=seed,
        training=TrainingConfig(**values),
        model=DnnConfig(**{"layers": 2, "width": 24, "left_context": 2, "right_context": 2, **dict(model)}),
    )


def _same(first, second):
    (a, about_a), (b, about_b) = (load_tensors(out / "model.safetensors", "nn") for out in (first, second))
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    for one, other in zip(about_a["history"], about_b["history"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_a_run_learns_and_leaves_a_model(corpus):
    about = train(_config(corpus), corpus / "out")
    model, log_prior, stored = load_network(corpus / "out")
    assert stored == about
    assert about["heldout_accuracy"] > 0.9
    records = read_metrics(corpus / "out" / "metrics.jsonl")
    assert [record["epoch"] for record in records] == list(range(1, len(records) + 1))
    assert records[-1]["frames"] == 1600 * len(records)
    assert records[0]["train_loss"] > records[-1]["train_loss"]
    assert about["heldout_loss"] == min(record["heldout_loss"] for record in records)
    assert math.isclose(np.exp(log_prior).sum(), 1, rel_tol=1e-5)
    # The stored model, scoring utterance by utterance, reaches the accuracy that it says it has.
    heldout, right = open_packed(corpus / "frames" / "heldout.frames"), 0
    for start, stop in zip(heldout.offsets_U1[:-1], heldout.offsets_U1[1:], strict=True):
        scores = logits(model, torch.from_numpy(heldout.frames_NF[start:stop].copy()))
        right += int((scores.argmax(1).numpy() == heldout.senones_N[start:stop]).sum())
    assert right / len(heldout) == pytest.approx(about["heldout_accuracy"], abs=1e-9)
    train_frames = open_packed(corpus / "frames" / "train.frames")
    np.testing.assert_allclose(model.shift_F, -train_frames.frames_NF.mean(0), rtol=1e-5)
    np.testing.assert_allclose(model.scale_F, 1 / train_frames.frames_NF.std(0), rtol=1e-5)
    assert len(list((corpus / "out" / "checkpoints").iterdir())) == 3


def test_train_and_heldout_figures_of_the_same_frames_agree(corpus):
    frames = corpus / "frames"
    (frames / "heldout.frames").write_bytes((frames / "train.frames").read_bytes())
    (record,) = train(_config(corpus, learning_rate=1e-12, max_epochs=1), corpus / "out")["history"]
    assert record["train_loss"] == pytest.approx(record["heldout_loss"], rel=1e-6)
    assert record["train_accuracy"] == record["heldout_accuracy"]
    masks = {"time_masks": 2, "time_mask_frames": 2, "frequency_masks": 2, "frequency_mask_bins": 3}
    masked = train(_config(corpus, learning_rate=1e-12, max_epochs=1, **masks), corpus / "masked")["history"][0]
    assert masked["heldout_loss"] == pytest.approx(record["heldout_loss"], rel=1e-6), (
        "only what is learnt from is masked"
    )
    assert abs(masked["train_loss"] - masked["heldout_loss"]) > 0.01


def test_held_out_frames_are_judged_without_label_smoothing(corpus):
    frames = corpus / "frames"
    (frames / "heldout.frames").write_bytes((frames / "train.frames").read_bytes())
    plain, smooth = (
        train(_config(corpus, learning_rate=1e-12, max_epochs=1, label_smoothing=e), corpus / str(e))["history"][0]
        for e in (0.0, 0.3)
    )
    assert smooth["heldout_loss"] == pytest.approx(plain["heldout_loss"], rel=1e-6)
    assert abs(smooth["train_loss"] - plain["train_loss"]) > 0.01
    with pytest.raises(Speech3Error, match=r"label_smoothing=0\.1: not with training\.model_partitions=2"):
        train(_config(corpus, label_smoothing=0.1, model_partitions=2, world="shared"), corpus / "out")
    with pytest.raises(Speech3Error, match=r"targets_inside=true: only for a recurrent network"):
        train(_config(corpus, targets_inside=True), corpus / "out")


def test_log_priors():
    np.testing.assert_allclose(np.exp(log_priors(np.array([9, 0, 4]))), [10 / 16, 1 / 16, 5 / 16], rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({}, {}),
        ({"dropout": 0.3, "normalization": "batch"}, {"momentum": 0.9, "learning_rate": 0.02, "weight_decay": 1e-3}),
        ({"normalization": "layer", "activation": "sigmoid"}, {"schedule": "constant"}),
        ({}, {"time_masks": 1, "time_mask_frames": 2, "frequency_masks": 1, "frequency_mask_bins": 2}),
    ],
)
def test_a_killed_run_ends_bitwise_as_one_that_was_not(corpus, monkeypatch, model, training):
    train(_config(corpus, model, **training), corpus / "whole")

    class Killed(BaseException):
        pass

    # Killed after 7 minibatches (the checkpoint is older than the kill), at the end of an epoch before its checkpoint
    # (epochs have 25 minibatches), and in the middle of another.
    config = _config(corpus, model, checkpoint_s=0, **training)
    step, save = sgd.Sgd.step, RunDirectory.save

    def run_until(steps, before_save=False):
        done = 0

        def counted(self, *arguments):
            nonlocal done
            done += 1
            if done > steps:
                raise Killed
            step(self, *arguments)

        def killed_before_save(self, state, *arguments):
            if before_save and state.minibatch == 0:
                raise Killed
            save(self, state, *arguments)

        monkeypatch.setattr(sgd.Sgd, "step", counted)
        monkeypatch.setattr(RunDirectory, "save", killed_before_save)
        with pytest.raises(Killed):
            train(config, corpus / "killed")

    run_until(7)
    run_until(1000, before_save=True)
    run_until(30)
    assert not (corpus / "killed" / "model.safetensors").exists()
    monkeypatch.undo()
    train(config, corpus / "killed")
    _same(corpus / "whole", corpus / "killed")
    epochs = [record["epoch"] for record in read_metrics(corpus / "killed" / "metrics.jsonl")]
    assert epochs == list(range(1, len(epochs) + 1))


_SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
config, out, path, gate = sys.argv[1:]
sys.path.append(path)
import tiny
from speech3.config import TrainConfig
from speech3.train import run, train
make, gate = run.make_parts, tiny.Gate(Path(gate), at=200)
run.make_parts = lambda *args: replace(parts := make(*args), source=tiny.GatedSource(parts.source, gate))
train(TrainConfig.model_validate_json(config), out)
"""


@pytest.mark.parametrize("kind", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_resumes(corpus, kind):
    config = _config(corpus, checkpoint_s=0, max_epochs=3, schedule="constant", minibatch=4)
    command = [sys.executable, "-c", _SCRIPT, config.model_dump_json(), str(corpus / "killed"), tiny.PATH, str(corpus)]
    gate, checkpoints = tiny.Gate(corpus), corpus / "killed" / "checkpoints"
    gate.close("epoch3")  # half of it waits for the signal
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    tiny.until(lambda: process.poll() is not None or list(checkpoints.glob("e*")), 120)
    assert process.poll() is None
    process.send_signal(kind)
    gate.open("epoch3")
    stderr = process.communicate(timeout=60)[1].decode()
    assert process.returncode != 0
    assert "KeyboardInterrupt" in stderr or kind == signal.SIGKILL
    at = max(checkpoints.glob("e*")).name
    config = config.model_copy(update={"training": config.training.model_copy(update={"checkpoint_s": 60.0})})
    train(config, corpus / "killed")
    train(config, corpus / "whole")
    _same(corpus / "whole", corpus / "killed")
    assert at < max(checkpoints.glob("e*")).name


def test_a_checkpoint_holds_parameters_slots_states_and_the_best_model(corpus, monkeypatch):
    monkeypatch.setattr(run_module._Run, "_end_epoch", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # in the first epoch, so there is no best model yet
        train(_config(corpus, momentum=0.5, checkpoint_s=0), corpus / "out")
    monkeypatch.undo()
    tensors, about = load_tensors(max((corpus / "out" / "checkpoints").iterdir()), "nn-checkpoint")
    assert set(tensors) == {"parameters", "velocity", "states"}
    assert tensors["parameters"].size > tensors["velocity"].size and (tensors["velocity"] != 0).any()
    np.testing.assert_array_equal(tensors["states"], [USED] * 24 + [WAITING])
    assert about["state"]["done"]["used"] == 24
    train(_config(corpus, momentum=0.5, checkpoint_s=0), corpus / "out")
    tensors, _ = load_tensors(max((corpus / "out" / "checkpoints").iterdir()), "nn-checkpoint")
    best = {name.removeprefix("best."): tensor for name, tensor in tensors.items() if name.startswith("best.")}
    model = load_tensors(corpus / "out" / "model.safetensors", "nn")[0]
    assert best.keys() | {"log_prior"} == model.keys()
    assert all((best[name] == model[name]).all() for name in best)


def test_a_finished_run_is_not_run_again(corpus, monkeypatch):
    first = train(_config(corpus), corpus / "out")
    monkeypatch.setattr(run_module, "_Run", None)
    assert train(_config(corpus), corpus / "out") == first


def test_a_run_of_another_config_is_refused_until_restart(corpus):
    train(_config(corpus, max_epochs=1), corpus / "out")
    with pytest.raises(Speech3Error, match=r"out: holds .*training.learning_rate 0.2 there, 0.1 now.*--restart"):
        train(_config(corpus, max_epochs=1, learning_rate=0.1), corpus / "out")
    write_text(tuned := corpus / "out" / "decode.json", "{}")
    write_text(corpus / "out" / "graph" / "graph.json", "{}")
    about = train(_config(corpus, max_epochs=1, learning_rate=0.1), corpus / "out", restart=True)
    assert about["training"]["learning_rate"] == 0.1
    assert len(read_metrics(corpus / "out" / "metrics.jsonl")) == 1
    assert not tuned.exists() and not (corpus / "out" / "graph").exists()  # they belonged to the other network


def test_a_model_that_no_run_made_is_not_removed(corpus):
    write_text(model := corpus / "other" / "model.safetensors", "GMMs")
    for restart in (False, True):
        with pytest.raises(Speech3Error, match=r"model\.safetensors: was not made by a run .* another --out"):
            train(_config(corpus, max_epochs=1), corpus / "other", restart=restart)
    assert model.read_text() == "GMMs"


def test_a_directory_that_training_reads_from_is_not_written_to(corpus):
    before = {path: path.read_bytes() for path in corpus.glob("hmm/*")}
    for name in ("hmm", "frames"):
        with pytest.raises(Speech3Error, match=rf"{name}: is also {name}, which .*another --out"):
            train(_config(corpus, max_epochs=1), corpus / name, restart=True)
    assert {path: path.read_bytes() for path in corpus.glob("hmm/*")} == before
    train(_config(corpus, max_epochs=1), corpus / "out")
    model = (corpus / "out" / "model.safetensors").read_bytes()
    for init in ("out", "out/model.safetensors"):
        continued = _config(corpus, max_epochs=1).model_copy(update={"init": str(corpus / init)})
        with pytest.raises(Speech3Error, match=r"out: is also --init"):
            train(continued, corpus / "out", restart=True)
    assert (corpus / "out" / "model.safetensors").read_bytes() == model


def test_two_trainings_in_one_directory_at_once_are_refused(corpus):
    directory = run_module.RunDirectory(corpus / "out", {}, 1)
    with directory.alone(), pytest.raises(Speech3Error, match=r"out: another training process is running there"):
        train(_config(corpus, max_epochs=1), corpus / "out", restart=True)
    assert not list((corpus / "out").glob("*.json*"))
    train(_config(corpus, max_epochs=1), corpus / "out")
    with directory.alone():  # it has left
        pass


def test_a_run_on_another_corpus_is_refused(corpus):
    train(_config(corpus, max_epochs=1), corpus / "out")
    path = corpus / "frames" / "heldout.frames"
    feats = {"a": np.zeros((5, DIM), np.float32)}
    write_frames(path, feats, {"a": np.zeros(5, np.int32)}, SENONES, utterances=["a"])
    with pytest.raises(Speech3Error, match=r"another config \(frames\.heldout \w+ there, \w+ now\)"):
        train(_config(corpus, max_epochs=1), corpus / "out")


def test_a_damaged_checkpoint_is_passed_over(corpus, monkeypatch, capsys):
    config = _config(corpus)
    monkeypatch.setattr(run_module._Run, "finish", lambda run: {})
    train(config, corpus / "out")
    monkeypatch.undo()
    newest = max((corpus / "out" / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:100])
    train(config, corpus / "out")
    assert f"{newest.name}: not a safetensors file" in capsys.readouterr().err
    train(config, corpus / "whole")
    _same(corpus / "whole", corpus / "out")


def test_a_damaged_newest_checkpoint_does_not_outlive_the_next_good_one(tmp_path, capsys):
    directory = RunDirectory(tmp_path, {}, keep=1)
    state, tensors = RunState(Schedule(0.1)), {"parameters": np.ones(3, np.float32)}
    directory.save(state, tensors, "stock")
    (damaged := tmp_path / "checkpoints" / "e0002-m00000000.safetensors").write_bytes(b"torn")
    assert directory.newest()[0] == state
    assert "e0002-m00000000.damaged" in capsys.readouterr().err and not damaged.exists()
    directory.save(later := replace(state, done=Progress(used=7)), tensors, "stock")
    assert directory.newest()[0] == later
    assert [path.name for path in sorted(damaged.parent.glob("*.safetensors"))] == ["e0001-m00000007.safetensors"]


def test_an_epoch_that_makes_it_worse_is_taken_back(corpus, monkeypatch):
    # Frame accuracy rises all the time: it is cross-entropy that says what is worse.
    looks = iter([(1.0, 0.5), (1.2, 0.6), (1.1, 0.7), (1.3, 0.8)])
    taken = []
    monkeypatch.setattr(run_module._Run, "_heldout", lambda run, parameters=None: next(looks))
    end = run_module._Run._end_epoch

    def watched(run):
        end(run)
        taken.append({name: array.copy() for name, array in run_module.network_tensors(run.model).items()})

    monkeypatch.setattr(run_module._Run, "_end_epoch", watched)
    about = train(_config(corpus, momentum=0.5), corpus / "out")
    assert about["best_epoch"] == 1 and about["heldout_loss"] == 1.0
    assert len(taken) == 3  # constant, then halved, then no gain
    for name, array in taken[0].items():
        np.testing.assert_array_equal(taken[1][name], array)
    np.testing.assert_array_equal(
        load_tensors(corpus / "out" / "model.safetensors")[0]["output.weight"], taken[0]["output.weight"]
    )


def test_a_diverging_run_says_where(corpus):
    with pytest.raises(Speech3Error, match=r"epoch \d+, minibatch \d+: the loss is (nan|inf).*learning_rate"):
        train(_config(corpus, learning_rate=1e30), corpus / "out")
    assert not (corpus / "out" / "model.safetensors").exists()


def test_other_senones_than_the_hmm(corpus):
    _hmm("a", "b").save(corpus / "hmm")
    with pytest.raises(Speech3Error, match=r"train.frames: labelled with 6 senones, but .*hmm has 9"):
        train(_config(corpus), corpus / "out")


def test_no_heldout_frames(corpus):
    (corpus / "frames" / "heldout.frames").unlink()
    with pytest.raises(Speech3Error, match=r"heldout.frames: no such file"):
        train(_config(corpus), corpus / "out")


@pytest.mark.parametrize("device", ["cuda:99", "tpu", "meta"])
def test_a_device_that_is_not_there(corpus, device):
    with pytest.raises(Speech3Error, match=f"device '{device}'"):
        train(_config(corpus, device=device), corpus / "out")
    assert not (corpus / "out").exists()


def test_the_command(corpus, monkeypatch, capsys):
    import typer.testing

    from speech3.cli.train import train as command

    conf = corpus / "my.yaml"
    conf.write_text(f"frames: {corpus}/frames\nhmm: {corpus}/hmm\nmodel: dnn_small\ntraining: sgd\n")
    monkeypatch.chdir(corpus)
    app = typer.Typer()
    app.command()(command)
    options = [str(conf), "model.width=16", "--device", "cpu", "training.max_epochs=2", "training.minibatch=64"]
    result = typer.testing.CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert "exp/my/model.safetensors: held-out frame accuracy" in result.output
    assert load_network(corpus / "exp" / "my")[2]["model"]["width"] == 16
    result = typer.testing.CliRunner().invoke(app, [str(conf), "--device", "tpu"])
    assert isinstance(result.exception, Speech3Error)
