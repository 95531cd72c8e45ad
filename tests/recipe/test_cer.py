"""A recipe whose metric is CER names it beside every error rate."""

from pathlib import Path

import pytest

from speech3.data.datadir import DataDir, Utterance, write_datadir
from speech3.decode.trained_model import Calibration
from speech3.decode.tune import Tuning, TuningPoint
from speech3.recipe import evaluation
from speech3.recipe.experiment import Experiment, open_experiment
from speech3.runtime.files import read_json, write_json, write_text


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """An experiment after decoding: eight speakers, each with one error in two words of two characters."""
    e = open_experiment("shuzi", tmp_path, None, [], "speech3 recipe shuzi")
    keys = [f"s{n}-000" for n in range(8)]
    rows = {key: Utterance(key, key, key[:2], "三百 五十") for key in keys}
    write_datadir(DataDir(e.data("test"), {key: f"{key}.wav" for key in keys}, rows), e.data("test"))
    for system in e.systems:
        write_text(e.out / "decode" / system / "test" / "hyp.txt", "".join(f"{key} 三百 五\n" for key in keys))
    return e


def test_scores_lines_and_tables(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    cards: list[tuple[Path, str, float]] = []  # there is no model to write them into
    monkeypatch.setattr(evaluation, "write_scores", lambda model, name, result: cards.append((model, name, result.cer)))
    evaluation.score_systems(experiment)
    assert cards == [(experiment.out / name, "shuzi test", 0.25) for name in ("dnn", "sat_dnn")]
    lines = [f"shuzi {system} CER 25.00 [25.00, 25.00]" for system in ("tri", "lda", "sat", "dnn", "sat_dnn")]
    assert evaluation.result_lines(experiment) == lines
    found = read_json(experiment.out / "score" / "dnn" / "score.json")
    assert (found["cer"], found["wer"], found["cer_ci95"]) == (0.25, 0.5, [0.25, 0.25])
    table = (experiment.out / "score" / "dnn" / "per_speaker").read_text().splitlines()
    assert [line.split() for line in table[:2]] == [
        ["speaker", "characters", "correct", "sub", "del", "ins", "cer"],
        ["s0", "4", "3", "0", "1", "0", "25.00"],
    ]


def test_a_second_language_model_has_a_line_of_its_own(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation, "write_scores", lambda *_: None)
    hypotheses = "".join(f"s{n}-000 三百 五十\n" for n in range(8))
    write_text(experiment.out / "decode" / "tri" / "test_own" / "hyp.txt", hypotheses)
    evaluation.score_systems(experiment)
    own = experiment.out / "score" / "tri" / "own_lm.json"
    line = "shuzi tri CER 0.00 [0.00, 0.00]"
    assert (read_json(own)["cer"], read_json(own)["line"]) == (0.0, line)
    assert f"with our own language model: {line}" in capsys.readouterr().err
    assert evaluation.result_lines(experiment)[0].endswith("CER 25.00 [25.00, 25.00]"), "of the given model"
    assert not (own.parents[1] / "dnn" / "own_lm.json").exists()
    (experiment.out / "decode" / "tri" / "test_own" / "hyp.txt").unlink()
    evaluation.score_systems(experiment)
    assert not own.exists()


def test_the_table_of_the_tuning() -> None:
    best = TuningPoint(0.1, 0.0, 0.25)
    assert (
        evaluation._table(Tuning(best, (best,), {}, Calibration(0.0, 1.0)), "CER")
        == "acoustic_scale word_penalty dev_CER\n0.1 0 25.00\n"
    )


@pytest.mark.parametrize(
    ("tri", "dnn", "line"),
    [
        ({"error_rate": 0.01, "wer": 0.02}, {"error_rate": 0.02, "wer": 0.02}, "tri, CER 1.00 %"),
        ({"error_rate": 0.01, "wer": 0.03}, {"error_rate": 0.01, "wer": 0.02},
         "dnn, CER 1.00 %, as has tri; its WER is lower"),
        ({"error_rate": 0.01, "wer": 0.02}, {"error_rate": 0.01, "wer": 0.03},
         "tri, CER 1.00 %, as has dnn; its WER is lower"),
        ({"error_rate": 0.0, "wer": 0.0}, {"error_rate": 0.0, "wer": 0.0},
         "dnn, CER 0.00 %, as has tri; the later system is named"),
        ({"error_rate": 0.0}, {"error_rate": 0.0, "wer": 0.0},
         "dnn, CER 0.00 %, as has tri; the later system is named"),  # an earlier version wrote no second rate
    ],
)  # fmt: skip
def test_of_systems_with_the_same_error_rate_on_dev_the_second_rate_or_the_order_decides(
    experiment: Experiment, tri: dict[str, float], dnn: dict[str, float], line: str
) -> None:
    for system, point in (("tri", tri), ("dnn", dnn)):
        write_json(experiment.out / "decode" / system / "dev" / "best.json", point)
    assert evaluation.summary(experiment).splitlines()[-1] == f"  best on dev: {line}"


def test_the_second_error_rate_of_the_tuning() -> None:
    best = TuningPoint(0.1, 0.0, 0.25)
    found = Tuning(best, (best,), {"u": ("三百", "五")}, Calibration(0.0, 1.0))
    assert evaluation._second_rate(found, {"u": ["三百", "五十"]}, "CER") == {"wer": 0.5}
    assert evaluation._second_rate(found, {"u": ["三百", "五十"]}, "WER") == {"cer": 0.25}
    assert evaluation._second_rate(found, {"u": ["三百", "五十"]}, "PER") == {}
