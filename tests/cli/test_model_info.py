"""`speech3 model-info` as a user runs it."""

import json
from pathlib import Path

import pytest

from speech3.cli.model_info import command


def test_it_describes_what_a_recipe_trained(experiment: Path, speech3, capsys: pytest.CaptureFixture[str]) -> None:
    process = speech3("model-info", experiment / "dnn")
    assert process.returncode == 0, process.stderr
    for said in ("dnn, ", "fbank40_d2_utt, 120 values", "5 frames before and 5 after", "9 frames (90 ms)",
                 "digits; train 66 utterances", "held-out frames (epoch ", "weight 64 x 1320", "torch "):  # fmt: skip
        assert said in process.stdout, said

    command(experiment / "dnn", as_json=True)
    info = json.loads(capsys.readouterr().out)
    senones = info["senones"]
    weights = 1320 * 64 + 2 * 64 * 64 + 64 * senones
    assert (info["flops"], info["parameters"]) == (2 * weights, weights + 3 * 64 + senones)
    assert sum(layer["flops"] for layer in info["layers"]) == info["flops"]
    assert 0 < info["trained"]["heldout_accuracy"] < 1

    command(experiment / "tri")
    said = capsys.readouterr().out
    assert "gmm, " in said and "mfcc13_d2_utt, 39 values" in said


def test_no_model(experiment: Path, speech3) -> None:
    process = speech3("model-info", experiment / "data")
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr == (
        f"error: {experiment / 'data'}: no model directory, for it has no model.safetensors; give one, as exp/dnn\n"
    )
