"""`pretrain=DIR` of a recipe: which networks are pretrained on what, and that they start from it."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from speech3.config import FeatureConfig, load_preset
from speech3.data import DataDir, Utterance, write_datadir
from speech3.errors import Speech3Error
from speech3.frames import open_packed
from speech3.models import load_network
from speech3.recipe import stages
from speech3.recipe.experiment import Experiment, open_experiment
from speech3.recipe.plan import planned_steps


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    root, rng = tmp_path / "more", np.random.default_rng(7)
    root.mkdir()
    for number in range(24):
        soundfile.write(root / f"r{number:02d}.wav", 0.1 * rng.normal(size=2000), 8000)
    return root


def _open(tmp_path: Path, *overrides: str) -> Experiment:
    given = [f"pretrain={tmp_path / 'more'}", "model=dnn_small", "jobs=1", *overrides]
    return open_experiment("any", tmp_path / "out", tmp_path / "in", given, "")


def test_networks_start_from_what_was_pretrained(tmp_path: Path, recordings: Path) -> None:
    e = _open(tmp_path)
    steps = {step.name: step for step in planned_steps(e)}
    order = list(steps)
    for system in ("dnn", "lfmmi"):
        pretraining = steps[f"train/pretrained.{system}"]
        assert pretraining.name in steps[f"train/{system}"].needs and list(pretraining.inputs) == [recordings]
        assert order.index(pretraining.name) < order.index(f"train/{system}")
        assert e.init(system) == str(e.out / "pretrained" / system)
    # An autoencoder is only for families that read windows.
    names = [step.name for step in planned_steps(_open(tmp_path, "pretrain.pretraining=autoencoder"))]
    assert "train/pretrained.dnn" in names and "train/pretrained.lfmmi" not in names
    (tmp_path / "dnn").mkdir()
    with pytest.raises(Speech3Error, match=r"pretrain: networks start from init=.*dnn already; remove one"):
        _open(tmp_path, f"init={tmp_path / 'dnn'}")


def test_recordings_of_dev_and_test_are_left_out(
    tmp_path: Path, recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    e = _open(tmp_path, "pretrain.max_epochs=1", "pretrain.pretraining.clusters=8", "model.width=8", "model.layers=1")
    for split, name in (("dev", "r00"), ("test", "r01")):
        row = Utterance(name, name, name, "x", 0.0, 0.25)
        write_datadir(DataDir(e.data(split), {name: str(recordings / f"{name}.wav")}, {name: row}), e.data(split))
    preset = e.feature_preset("dnn")
    features = load_preset(FeatureConfig, "features", preset).model_copy(update={"sample_frequency": 16000})
    e.features(preset, "train").mkdir(parents=True)
    (e.features(preset, "train") / "features.yaml").write_text(yaml.safe_dump(features.model_dump()))
    stages.pretrain_network(e, "dnn")
    assert "recordings at other rates are resampled to 16,000 Hz: 22 at 8,000 Hz" in capsys.readouterr().err
    run = e.pretrained("dnn")
    assert run is not None
    packed = [open_packed(run / "frames" / f"{name}.frames").utterances for name in ("train", "heldout")]
    assert sorted(name[:3] for part in packed for name in part) == [f"r{number:02d}" for number in range(2, 24)]
    model, _, about = load_network(run)
    assert model.feat_dim == 120 and about["pretraining"]["task"] == "masked"
