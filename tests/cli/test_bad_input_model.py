"""A model with other features or another context than in training: the message names the file and the remedy."""

import re
import shutil
from pathlib import Path

import pytest

from speech3.config import FeatureConfig, TrainConfig, TrainingConfig, load_preset, shipped
from speech3.data.datadir import read_datadir
from speech3.decode.apply import features_for
from speech3.decode.recognizer import load_recognizer
from speech3.errors import MismatchError, Speech3Error
from speech3.features.extraction import extract
from speech3.train import train


@pytest.fixture
def copy(experiment: Path, tmp_path: Path) -> Path:
    """A copy of the experiment's models, to be damaged."""
    for name in ("dnn", "tri"):
        shutil.copytree(experiment / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(("system", "values"), [("dnn", 120), ("tri", 39)])
def test_the_features_of_another_model(copy: Path, system: str, values: int) -> None:
    """Loading the model, with which decode, transcribe, align, tune and forward begin."""
    path = copy / system / "features.yaml"
    path.write_text(re.sub("deltas: 2", "deltas: 1", path.read_text()))
    message = (
        f"{path}: {2 * values // 3} values per frame, but {copy / system}/model.safetensors was trained on {values}; "
    )
    with pytest.raises(Speech3Error, match=re.escape(message + "restore the features.yaml")):
        load_recognizer(copy / system)


def test_as_a_user_sees_it(copy: Path, experiment: Path, speech3) -> None:
    path = copy / "dnn" / "features.yaml"
    path.write_text(re.sub("deltas: 2", "deltas: 0", path.read_text()))
    process = speech3("decode", copy / "dnn", experiment / "data" / "test", copy / "out")
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith(f"error: {path}: 40 values per frame, but ") and process.stderr.count("\n") == 1


@pytest.mark.parametrize("system", ["dnn", "tri"])
def test_given_features_of_another_width(copy: Path, experiment: Path, system: str) -> None:
    shutil.copytree(experiment / "data" / "test", copy / "data")
    fbank40 = load_preset(FeatureConfig, "features", "fbank40")
    extract(read_datadir(copy / "data"), copy / "feats", fbank40, 1)
    shutil.copy(copy / "feats" / "feats.scp", copy / "data")
    shutil.copy(shipped("conf") / "features" / "given.yaml", copy / system / "features.yaml")
    with pytest.raises(MismatchError, match=r"data/feats\.scp"):
        features_for(load_recognizer(copy / system), read_datadir(copy / "data"), 1, copy / "out")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"left_context": 3, "right_context": 3}, "set model.left_context=5 model.right_context=5"),
        ({"family": "cnn"}, "is a dnn, but this run's model is a cnn; pass --init another model"),
    ],
)
def test_going_on_from_a_model_of_another_context(copy: Path, experiment: Path, change: dict, said: str) -> None:
    keys = {"family": "dnn", "layers": 3, "width": 64, **change}
    config = TrainConfig(
        frames=str(experiment / "frames" / "tri"),
        hmm=str(copy / "tri"),
        model=keys,
        init=str(copy / "dnn"),
        training=TrainingConfig(max_epochs=1),
    )
    with pytest.raises(
        Speech3Error, match=re.escape(f"{copy / 'dnn' / 'model.safetensors'}: ") + f".*{re.escape(said)}"
    ):
        train(config, copy / "new")
    assert not (copy / "new").exists()
