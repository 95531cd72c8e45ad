"""`speech3 tune`: with the grid of the model's recipe, or with other keys."""

import json
import shutil
from pathlib import Path

import pytest

from speech3.runtime.files import read_json

GRID = ("decode.acoustic_scales=[0.09,0.11]", "decode.word_penalties=[0.25]")


@pytest.fixture
def model(experiment: Path, tmp_path: Path) -> Path:
    """The recipe's network before tuning."""
    model = Path(shutil.copytree(experiment / "dnn", tmp_path / "dnn"))
    (model / "decode.json").unlink()
    return model


def tried(stderr: str) -> set[tuple[float, float]]:
    rows = [line.split() for line in stderr.splitlines() if line.startswith("  acoustic scale ")]
    return {(float(row[2].rstrip(",")), float(row[5].rstrip(":"))) for row in rows}


def test_keys_of_the_grid(model: Path, experiment: Path, speech3) -> None:
    process = speech3("tune", model, experiment / "data" / "dev", *GRID, "decode.beam=12")
    assert process.returncode == 0, process.stderr
    settings = read_json(model / "decode.json")
    assert settings["acoustic_scale"] in (0.09, 0.11)
    assert (settings["word_penalty"], settings["beam"], settings["max_active"]) == (0.25, 12.0, 7000)
    assert tried(process.stderr) == {(0.09, 0.25), (0.11, 0.25)}
    assert f"acoustic scale {settings['acoustic_scale']:g}, word penalty 0.25, WER " in process.stdout


def test_the_recipe_left_its_grid(model: Path, experiment: Path, speech3) -> None:
    before = read_json(experiment / "dnn" / "decode.json")
    kept = read_json(model / "tuning.json")
    process = speech3("tune", model, experiment / "data" / "dev")
    after = read_json(model / "decode.json")
    assert after.pop("confidence") == pytest.approx(
        before.pop("confidence"), abs=0.01
    )  # another BLAS may round differently
    assert after == before, process.stderr
    (model / "tuning.json").write_text(json.dumps({**kept, "acoustic_scales": [0.3], "word_penalties": [2.0]}))
    process = speech3("tune", model, experiment / "data" / "dev")
    assert tried(process.stderr) == {(0.3, 2.0)}
    assert "WER" in process.stdout


def test_the_metric_of_the_recipe_is_what_is_made_lowest(model: Path, experiment: Path, speech3) -> None:
    (model / "tuning.json").write_text(json.dumps({**read_json(model / "tuning.json"), "metric": "CER"}))
    process = speech3("tune", model, experiment / "data" / "dev", *GRID)
    assert "CER" in process.stdout and "WER" not in process.stdout, process.stderr


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("decode.acoustic_scale=0.1", "unknown key 'acoustic_scale'; known here: acoustic_scales, beam, "),
        ("acoustic_scales=[0.1]", "acoustic_scales=[0.1]: unknown key; known here: decode.acoustic_scales, "),
        ("decode.acoustic_scales=0.1", "acoustic_scales: Input should be a list, as in "),
        ("decode.word_penalties=[]", "word_penalties: "),
        ("decode.beam", "an override has the form key=value"),
        ("decode.lfmmi_acoustic_scales=[1.0]", "decode.lfmmi_acoustic_scales=[1.0]: has no effect here"),
    ],
)
def test_keys_that_are_none(model: Path, experiment: Path, speech3, key: str, message: str) -> None:
    process = speech3("tune", model, experiment / "data" / "dev", key)
    assert process.returncode == 1 and message in process.stderr and process.stderr.count("\n") == 1
    assert not (model / "decode.json").exists()
