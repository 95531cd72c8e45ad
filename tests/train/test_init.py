"""Fine-tuning: what is kept of the model that training begins with, what is new, and what is refused."""

import numpy as np
import pytest
import torch
import typer.testing
import yaml

from speech3.config import CnnConfig, DnnConfig, TdnnConfig, TrainConfig, TrainingConfig
from speech3.errors import MismatchError, Speech3Error
from speech3.frames.packed import open_packed, write_frames
from speech3.hmm.model import Hmm, PdfsOnly, context_free_tree, monophone_tree
from speech3.io.checkpoint import load_tensors, save_tensors
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.models import build, load_network, logits, network_tensors
from speech3.runtime import read_metrics
from speech3.train import run as run_module, train
from speech3.train.init import _check_architecture, read_init

DIM = 6


def _pack(root, name, senones, shift=0.0, dim=DIM):
    """Frames around one point a senone; with `shift`, those of another microphone."""
    rng = np.random.default_rng(senones)
    centers = rng.normal(0, 2.5, (senones, dim)) + 10 + shift
    for part, count in (("train", 30), ("heldout", 8)):
        labels = {f"{part}{i}": rng.integers(0, senones, 8).repeat(5).astype(np.int32) for i in range(count)}
        feats = {u: (centers[x] + rng.normal(0, 1.5, (40, dim))).astype(np.float32) for u, x in labels.items()}
        write_frames(root / name / f"{part}.frames", feats, labels, senones, utterances=list(feats), info={})


def _hmm(phones, tree=None):
    tree = tree or monophone_tree(np.arange(1 + len(phones)))
    return Hmm(Lexicon((Pronunciation("WORD", tuple(phones)),)), tree, np.full(tree.num_pdfs, 0.5))


@pytest.fixture
def home(tmp_path):
    """A trained model `old`, and frames of the same senones (`same`, shifted) and of others (`more`)."""
    _pack(tmp_path, "frames", 6)
    _pack(tmp_path, "same", 6, shift=1.5)
    _pack(tmp_path, "more", 9)
    _hmm("a").save(tmp_path / "hmm")
    _hmm("ab").save(tmp_path / "hmm_more")
    train(_config(tmp_path, max_epochs=3), tmp_path / "old")
    return tmp_path


def _config(home, data="frames", hmm="hmm", init=None, model=(), seed=1, **training):
    values = {"minibatch": 64, "learning_rate": 0.2, "max_epochs": 2, **training}
    return TrainConfig(
        frames=str(home / data),
        hmm=str(home / hmm),
        init=init and str(home / init),
        seed=seed,
        training=TrainingConfig(**values),
        model=DnnConfig(**{"layers": 2, "width": 24, "left_context": 2, "right_context": 2, **dict(model)}),
    )


