"""`speech3 simulate` on the tiny recipe's frames."""

import json
import re

import pytest
import yaml


@pytest.fixture(scope="module")
def conf(experiment, tmp_path_factory):
    path = tmp_path_factory.mktemp("simulate") / "conf.yaml"
    path.write_text(yaml.safe_dump({
        "frames": str(experiment / "frames" / "tri"), "hmm": str(experiment / "tri"),
        "model": {"layers": 1, "width": 32},
        "training": {
            "max_epochs": 2, "schedule": "exponential", "evaluations": 4, "learning_rate": 0.2, "minibatch": 128,
            "asgd": {"warm_start": 0.25}, "simulation": {"compute_s": 0.01, "sync_s": 0.001, "jitter": 0.1},
        },
    }))  # fmt: skip
    return path


@pytest.fixture(scope="module")
def simulated(conf, speech3):
    """The directory of a finished simulation, and its output."""
    out = conf.parent / "out"
    process = speech3("simulate", conf, "--workers", "1,3", "--rates", "0.1,0.3", "--seeds", "1,2", "--out", out)
    assert process.returncode == 0, process.stderr
    return out, process.stdout


def test_a_row_for_every_number_of_workers(simulated):
    out, table = simulated
    rows = {line.split()[0]: line.split() for line in table.splitlines() if re.match(r"(sgd|async|sync)", line)}
    assert list(rows) == ["sgd", "async3", "sync3"]
    assert [rows[name][1] for name in rows] == ["1", "3", "3"]
    assert "(100.0)" in rows["sgd"] and "sync3" in table and "rate" in table
    for picture in ("accuracy_time.png", "accuracy_frames.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    # Every rate with the first seed; the best rate with the second seed in the rows of one and of the most workers.
    runs = {path.name for path in out.iterdir() if path.is_dir()}
    assert len([run for run in runs if run.endswith("seed1")]) == 6
    assert len([run for run in runs if run.endswith("seed2")]) == 3


def test_again_nothing_is_trained_and_the_table_is_the_same(simulated, conf, speech3):
    out, table = simulated
    again = speech3("simulate", conf, "--workers", "1,3", "--rates", "0.1,0.3", "--seeds", "1,2", "--out", out)
    assert again.stdout == table
    assert again.stderr.count("already finished, not trained again") == 9


def test_of_another_config_says_what_helps(simulated, conf, speech3):
    out, _ = simulated
    changed = ("--workers", "1,3", "--rates", "0.1", "--out", out, "training.momentum=0.5")
    process = speech3("simulate", conf, *changed)
    assert process.returncode == 1 and "holds a run of another config (training.momentum" in process.stderr
    assert f"choose another --out, or remove {out}/sgd_rate0.1_seed1 (or all of {out}," in process.stderr
    assert "--restart" not in process.stderr  # an option that this verb does not have


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "0,2"], "--workers 0,2: must be at least 1"),
        (["--workers", "two"], "--workers two: expected numbers separated by commas"),
        (["--rates", "fast"], "--rates fast: expected numbers"),
        (["--rates", "0.1,-1,inf"], "--rates -1,inf: learning rates must be above 0"),
        (["--throughput", "0,2"], "--throughput 0,2: must be at least 1"),
        (["--throughput", "2", "--gigabits", "0"], "--gigabits 0: must be finite numbers of Gbit/s above 0"),
        (["--throughput", "2", "--strategies", "sgd"], "--strategies sgd: --throughput trains nothing"),
        (["--throughput", "2", "--rates", "0.1"], "--rates 0.1: --throughput trains nothing"),
        (["training=partitioned"], "cannot be simulated; simulate the whole model with training.model_partitions=1"),
        (["--models", "dnn"], "--models dnn: only for --throughput"),
        (["--gigabits", "1"], "--gigabits 1: only for --throughput"),
        (["--strategies", ","], "--strategies ,: expected names separated by commas"),
        (["--throughput", "2", "--models", "dnn,cmm"], "cmm: neither a YAML file nor a preset of conf/models"),
        (["--throughput", "2", "training.device=gpu"], "device 'gpu': no such kind of device"),
        (["--strategies", "uphill"], "uphill: neither a YAML file nor a preset of conf/training"),
        (["training.simulation.bandwidth=0"], "bandwidth=0: nothing would ever arrive; use bytes per second above 0"),
        (["training.simulation.compute_s=[0.1,0.2]"], "compute_s: set one time for all workers"),
    ],
)
def test_bad_input(conf, speech3, tmp_path, options, message):
    process = speech3("simulate", conf, "--out", tmp_path / "out", *options)
    assert process.returncode == 1
    assert message in process.stderr and "Traceback" not in process.stderr


def test_throughput_trains_nothing(conf, speech3, tmp_path):
    options = ("--throughput", "1,2,4", "--gigabits", "0.001,100", "--models", "dnn_small,cnn_small")
    process = speech3("simulate", conf, *options, "--out", tmp_path / "out")
    assert process.returncode == 0, process.stderr
    rows = [line.split() for line in process.stdout.splitlines()]
    assert [row[:3] for row in rows if row[:1] == ["cnn_small"] and row[2:3] == ["gain"]] == [
        ["cnn_small", "0.001", "gain"],
        ["cnn_small", "100", "gain"],
    ]
    assert "TernGrad: less bandwidth gains more: " in process.stdout
    found = json.loads((tmp_path / "out" / "throughput.json").read_text())
    assert len(found["points"]) == 2 * 2 * 3 and [each["name"] for each in found["networks"]] == [
        "dnn_small",
        "cnn_small",
    ]
    slow = [point for point in found["points"] if point["bandwidth"] == 125e3 and point["workers"] == 4]
    assert all(point["gain"] > 2 for point in slow)  # on a slow link only the number of bytes matters
    assert (tmp_path / "out" / "throughput.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"throughput.json", "throughput.png"}


def test_strategies_side_by_side(conf, speech3, tmp_path):
    options = ("--strategies", "sgd,asgd,terngrad_ddp,sandblaster", "--workers", "8", "training.max_epochs=1")
    keys = ("training.minibatch=64", "training.lbfgs.iterations=2", "training.simulation.bandwidth=1e8")
    process = speech3("simulate", conf, *options, *keys, "--out", tmp_path / "out")
    assert process.returncode == 0, process.stderr
    lines = [line.split()[:2] for line in process.stdout.splitlines()]
    expected = [["sgd", "1"], ["asgd8", "8"], ["terngrad_ddp8", "8"], ["sandblaster8", "8"]]
    assert [line for line in lines if line in expected] == expected, process.stdout
    assert (tmp_path / "out" / "accuracy_time.png").read_bytes().startswith(b"\x89PNG")
