"""`speech3 simulate` on the tiny recipe's frames."""

import re

import pytest
import yaml


@pytest.fixture(scope="module")
def conf(experiment, tmp_path_factory):
    path = tmp_path_factory.mktemp("simulate") / "conf.yaml"
    path.write_text(yaml.safe_dump({
        "data": str(experiment / "frames" / "tri"), "hmm": str(experiment / "tri"),
        "model": {"layers": 1, "width": 32},
        "training": {
            "max_epochs": 2, "schedule": "exponential", "evaluations": 4, "learning_rate": 0.2, "minibatch": 128,
            "asgd": {"warm_start": 0.25}, "simulation": {"compute_s": 0.01, "sync_s": 0.001, "jitter": 0.1},
        },
    }))  # fmt: skip
    return path


@pytest.fixture(scope="module")
def simulated(conf, speech3):
    """The directory of a finished simulation, and what it printed."""
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
    # Every rate with the first seed; the best one of each row with the second (rows of one and of the most workers).
    runs = {path.name for path in out.iterdir() if path.is_dir()}
    assert len([run for run in runs if run.endswith("seed1")]) == 6
    assert len([run for run in runs if run.endswith("seed2")]) == 3


def test_again_nothing_is_trained_and_the_table_is_the_same(simulated, conf, speech3):
    out, table = simulated
    again = speech3("simulate", conf, "--workers", "1,3", "--rates", "0.1,0.3", "--seeds", "1,2", "--out", out)
    assert again.stdout == table
    assert again.stderr.count("finished before, not trained again") == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "0,2"], "--workers 0,2: at least one worker each"),
        (["--workers", "two"], "--workers two: expected numbers with commas"),
        (["--rates", "fast"], "--rates fast: expected numbers"),
        (["--rates", "0.1,-1,inf"], "--rates -1,inf: a learning rate is above 0"),
        (["training.simulation.compute_s=[0.1,0.2]"], "compute_s: give one time for all workers"),
    ],
)
def test_bad_input(conf, speech3, tmp_path, options, message):
    process = speech3("simulate", conf, "--out", tmp_path / "out", *options)
    assert process.returncode == 1
    assert message in process.stderr and "Traceback" not in process.stderr