def _begin(home, monkeypatch, config, out="new"):
    """The run before its first step, and the record it wrote of that."""
    runs = []
    monkeypatch.setattr(run_module._Run, "epoch", lambda run, interrupt: runs.append(run) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(config, home / out)
    monkeypatch.undo()
    return runs[0], read_metrics(home / out / "metrics.jsonl")[-1]


@pytest.mark.parametrize("ckpt", ["old", "old/model.safetensors"])
@pytest.mark.parametrize("data", ["frames", "same"])
def test_same_senones_keep_every_parameter(home, monkeypatch, capsys, ckpt, data):
    run, record = _begin(home, monkeypatch, _config(home, data, init=ckpt, seed=5))
    old, _, about = load_network(home / "old")
    feats = torch.from_numpy(open_packed(home / data / "heldout.frames").frames_NF[:40].copy())
    assert torch.equal(logits(run.model, feats), logits(old, feats))
    assert record["new"] == [] and set(record["kept"]) == set(old.state_dict())
    said = capsys.readouterr().err
    assert "the same 6 senones, so all 8 tensors are kept" in said
    assert f"held-out before training: {record['heldout_accuracy']:.2%}" in said
    if data == "frames":
        assert record["heldout_accuracy"] == about["heldout_accuracy"]
        assert record["heldout_loss"] == about["heldout_loss"]


def test_training_continues_and_ends_no_worse(home):
    before = train(_config(home, "same", init="old", learning_rate=1e-6, max_epochs=1), home / "probe")["before"]
    tuned = train(_config(home, "same", init="old", learning_rate=0.05), home / "tuned")
    assert before["heldout_accuracy"] == tuned["before"]["heldout_accuracy"] < tuned["heldout_accuracy"]
    assert tuned["before"]["path"].endswith("old/model.safetensors") and tuned["best_epoch"] > 0
    # Steps far too large: every epoch makes it worse, so what it began with is the result.
    worse = train(_config(home, "frames", init="old", learning_rate=4.0), home / "worse")
    old, new = (load_tensors(home / name / "model.safetensors")[0] for name in ("old", "worse"))
    assert worse["best_epoch"] == 0 and worse["train_accuracy"] is None
    assert worse["heldout_accuracy"] == load_network(home / "old")[2]["heldout_accuracy"]
    assert all((old[name] == new[name]).all() for name in old)


def _other_tree():
    return context_free_tree(np.array([[0, 1, 2], [5, 4, 3]]))


@pytest.mark.parametrize(
    ("data", "hmm", "why"),
    [
        ("more", _hmm("ab"), "6 senones there, 9 here"),
        ("frames", _hmm("a", _other_tree()), "6 senones in both, but of different trees"),
        ("frames", _hmm("b"), "6 senones in both, but of different trees"),
    ],
)
def test_other_senones_get_a_new_output_layer(home, monkeypatch, capsys, data, hmm, why):
    hmm.save(home / "other")
    run, record = _begin(home, monkeypatch, _config(home, data, "other", init="old"))
    fresh, _ = _begin(home, monkeypatch, _config(home, data, "other", init="old"), "again")
    old = load_tensors(home / "old" / "model.safetensors")[0]
    state = run.model.state_dict()
    assert record["new"] == ["output.weight", "output.bias"]
    assert {*record["kept"], *record["new"]} == set(state) and "shift_F" in record["kept"]
    for name in record["kept"]:
        np.testing.assert_array_equal(state[name].numpy(), old[name])
    if data == "frames":
        assert not np.array_equal(state["output.weight"].numpy(), old["output.weight"])
    assert torch.equal(fresh.model.output.weight, run.model.output.weight)  # drawn from the seed
    said = f"{why}, so the output layer is new (output.weight, output.bias); {len(record['kept'])} tensors are kept"
    assert said in capsys.readouterr().err
    assert run.best == {}  # a layer nobody trained is no result
    about = train(_config(home, data, "other", init="old"), home / "done")
    assert about["heldout_accuracy"] > about["before"]["heldout_accuracy"] and about["best_epoch"] > 0


@pytest.mark.parametrize(("senones", "data"), [(6, "frames"), (9, "more")])
def test_both_output_layers_of_a_time_delay_network_are_kept_or_new(home, capsys, senones, data):
    model = TdnnConfig(layers=1, width=8, bottleneck=3, prefinal=4, subsampling=3, two_outputs=True)
    trained = build(model, DIM, 6, seed=3)
    about = {"kind": "nn", "model": model.model_dump(mode="json"), "feat_dim": DIM, "num_senones": 6}
    save_tensors(home / "tdnn" / "model.safetensors", network_tensors(trained), about)
    here = model.model_copy(update={"dropout": 0.3, "subsampling": 1})  # which have no parameters
    config = _config(home, data, "hmm_more", init="tdnn").model_copy(update={"model": here})
    init = read_init(config, open_packed(home / data / "train.frames"))
    found = init.put_into(build(here, DIM, senones, seed=1))
    outputs = [f"{layer}.{kind}" for layer in ("output", "xent_output") for kind in ("weight", "bias")]
    assert found["new"] == ([] if senones == 6 else outputs)
    assert {*found["kept"], *found["new"]} == set(trained.state_dict())
    assert "starting from" in capsys.readouterr().err


def test_without_a_tree_the_number_of_senones_decides(home, monkeypatch, capsys):
    PdfsOnly(6, "made by hand").save(home / "numbers")
    _begin(home, monkeypatch, _config(home, hmm="numbers", init="old"))
    assert "numbers has no tree to compare" in capsys.readouterr().err
    (home / "alone").mkdir()
    (home / "old" / "model.safetensors").rename(home / "alone" / "model.safetensors")
    _, record = _begin(home, monkeypatch, _config(home, init="alone/model.safetensors"), "second")
    assert record["new"] == [] and "alone has no tree to compare" in capsys.readouterr().err


def test_adapted_values_are_part_of_the_architecture_even_where_there_are_none(home):
    there = {"model": CnnConfig(adapted=40).model_dump(mode="json"), "feat_dim": 160}
    config = TrainConfig(frames=str(home), hmm=str(home), model=CnnConfig(), training=TrainingConfig())
    with pytest.raises(MismatchError, match=r"adapted 40 there, 0 here\); set model\.adapted=40"):
        _check_architecture(home / "model.safetensors", there, config, None)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"width": 32}, r"width 24 there, 32 here\); set model\.width=24"),
        ({"layers": 3, "activation": "sigmoid"}, r"layers 2 there, 3 here, activation relu there, sigmoid here"),
        ({"normalization": "batch"}, "normalization none there, batch here"),
        ({"left_context": 1}, "left_context 2 there, 1 here"),
    ],
)
def test_another_architecture_is_refused(home, model, message):
    with pytest.raises(Speech3Error, match=rf"old/model\.safetensors: .*has another architecture.*{message}"):
        train(_config(home, init="old", model=model), home / "new")
    assert not (home / "new").exists()


