"""`model=cnn` after an earlier DNN: the same GMMs, frames and graph, one report; names of the other families."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from speech3.config import LstmConfig, ModelConfig, load_preset, presets, recipes
from speech3.config.models import TIME_DELAY
from speech3.models.info import model_info
from speech3.recipe.experiment import MAKES_ITS_OWN, open_experiment
from speech3.recipe.plan import planned_steps
from speech3.recipe.steps import make_plan
from speech3.runtime.files import read_json

CNN = ("model=cnn_small", "model.width=32")  # after `tiny`, whose model.width is the DNN's


def _others(tiny: Sequence[str]) -> list[str]:
    return [each for each in tiny if not each.startswith("model.")]


def _would(out: Path, *overrides: str) -> list[str]:
    """Names of the steps that would run."""
    experiment = open_experiment("digits", out, None, list(overrides), "")
    return [plan.step.name for plan in make_plan(planned_steps(experiment), out, None, None) if plan.why]


def _ran(stderr: str) -> list[str]:
    return re.findall(r"^\[\d+/\d+\] (\S+): .*, running$", stderr, re.M)


@pytest.mark.slow
def test_a_cnn_beside_the_dnn(speech3, tiny: Sequence[str], mine: Path) -> None:
    kept = {path: path.read_bytes() for path in mine.glob("*/model.safetensors")}
    kept |= {path: path.read_bytes() for path in (mine / "frames" / "tri").glob("*.frames")}
    options = ("recipe", "digits", "--out", mine, *_others(tiny), *CNN)
    process = speech3(*options)
    assert process.returncode == 0, process.stderr
    assert _ran(process.stderr) == ["train/cnn", "decode/cnn", "score", "report"]
    assert {path: path.read_bytes() for path in kept} == kept
    assert [line.split()[1] for line in process.stdout.splitlines()[-3:]] == ["mono", "tri", "cnn"]
    assert re.search(r"^digits cnn WER \d+\.\d\d \[", process.stdout, re.M)
    assert read_json(mine / "score" / "cnn" / "score.json")["line"] == process.stdout.splitlines()[-1]

    page = (mine / "report.html").read_text()
    assert all(f">{system}</td>" in page for system in ("mono", "tri", "dnn", "cnn"))
    for system in ("tri", "dnn", "cnn"):
        assert f">{model_info(mine / system).parameters:,}</td>" in page, system
    for system, kind in (("dnn", "A DNN"), ("cnn", "A CNN")):
        card = (mine / system / "MODEL_CARD.md").read_text()
        score = read_json(mine / "score" / system / "score.json")
        assert kind in card and f"| digits test | 22 | {score['words']} | {100 * score['wer']:.2f} |" in card

    assert _would(mine, *_others(tiny), *CNN) == []
    back = speech3("recipe", "digits", "--out", mine, *tiny)
    assert _ran(back.stderr) == ["score", "report"], "another choice of what stands beside; nothing is trained"
    assert [line.split()[1] for line in back.stdout.splitlines()[-3:]] == ["mono", "tri", "dnn"]
    assert ">cnn</td>" in (mine / "report.html").read_text()


def test_a_network_that_is_out_of_date_is_not_shown(speech3, tiny: Sequence[str], mine: Path) -> None:
    """Its graph has been built again, so its results are not comparable."""
    options = (*tiny, "lm.self_loop_scale=0.5", "--from", "graph", "--to", "graph")
    assert speech3("recipe", "digits", "--out", mine, *options).returncode == 0
    experiment = open_experiment("digits", mine, None, [*_others(tiny), *CNN], "")
    assert experiment.shown == ("mono", "tri", "cnn")


def test_a_network_decoded_with_other_settings_is_not_shown(tiny: Sequence[str], mine: Path) -> None:
    for key, shown in (("decode.max_active=2001", False), ("jobs=1", True)):
        experiment = open_experiment("digits", mine, None, [*_others(tiny), *CNN, key], "")
        assert ("dnn" in experiment.shown) == shown


def test_what_another_family_changes(tiny: Sequence[str], experiment: Path) -> None:
    others = _others(tiny)
    assert _would(experiment, *tiny) == []
    for model, system in (("lstm", "lstm"), ("blstm", "blstm"), ("cnn", "cnn")):
        training = [f"train/{system}", f"decode/{system}", "score", "report"]
        assert _would(experiment, *others, f"model={model}") == training
    assert _would(experiment, *others, "model=lstm", "realign=1") == [
        "train/lstm",
        "train/lstm_realigned1.align",
        "train/lstm.frames",
        "train/lstm_realigned1",
        "decode/lstm",
        "decode/lstm_realigned1",
        "score",
        "report",
    ]


@pytest.mark.parametrize("recipe", recipes())
@pytest.mark.parametrize("preset", presets("models"))
def test_every_recipe_takes_every_preset(recipe: str, preset: str, tmp_path: Path) -> None:
    source = None if recipe in MAKES_ITS_OWN else tmp_path / "in"
    experiment = open_experiment(recipe, tmp_path / "out", source, [f"model={preset}"], "")
    config = load_preset(ModelConfig, "models", preset)
    assert experiment.recipe.model == config
    both_ways = isinstance(config, LstmConfig) and config.bidirectional
    beside = ("lfmmi",) if experiment.recipe.lfmmi else ()
    mono = ("mono",) if experiment.recipe.decode_mono else ()
    name = config.family.replace("lstm", "blstm") if both_ways else config.family
    assert experiment.systems == (*mono, "tri", "lda", "sat", name, f"sat_{name}", *beside)
    default = open_experiment(recipe, tmp_path / "out", source, [], "").recipe
    training = default.recurrent if isinstance(config, LstmConfig) else default.training
    training = default.time_delay if isinstance(config, TIME_DELAY) else training
    assert experiment.recipe == default.model_copy(update={"model": config, "training": training})
