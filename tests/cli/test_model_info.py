"""`speech3 model-info` as a user runs it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from speech3.cli.inspect import model_info
from speech3.cli.measure import Format, score as score_command
from speech3.decode import WordLengths, load_settings
from speech3.errors import MissingError


def test_it_describes_what_a_recipe_trained(experiment: Path, speech3, capsys: pytest.CaptureFixture[str]) -> None:
    process = speech3("model-info", experiment / "dnn")
    assert process.returncode == 0, process.stderr
    for said in (
        "dnn, ",
        "fbank40_d2_utt, 120 values",
        "5 frames before and 5 after",
        "9 frames (90 ms)",
        "digits; train 66 utterances",
        "held-out frames (epoch ",
        "weight 64 x 1320",
        "torch ",
    ):
        assert said in process.stdout, said

    model_info(experiment / "dnn", as_json=True)
    info = json.loads(capsys.readouterr().out)
    senones = info["senones"]
    weights = 1320 * 64 + 2 * 64 * 64 + 64 * senones
    assert (info["flops"], info["parameters"]) == (2 * weights, weights + 3 * 64 + senones)
    assert sum(layer["flops"] for layer in info["layers"]) == info["flops"]
    assert 0 < info["trained"]["heldout_accuracy"] < 1

    model_info(experiment / "tri")
    said = capsys.readouterr().out
    assert "gmm, " in said and "mfcc13_d2_utt, 39 values" in said


def test_no_model(experiment: Path, speech3) -> None:
    process = speech3("model-info", experiment / "data")
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr == (
        f"error: {experiment / 'data'}: no model directory: it has no model.safetensors; pass one, such as exp/dnn\n"
    )


def test_scores_on_the_card(experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(experiment / "dnn", tmp_path / "dnn")
    known = WordLengths({"ONE": (-1.0, 0.2)})  # too many for a card
    replace(load_settings(tmp_path / "dnn"), lengths=known).save(tmp_path / "dnn")
    files = experiment / "data" / "test" / "text", experiment / "decode" / "dnn" / "test" / "hyp.txt"
    options = {"utt2spk": None, "text_format": Format.auto, "details": None, "against": None, "as_json": True}
    score_command(*files, normalize="lower", card=tmp_path / "dnn", **options)
    found = json.loads(capsys.readouterr().out)
    row = f"| {files[0].parent} (text normalised by lower) | 22 | {found['words']} | {100 * found['wer']:.2f} |"
    assert row in (tmp_path / "dnn" / "MODEL_CARD.md").read_text()
    with pytest.raises(MissingError, match=r"tri/model\.safetensors"):
        score_command(*files, normalize="", card=experiment / "tri", **options)
