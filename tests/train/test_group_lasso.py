"""Group lasso in training: the result is a smaller network that computes the same, in every world; what it refuses."""

import json

import frame_corpus
import pytest
import sentences
import torch

from speech3.config import TrainConfig
from speech3.errors import Speech3Error
from speech3.models import load_network
from speech3.runtime import read_metrics
from speech3.train import train
from speech3.train.parts import make_parts
from speech3.train.run import open_frames


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("lasso")
    frame_corpus.write(root)
    return root


def _config(corpus, model="dnn", **training) -> TrainConfig:
    return frame_corpus.config(corpus, "cpu", model, **{"group_lasso": 0.02, "learning_rate": 0.2, **training})


def _records(out, event):
    return [record for record in read_metrics(out / "metrics.jsonl") if record["event"] == event]


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ("dnn", {}),
        ("cnn", {"optimizer": "adamw", "learning_rate": 0.01, "group_lasso": 0.3, "average": 2}),
        ("lstm", {"group_lasso": 0.02}),
        (
            "dnn",
            {
                "world": "simulated",
                "workers": 3,
                "simulation": {"compute_s": 1.0, "sync_s": 0.05},
                "schedule": "cosine",
                "asgd": {"warm_start": 0.0, "sync_every": 1, "push_scale": 1.0},
            },
        ),
    ],
    ids=["sgd", "adamw", "lstm", "simulated"],
)
def test_the_result_is_smaller_and_computes_the_same(corpus, tmp_path, model, training, capsys):
    about = train(_config(corpus, model, **training), tmp_path)
    *_, last = _records(tmp_path, "epoch")
    (pruning,) = _records(tmp_path, "pruning")
    (width,) = about["model"]["widths"] if model != "lstm" else about["model"]["layer_cells"]
    assert 1 <= width < (16 if model == "lstm" else 32) and [width] == pruning["units"]
    assert pruning["parameters"][1] < pruning["parameters"][0]
    assert about["heldout_loss"] == pruning["heldout_loss"]
    if "average" not in training:
        assert about["best_epoch"] == last["epoch"] and last["units"] == [width]
        assert about["heldout_loss"] == pytest.approx(last["heldout_loss"], abs=1e-3)
    network, _, _ = load_network(tmp_path)
    assert network.output.weight.shape[1] == width
    assert f"-> {pruning['parameters'][1]:,} parameters;" in capsys.readouterr().err
    card = (tmp_path / "MODEL_CARD.md").read_text()
    assert "units left" not in card and "after group lasso has removed units" in card
    assert "The epoch was selected" not in card


def test_a_bottleneck_of_lfmmi_and_its_continuation(tmp_path):
    sentences.write(tmp_path)
    model = {"family": "tdnn", "layers": 2, "width": 16, "bottleneck": 8, "prefinal": 8}
    config = sentences.config_of(tmp_path, model, group_lasso=0.5, learning_rate=0.04)
    about = train(config, tmp_path / "out")
    sizes = list(about["model"]["bottlenecks"])
    assert len(sizes) == 2 and sum(sizes) < 16 and about["model"]["bottleneck"] == 8
    again = config.model_copy(
        update={"init": str(tmp_path / "out"), "training": config.training.model_copy(update={"group_lasso": 0.0})}
    )
    written = json.dumps(sizes, separators=(",", ":"))
    with pytest.raises(Speech3Error, match=rf"set model\.bottlenecks=\{written[:-1]}\]"):
        train(again, tmp_path / "again")
    shape = config.model.model_copy(update={"bottlenecks": tuple(sizes)})
    tuned = train(again.model_copy(update={"model": shape}), tmp_path / "again")
    assert tuned["before"]["heldout_loss"] == pytest.approx(about["heldout_loss"], rel=1e-5)
    assert list(tuned["model"]["bottlenecks"]) == sizes


def test_a_run_without_it_keeps_its_shape_and_has_no_step(corpus, tmp_path):
    config = _config(corpus, group_lasso=0.0, max_epochs=1)
    assert make_parts(config, open_frames(config, corpus)["train"], torch.device("cpu")).proximal is None
    about = train(config, tmp_path)
    assert about["model"]["widths"] == [] and not _records(tmp_path, "pruning")
    assert "units" not in _records(tmp_path, "epoch")[0]


def test_a_layer_without_units_is_named(corpus, tmp_path):
    with pytest.raises(Speech3Error, match=r"group_lasso=50: emptied layer layers\.hidden\.0 .*lower it"):
        train(_config(corpus, group_lasso=50.0), tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("model", "training", "message"),
    [
        ("dnn", {"schedule": "halving"}, "schedule=halving.*choose cosine"),
        ("dnn", {"world": "shared", "workers": 2, "asgd": {"local_updates": False}}, "local_updates=true"),
        ("dnn", {"world": "shared", "model_partitions": 2}, "model_partitions=2"),
        ("dnn", {"world": "sandblaster"}, "not with sandblaster"),
    ],
)
def test_keys_that_do_not_fit_are_named(corpus, tmp_path, model, training, message):
    with pytest.raises(Speech3Error, match=rf"training\.group_lasso=0\.02: .*{message}"):
        train(_config(corpus, model, **training), tmp_path)


@pytest.mark.parametrize(("family", "key"), [("dnn", "normalization"), ("lstm", "cell_normalization")])
def test_norms_over_units_are_named(corpus, tmp_path, family, key):
    config = _config(corpus, family)
    model = config.model.model_copy(update={key: "layer"})
    with pytest.raises(Speech3Error, match=rf"to batch or none\), and this {family} has none"):
        train(config.model_copy(update={"model": model}), tmp_path)


def test_a_size_for_each_layer(corpus):
    with pytest.raises(ValueError, match=r"widths=\[8\]: set a number for each of the layers=2"):
        type(_config(corpus).model)(layers=2, widths=(8,))
