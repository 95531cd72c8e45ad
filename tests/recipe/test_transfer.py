"""`init=MODEL` of a recipe: which network starts from it, with which architecture, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from speech3.config import FeatureConfig, ModelConfig, load_preset
from speech3.data.datadir import DataDir, Utterance, write_datadir
from speech3.errors import Speech3Error
from speech3.io.checkpoint import save_tensors
from speech3.recipe.experiment import Experiment, open_experiment
from speech3.recipe.plan import planned_steps


def _model(directory: Path, preset: str, features: str, objective: str = "cross_entropy", **changes: object) -> Path:
    model = load_preset(ModelConfig, "models", preset).model_copy(update=changes)
    about = {"kind": "nn", "model": model.model_dump(), "objective": objective}
    save_tensors(directory / "model.safetensors", {"output.bias": np.zeros(3, np.float32)}, about)
    config = load_preset(FeatureConfig, "features", features).model_copy(update={"sample_frequency": 16000})
    (directory / "features.yaml").write_text(yaml.safe_dump(config.model_dump()))
    return directory


def _open(tmp_path: Path, *overrides: str) -> Experiment:
    return open_experiment("any", tmp_path / "out", tmp_path / "in", ["model=dnn_small", *overrides], "")


def test_each_network_starts_from_the_one_of_its_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    _model(run / "lfmmi", "cnn_tdnn", "fbank40_utt", "lfmmi", width=256, dropout=0.3)
    e = _open(tmp_path, f"init={run / 'lfmmi'}", "lfmmi.model.dropout=0.2")
    assert set(e.starts) == {"lfmmi"} and e.start("dnn") is None
    assert (e.recipe.lfmmi.model.width, e.recipe.lfmmi.model.dropout) == (256, 0.2)  # dropout changes no parameter
    assert "lfmmi.model is changed to that of init=" in capsys.readouterr().err
    assert e.presets["fbank40_utt"].sample_frequency == 16000 and e.presets["fbank40_utt"].resample
    assert e.presets["mfcc13_d2"].sample_frequency is None
    inputs = {step.name: list(step.inputs) for step in planned_steps(e)}
    assert inputs["train/lfmmi"] == [run / "lfmmi" / "model.safetensors"] and not inputs["train/dnn"]

    _model(run / "dnn", "dnn", "fbank40_d2")
    e = _open(tmp_path, f"init={run}")
    assert set(e.starts) == {"lfmmi", "dnn"} and e.recipe.model.width == 512
    assert [e.start(name).directory.name for name in ("lfmmi", "lfmmi_self", "dnn")] == ["lfmmi", "lfmmi", "dnn"]
    no_lfmmi = e.recipe.model_copy(update={"lfmmi": None})
    assert replace(e, recipe=no_lfmmi, enough=False).presets["mfcc13_d2"].sample_frequency is None
    assert _open(tmp_path).starts == {}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["init={}/none"], r"no trained network is there .* a model directory .* run that has dnn or lfmmi"),
        (["init={}/lfmmi", "lfmmi=null"], r"trained with LF-MMI, but this recipe trains no such network: set lfmmi="),
        (["init={}/dnn", "features=fbank40_d2_utt"], r"cmvn speaker there, utterance here\): set features=.*dnn/feat"),
        (["init={}/dnn", "hmm.flat_start=lfmmi"], r"trained on senones, .* no such network: remove hmm\.flat_start"),
        (["init={}/lfmmi", "sample_rate=8000"], r"recordings of 16000 Hz, but sample_rate=8000: set sample_rate=16000"),
        (["init={}/dnn", "model=cnn"], r"is a dnn, but model is a cnn: set model to a dnn, or"),
        (["init={}/gmm"], r"holds no network"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, overrides: list[str], message: str) -> None:
    _model(tmp_path / "lfmmi", "cnn_tdnn", "fbank40_utt", "lfmmi")
    _model(tmp_path / "dnn", "dnn", "fbank40_d2")
    save_tensors(tmp_path / "gmm" / "model.safetensors", {"a": np.zeros(3)}, {"kind": "gmm"})
    with pytest.raises(Speech3Error, match=message):
        _open(tmp_path, *(override.format(tmp_path) for override in overrides))


def test_a_network_to_start_from_needs_less_speech(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _model(tmp_path / "lfmmi", "cnn_tdnn", "fbank40_utt", "lfmmi")
    e = _open(tmp_path, f"init={tmp_path / 'lfmmi'}")
    assert e.min_minutes["lfmmi.min_minutes"] == 1 and _open(tmp_path).min_minutes["lfmmi.min_minutes"] == 10
    for minutes, trained in ((2, True), (0.7, False)):
        row = Utterance("a", "a", "a", "leo", 0.0, 60 * minutes)
        write_datadir(DataDir(e.out, {"a": "a.wav"}, {"a": row}), e.data("train"))
        found = _open(tmp_path, f"init={tmp_path / 'lfmmi'}").settled()
        assert ("lfmmi" in found.trained) == trained
        assert (f"so init={tmp_path / 'lfmmi'} cannot be used" in capsys.readouterr().err) != trained
