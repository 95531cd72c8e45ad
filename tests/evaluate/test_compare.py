"""Comparisons of hand-made run directories whose times, efficiencies and rates are known."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from speech3.errors import SettingError
from speech3.evaluate import comparison as compare
from speech3.evaluate.comparison import as_json, clock, compare_runs, comparison_text
from speech3.train.curves import Curve, make_table

HOUR = 360_000  # frames of 10 ms
SHARDS = [{"minibatches": n, "compute_s": 90.0, "sync_s": 1.0, "wait_s": 0.5, "busy": 3} for n in (60, 40)]
COUNTS = {"used": 97, "stale": 2, "refused": 1, "returned": 5}
PUSHED = {
    "staleness": [10, 20, 10],
    "shards": SHARDS,
    "minibatches": COUNTS,
    "versions": 40,
    "restarts": 1,
    "bytes_per_minibatch": {"up": 1234.5, "down": 20_000.0},
}


def a_run(
    path: Path,
    world: str,
    workers: int,
    points: list[tuple[float, float]],
    *,
    finished: bool = True,
    identity: dict[str, Any] | None = None,
    epoch_frames: int = HOUR,
    **more: Any,
) -> Path:
    """A run directory with an epoch for each (seconds, held-out accuracy)."""
    path.mkdir(parents=True)
    about = {"training": {"world": world, "workers": workers}, "frames": {"heldout": "0a"}, **(identity or {})}
    (path / "run.json").write_text(json.dumps(about), encoding="utf-8")
    with (path / "metrics.jsonl").open("w", encoding="utf-8") as stream:
        for epoch, (seconds, accuracy) in enumerate(points, 1):
            record = {
                "event": "epoch",
                "epoch": epoch,
                "seconds": seconds,
                "frames": epoch * epoch_frames,
                "heldout_accuracy": accuracy,
                **more,
            }
            stream.write(json.dumps(record) + "\n")
    if finished:
        (path / "model.safetensors").touch()
    return path


def scored(run: Path, metric: str, wer: float, cer: float) -> None:
    path = run.parent / "score" / run.name / "score.json"
    path.parent.mkdir(parents=True)
    rate = wer if metric == "WER" else cer
    values = {"wer": wer, "cer": cer, "line": f"digits {run.name} {metric} {100 * rate:.2f} [1.00, 2.00]"}
    path.write_text(json.dumps(values), encoding="utf-8")


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Two shards, one worker, DDP in this order; the best of one worker is 0.50."""
    asgd = a_run(tmp_path / "asgd2", "shared", 2, [(100, 0.30), (160, 0.46), (200, 0.48)], **PUSHED)
    sgd = a_run(tmp_path / "sgd", "sgd", 1, [(100, 0.30), (200, 0.45), (300, 0.50)])
    ddp = a_run(tmp_path / "ddp2", "ddp", 2, [(80, 0.30), (200, 0.45)], finished=False)
    scored(sgd, "WER", 0.386, 0.2)
    scored(asgd, "WER", 0.391, 0.21)
    return [asgd, sgd, ddp]


def test_values(three: list[Path]) -> None:
    values = as_json(compare_runs(three))
    assert values["accuracies"] == pytest.approx([0.45, 0.475, 0.49])
    assert values["baseline"] == "sgd"
    sgd, asgd, ddp = values["runs"]
    assert [run["name"] for run in values["runs"]] == ["sgd", "asgd2", "ddp2"]
    assert sgd["seconds"] == pytest.approx([200, 250, 280])
    assert sgd["efficiency"] == pytest.approx([1, 1, 1])
    assert sgd["minutes_per_10h"] == pytest.approx(300 / 60 * 10)  # one hour of speech, five minutes
    assert (sgd["wer"], sgd["world"], sgd["finished"], sgd["epochs"]) == (0.386, "sgd", True, 3)
    assert asgd["seconds"][:2] == pytest.approx([100 + 60 * 15 / 16, 190])
    assert asgd["efficiency"][:2] == pytest.approx([200 / (2 * 156.25), 250 / (2 * 190)])
    assert (asgd["seconds"][2], asgd["efficiency"][2]) == (None, None)
    assert asgd["minutes_per_10h"] == pytest.approx(200 / 60 * 10 * 0.97)  # frames leave out what was dropped
    assert asgd["staleness_mean"] == 1.0
    assert asgd["staleness_p95"] == 2
    assert asgd["minibatches"] == {key: 3 * value for key, value in COUNTS.items()}
    assert (asgd["drops"], asgd["restarts"], asgd["shares"]) == (9, 3, [0.6, 0.4])
    assert (ddp["efficiency"][0], ddp["finished"], ddp["workers"]) == (pytest.approx(0.5), False, 2)
    assert asgd["bytes_per_minibatch"] == {"up": 1234.5, "down": 20_000.0}
    assert not ddp.keys() & {"wer", "cer", "drops", "bytes_per_minibatch"}
    json.dumps(values)