def test_dropout_may_differ(home, monkeypatch):
    run, _ = _begin(home, monkeypatch, _config(home, init="old", model={"dropout": 0.2}))
    assert run.model.layers.dropout.dropped == 51  # of 256


def test_what_else_is_refused(home):
    _pack(home, "wide", 6, dim=DIM + 1)
    with pytest.raises(MismatchError, match="trained on 6 feature bins per frame,"):
        train(_config(home, "wide", init="old"), home / "new")
    with pytest.raises(Speech3Error, match=r"nowhere: no such file"):
        train(_config(home, init="nowhere"), home / "new")
    checkpoint = max((home / "old" / "checkpoints").iterdir())
    with pytest.raises(Speech3Error, match=r"holds 'nn-checkpoint', expected 'nn'"):
        train(_config(home, init=f"old/checkpoints/{checkpoint.name}"), home / "new")
    (home / "cut").mkdir()
    (home / "cut" / "model.safetensors").write_bytes((home / "old" / "model.safetensors").read_bytes()[:500])
    with pytest.raises(Speech3Error, match=r"cut/model\.safetensors: not a safetensors file, or truncated"):
        train(_config(home, init="cut"), home / "new")
    assert not (home / "new").exists()


def test_other_features_of_as_many_bins_are_said(home, monkeypatch, capsys):
    (home / "old" / "features.yaml").write_text(yaml.safe_dump({"kind": "fbank", "num_mel_bins": 6}))
    (home / "frames" / "features.yaml").write_text(yaml.safe_dump({"kind": "mfcc", "num_ceps": 6}))
    _begin(home, monkeypatch, _config(home, init="old"))
    said = capsys.readouterr().err
    assert "was trained on features that differ" in said and "kind fbank there, mfcc here" in said


def test_a_killed_run_resumes_as_if_it_had_not_been_killed(home, monkeypatch):
    config = _config(home, "same", init="old", schedule="constant", max_epochs=3, momentum=0.5)
    whole = train(config, home / "whole")
    end, ends = run_module._Run._end_epoch, []

    def killed(run):
        if ends:
            raise ZeroDivisionError
        ends.append(end(run))

    monkeypatch.setattr(run_module._Run, "_end_epoch", killed)
    with pytest.raises(ZeroDivisionError):
        train(config, home / "killed")
    monkeypatch.undo()
    again = train(config, home / "killed")
    one, other = (load_tensors(home / name / "model.safetensors")[0] for name in ("whole", "killed"))
    assert all((one[name] == other[name]).all() for name in one)
    assert again["before"] == whole["before"] and again["best_epoch"] == whole["best_epoch"]
    assert [record["epoch"] for record in read_metrics(home / "killed" / "metrics.jsonl")] == [0, 1, 2, 3]


def test_killed_before_the_first_checkpoint(home, monkeypatch):
    config = _config(home, init="old", max_epochs=1)
    _begin(home, monkeypatch, config)
    train(config, home / "new")
    assert [record["epoch"] for record in read_metrics(home / "new" / "metrics.jsonl")] == [0, 1]


def test_another_beginning_is_another_run(home):
    train(_config(home, max_epochs=1), home / "run")
    with pytest.raises(Speech3Error, match=r"holds a run of another config \(init None there, [0-9a-f]{16} now\)"):
        train(_config(home, init="old", max_epochs=1), home / "run")
    train(_config(home, init="old", max_epochs=1), home / "run", restart=True)
    with pytest.raises(Speech3Error, match=r"init [0-9a-f]{16} there, None now"):
        train(_config(home, max_epochs=1), home / "run")
    (home / "moved").mkdir()
    (home / "moved" / "model.safetensors").write_bytes((home / "old" / "model.safetensors").read_bytes())
    train(_config(home, init="moved", max_epochs=1), home / "run")  # the same model elsewhere is no other run


def test_the_option(home, monkeypatch):
    from speech3.cli.train import train as command

    conf = home / "my.yaml"
    config = _config(home, "same", max_epochs=1).model_dump(exclude={"init"})
    conf.write_text(yaml.safe_dump(config))
    app = typer.Typer()
    app.command()(command)
    options = [str(conf), "--init", str(home / "old"), "--out", str(home / "tuned")]
    result = typer.testing.CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.exception
    assert load_network(home / "tuned")[2]["before"]["path"] == str(home / "old" / "model.safetensors")
