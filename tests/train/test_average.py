"""Averages of the last epochs: against NumPy and PyTorch, in every world, resumed, and not taken if they are worse."""

import frame_corpus
import numpy as np
import pytest
import torch
from torch.optim.swa_utils import update_bn

from speech3.errors import MismatchError
from speech3.io.checkpoint import load_tensors, save_tensors
from speech3.runtime import read_metrics
from speech3.train import run as run_module, train
from speech3.train.parts import make_parts
from speech3.train.run import estimate_statistics
from speech3.train.rundir import EPOCH_KIND, RunDirectory, mean_of


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("average")
    frame_corpus.write(root)
    return root


def _config(corpus, model="dnn", **training):
    # A rate at which the parameters jump about, so that their mean is better than any of them.
    return frame_corpus.config(
        corpus, "cpu", model, **{"learning_rate": 8.0, "minibatch": 24, "max_epochs": 5, "average": 3, **training}
    )


def _record(out):
    (record,) = [record for record in read_metrics(out / "metrics.jsonl") if record["event"] == "average"]
    return {key: value for key, value in record.items() if key != "time"}


def test_the_mean_of_the_last_epochs_is_the_result_if_it_is_better(corpus, tmp_path, capsys):
    about = train(_config(corpus), tmp_path)
    tensors, _ = load_tensors(tmp_path / "model.safetensors", "nn")
    kept = [load_tensors(path, EPOCH_KIND)[0] for path in sorted((tmp_path / "checkpoints").glob("parameters-*"))]
    assert len(kept) == 3
    for name in ("layers.hidden.0.weight", "output.bias", "shift_F"):
        np.testing.assert_allclose(tensors[name], np.mean([each[name] for each in kept], 0), rtol=1e-5, atol=1e-6)
    record = _record(tmp_path)
    assert record["taken"] and record["epochs"] == about["averaged_epochs"] == [3, 4, 5]
    assert about["heldout_loss"] == record["heldout_loss"] < min(each["heldout_loss"] for each in about["history"])
    assert "mean of epochs 3, 4, 5: held-out" in capsys.readouterr().err
    assert "by the mean of epochs 3, 4, 5" in (tmp_path / "MODEL_CARD.md").read_text()


def test_the_mean_is_no_point_of_tensorboards_curves(corpus, tmp_path, monkeypatch):
    written = []

    class Board:
        def write(self, record):
            written.append(record["event"])

        def close(self):
            pass

    monkeypatch.setattr(run_module, "open_writer", lambda *_: Board())
    train(_config(corpus), tmp_path)
    assert _record(tmp_path)["taken"] and set(written) == {"epoch"}


def test_one_epoch_has_no_mean(corpus, tmp_path, capsys):
    about = train(_config(corpus, max_epochs=1), tmp_path)
    assert about["averaged_epochs"] == []
    assert "training.average=3: no mean, as fewer than two epochs were kept" in capsys.readouterr().err


def test_a_mean_that_is_worse_is_not_taken(corpus, tmp_path, monkeypatch, capsys):
    whole = train(_config(corpus, average=0), tmp_path / "whole")
    heldout = run_module._Run._heldout
    monkeypatch.setattr(run_module._Run, "_heldout", lambda run, *given: (9.0, 0.1) if given else heldout(run, *given))
    about = train(_config(corpus), tmp_path / "out")
    assert not _record(tmp_path / "out")["taken"] and about["averaged_epochs"] == []
    assert "not taken: the best epoch has" in capsys.readouterr().err
    assert (about["heldout_loss"], about["best_epoch"]) == (whole["heldout_loss"], whole["best_epoch"])
    a, b = (load_tensors(tmp_path / name / "model.safetensors", "nn")[0] for name in ("whole", "out"))
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name])


def test_an_epoch_that_was_undone_is_not_averaged(corpus, tmp_path, monkeypatch):
    looks = iter([(1.0, 0.5), (1.2, 0.5), (0.9, 0.5), (1.3, 0.5), (0.5, 0.5)])
    monkeypatch.setattr(run_module._Run, "_heldout", lambda run, *given: next(looks))
    about = train(_config(corpus, schedule="halving"), tmp_path)
    assert about["averaged_epochs"] == [1, 3]


def test_statistics_are_those_of_pytorch_and_parameters_stay(corpus):
    config = _config(corpus)
    config = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0, "layers": 2})})
    parts = make_parts(config, run_module.open_frames(config, corpus)["train"], torch.device("cpu"))
    parts.model.layers.norms[0].momentum = 0.3
    before = {name: value.clone() for name, value in parts.model.named_parameters()}
    estimate_statistics(parts.model, parts, epoch=2)
    ours = {name: value.clone() for name, value in parts.model.named_buffers()}
    update_bn([parts.source.draw(2, number) for number in range(100)], parts.model)  # of 120
    for name, value in parts.model.named_buffers():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(ours[name], value)
    for name, value in parts.model.named_parameters():
        assert torch.equal(before[name], value)
    assert parts.model.layers.norms[0].momentum == 0.3 and not parts.model.layers.norms[0].training


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ("blstm", {}),
        ("dnn", {"world": "simulated", "workers": 3, "simulation": {"compute_s": 1.0, "sync_s": 0.05}}),
        ("dnn", {"world": "shared", "workers": 2}),
        ("dnn", {"world": "ddp", "workers": 2}),
    ],
    ids=["blstm", "simulated", "shared", "ddp"],
)
def test_every_world(corpus, tmp_path, model, training):
    about = train(_config(corpus, model, learning_rate=0.5, max_epochs=3, average=2, **training), tmp_path)
    record = _record(tmp_path)
    assert record["epochs"] == [2, 3] and np.isfinite(record["heldout_loss"])
    assert about["heldout_loss"] == min(record["heldout_loss"], *(each["heldout_loss"] for each in about["history"]))


def test_a_killed_run_ends_as_one_that_was_not(corpus, tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    whole = train(_config(corpus), tmp_path / "whole")
    save = RunDirectory.save

    def killed_before(epoch):
        def saved(self, state, *arguments):
            if state.epoch >= epoch:
                raise Killed
            save(self, state, *arguments)

        monkeypatch.setattr(RunDirectory, "save", saved)
        with pytest.raises(Killed):
            train(_config(corpus), tmp_path / "out")
        monkeypatch.setattr(RunDirectory, "save", save)

    killed_before(3)
    killed_before(5)
    with monkeypatch.context() as patch:  # after the average, before the model
        patch.setattr(run_module._Run, "finish", lambda run: {})
        train(_config(corpus), tmp_path / "out")
    about = train(_config(corpus), tmp_path / "out")
    assert about["averaged_epochs"] == whole["averaged_epochs"]
    assert _record(tmp_path / "out") == _record(tmp_path / "whole")
    a, b = (load_tensors(tmp_path / name / "model.safetensors", "nn")[0] for name in ("whole", "out"))
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name])


def test_tensors_of_another_model_are_named(tmp_path):
    for name, size in (("a", 3), ("b", 4)):
        save_tensors(tmp_path / f"{name}.safetensors", {"w": np.ones(size, np.float32)}, {"kind": EPOCH_KIND})
    with pytest.raises(MismatchError, match=r"b\.safetensors"):
        mean_of(sorted(tmp_path.glob("*.safetensors")))
    with pytest.raises(ValueError, match="average=1: the mean of one epoch"):
        frame_corpus.config(tmp_path, "cpu", "dnn", average=1)