def test_what_people_read(three: list[Path]) -> None:
    text = comparison_text(compare_runs(three))
    head, sgd, asgd, ddp = (line.split("  ") for line in text.splitlines()[:4])
    assert [cell.strip() for cell in head if cell.strip()] == [
        "run", "workers", "45.00 %", "47.50 %", "49.00 %", "best %", "last %", "world", "min/10 h", "WER %",
        "staleness, p95", "drops", "kB up, down",
    ]  # fmt: skip
    assert [cell.strip() for cell in sgd if cell.strip()] == [
        "sgd", "1", "3:20.0 (100.0)", "4:10.0 (100.0)", "4:40.0 (100.0)", "50.00", "50.00", "sgd", "50.0", "38.60",
        "-", "-", "-",
    ]  # fmt: skip
    assert [cell.strip() for cell in asgd if cell.strip()] == [
        "asgd2", "2", "2:36.3 (64.0)", "3:10.0 (65.8)", "-", "48.00", "48.00", "shared", "32.3", "39.10", "1.00, 2",
        "9", "1.2, 20.0",
    ]  # fmt: skip
    assert "ddp, epoch 2" in "  ".join(ddp)
    assert "note: ddp2: not finished" in text
    assert "drops: " in text


@pytest.mark.parametrize(("method", "baseline"), [("asgd", "sgd"), ("sandblaster", "sgd"), ("synchronous", "one")])
def test_one_simulated_worker_is_the_baseline_if_it_is_plain_sgd(tmp_path: Path, method: str, baseline: str) -> None:
    training = {"world": "simulated", "workers": 1, "simulation": {"strategy": method}}
    one = a_run(tmp_path / "one", "simulated", 1, [(100, 0.30)], identity={"training": training})
    sgd = a_run(tmp_path / "sgd", "sgd", 1, [(100, 0.50)])
    assert as_json(compare_runs([one, sgd]))["baseline"] == baseline


def test_characters_and_the_frame_shift_of_the_features(tmp_path: Path) -> None:
    run = a_run(tmp_path / "sgd", "sgd", 1, [(300, 0.5)], epoch_frames=HOUR // 2)
    (run / "features.yaml").write_text("frame_shift: 20\n", encoding="utf-8")
    scored(run, "CER", 0.3, 0.123)
    values = as_json(compare_runs([run]))["runs"][0]
    assert values["minutes_per_10h"] == pytest.approx(50)
    assert values["cer"] == 0.123
    assert "wer" not in values
    assert "CER %" in comparison_text(compare_runs([run]))


def test_without_one_worker_there_is_no_efficiency(three: list[Path]) -> None:
    comparison = compare_runs([three[0], three[2]])
    assert as_json(comparison)["baseline"] is None
    assert as_json(comparison)["accuracies"] == pytest.approx([0.432, 0.456, 0.4704])  # of asgd2
    assert all(run["efficiency"] == [None] * 3 for run in as_json(comparison)["runs"])
    text = comparison_text(comparison)
    assert "(" not in text.splitlines()[1]
    assert "no run is plain SGD on one worker, so no efficiency" in text
    assert "brackets" not in text


def test_one_shard_alone_is_no_baseline(tmp_path: Path, three: list[Path]) -> None:
    one = a_run(tmp_path / "asgd1", "shared", 1, [(100, 0.3), (250, 0.45)])
    values = as_json(compare_runs([one, *three]))
    assert values["baseline"] == "sgd"
    assert values["runs"][1]["efficiency"][0] == pytest.approx(200 / 250)


def test_the_first_of_two_baselines_counts(tmp_path: Path, three: list[Path]) -> None:
    other = a_run(tmp_path / "again" / "sgd", "sgd", 1, [(200, 0.30), (400, 0.45), (600, 0.50)])
    values = as_json(compare_runs([other, *three]))
    assert values["baseline"] == str(other)  # two are called sgd: paths tell them apart
    assert values["runs"][2]["name"] == str(three[1])
    assert values["runs"][2]["efficiency"] == pytest.approx([2, 2, 2])


def test_what_is_no_run_is_left_out(three: list[Path], tmp_path: Path) -> None:
    (tmp_path / "score" / "x").mkdir()
    begun = a_run(tmp_path / "begun", "sgd", 1, [], finished=False)
    notes = compare_runs([*three, tmp_path / "score", tmp_path / "nowhere", begun]).notes
    assert f"left out: {tmp_path / 'score'}, {tmp_path / 'nowhere'}: not the directory of a training run" in notes
    assert any("begun: no held-out accuracy in metrics.jsonl yet" in note for note in notes)


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no run to compare.*speech3 train wrote:\n.*"):
        compare_runs([tmp_path, tmp_path / "nowhere"])


def test_cautions(three: list[Path], tmp_path: Path) -> None:
    identity = {"frames": {"heldout": "0b"}, "init": "0123"}
    other = a_run(tmp_path / "other", "simulated", 2, [(5, 0.46)], identity=identity)
    notes = " ".join(compare_runs([*three, other]).notes)
    assert "other: started from a trained model" in notes
    assert "other: other held-out frames than sgd," in notes
    assert "other: above 45.00 % when first evaluated" in notes
    assert "other: times are virtual (simulated) and cannot be compared with measured" in notes
    score = tmp_path / "score" / "sgd" / "score.json"
    os.utime(score, (1, 1))
    assert any("older than the model" in note for note in compare_runs(three).notes)


def test_the_talks_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The rows of the SPEECH3 talk's CNN for 1, 2 and 5 workers, as it prints them (DESIGN.md)."""
    accuracies = (0.40, 0.43, 0.44)
    times = {1: (350.0, 876.0, 1169.0), 2: (216.0, 539.0, 718.0), 5: (100.0, 229.0, 343.0)}
    alone, *others = (Curve(f"cnn{n}", n, t, (1, 2, 3), accuracies) for n, t in times.items())
    table = make_table(alone, others, accuracies)
    compare.print_table(table, [("WER %", ["3.95", "4.11", "4.06"])])
    printed = capsys.readouterr().out
    assert printed.startswith(compare.table_text(table, [("WER %", ["3.95", "4.11", "4.06"])]))
    rows = [line.split() for line in printed.splitlines()[:4]]
    assert rows[2] == ["cnn2", "2", "3:36", "(81.0)", "8:59", "(81.3)", "11:58", "(81.4)", "44.00", "44.00", "4.11"]
    assert rows[3] == ["cnn5", "5", "1:40", "(70.0)", "3:49", "(76.5)", "5:43", "(68.2)", "44.00", "44.00", "4.06"]


@pytest.mark.parametrize(
    ("seconds", "tenths", "text"),
    [
        (0, False, "0:00"),
        (59.5, False, "1:00"),
        (216, False, "3:36"),
        (59.96, True, "1:00.0"),
        (2.79, True, "0:02.8"),
        (3599.4, False, "59:59"),
        (3816, False, "1:03:36"),
        (90000, False, "25:00:00"),
    ],
)
def test_clock(seconds: float, tenths: bool, text: str) -> None:
    assert clock(seconds, tenths) == text


def test_pictures(three: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "figures"
    written = compare.write_figures(out, compare_runs(three))
    names = ["accuracy_time.png", "accuracy_frames.png", "staleness.png", "shards.png"]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    for path in written:
        pixels = np.rint(255 * imread(path)[..., :3]).astype(int) @ (1 << 16, 1 << 8, 1)
        assert (pixels == 0x1F63B5).any() or path.name == "staleness.png"  # the page's first colour, not a stand-in
        assert (pixels == 0xC2570C).any()  # asgd2 is the second run
    synchronous = compare.write_figures(tmp_path / "less", compare_runs(three[1:]))
    assert [path.name for path in synchronous] == names[:2]
