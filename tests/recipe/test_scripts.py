"""Scripts of recipes, with a program that does nothing in place of `speech3`: what fails ends them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.data.datadir import DataDir, Utterance, read_datadir, write_datadir
from speech3.io.checkpoint import save_tensors
from speech3.recipe.experiment import open_experiment

ROOT = Path(__file__).resolve().parents[2]
STUB = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
[[ $* != $FAILS ]] || { echo "error: it failed" >&2; exit 1; }
[ "$1" != train ] || mkdir -p "$4"
[ "$1" != model-info ] || echo '{"layers": []}'
"""


def run(script: str, home: Path, *arguments: str, fails: str = "nothing") -> tuple[int, str, list[str]]:
    """Exit status, standard error and the calls of `speech3`, of which those that match the pattern `fails` fail."""
    for path in ("frames/lfmmi/train.frames", "frames/tri/train.frames", "lfmmi_hmm/graph/HCLG.fst"):
        (home / "out" / path).parent.mkdir(parents=True, exist_ok=True)
        (home / "out" / path).touch()
    (home / "speech3").write_text(STUB)
    (home / "speech3").chmod(0o755)
    (home / "calls").touch()
    environment = {
        **os.environ,
        "CALLS": str(home / "calls"),
        "FAILS": fails,
        "VIRTUAL_ENV": str(home),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{home}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [ROOT / "recipes" / "minilibri" / script, "--source", "x", "--out", home / "out", *arguments]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return process.returncode, process.stderr, (home / "calls").read_text().splitlines()


@pytest.mark.parametrize("script", ["devices.sh", "families.sh", "zhang.sh"])
def test_no_jobs_are_refused(tmp_path: Path, script: str) -> None:
    status, told, calls = run(script, tmp_path, "--jobs", "0")
    assert (status, calls) == (1, []) and told == "error: --jobs 0: must be a number from 1\n"


def test_a_network_that_is_not_exported_ends_the_table(tmp_path: Path) -> None:
    status, told, calls = run("devices.sh", tmp_path, "--sizes", "100k", fails="export *")
    assert (status, told) == (1, "error: it failed\n")
    assert [call.split()[0] for call in calls] == ["train", "tune", "model-info", "export"]
    assert not (tmp_path / "out" / "devices" / "100k" / "float" / "seconds").exists()


def test_a_family_that_is_not_trained_is_told_before_the_simulations(tmp_path: Path) -> None:
    status, told, calls = run("families.sh", tmp_path, fails="train */lfmmi_dnn *")
    assert status == 1 and told.startswith("lfmmi_dnn: error: it failed (full log: ")
    assert {call.split()[0] for call in calls} == {"train"}
    (cnn,) = [call for call in calls if "/lfmmi_cnn " in call]
    assert cnn.startswith(f"train {tmp_path}/out/families/lfmmi.yaml ") and cnn.endswith("cnn_kaldi model.channels=1")
    assert (tmp_path / "out" / "families" / "lfmmi.yaml").read_text().splitlines()[
        1
    ] == f"hmm: {tmp_path}/out/lfmmi_hmm"


def test_more_real_workers_than_cores_are_refused_at_once(tmp_path: Path) -> None:
    status, told, calls = run("zhang.sh", tmp_path, "--world", "shared", "--workers", "9999")
    assert (status, calls) == (1, []) and "--workers 9999: this machine has " in told


def test_keys_of_asynchronous_runs_are_given_to_these_alone(tmp_path: Path) -> None:
    save_tensors(tmp_path / "out" / "dnn" / "model.safetensors", {"x": np.zeros(1)}, {"kind": "nn", "model": {}})
    keys = "training.asgd.push_scale=1/workers training.asgd.sync_every=3"
    status, _, calls = run("zhang.sh", tmp_path, "--asgd", keys, "--seeds", "1 2", fails="train *")
    assert status == 1 and [call.split()[0] for call in calls] == ["recipe", "augment", "train", "train", "train"]
    assert all((keys in call) == ("training=asgd" in call) for call in calls)
    assert sum(keys in call for call in calls) == 2
    corpus, *overrides = next(call for call in calls if call.startswith("recipe ")).split()[1:]
    experiment = open_experiment(corpus, tmp_path / "out", Path("x"), [each for each in overrides if "=" in each], "")
    assert (tmp_path / "out" / "zhang" / "conf.yaml").read_text().startswith(f"frames: {experiment.frames('dnn')}\n")


def test_folds_have_neither_speakers_nor_sentences_of_their_training(tmp_path: Path) -> None:
    source = tmp_path / "source"
    rows = {f"s{n % 6}-{n}": f"sentence {n // 2}" for n in range(24)}  # pairs of speakers say the same
    data = DataDir(source / "train", {key: "x.wav" for key in rows}, {
        key: Utterance(key, key, key.partition("-")[0], text) for key, text in rows.items()
    })  # fmt: skip
    write_datadir(data, source / "train")
    soundfile.write(source / "train" / "x.wav", np.zeros(8000), 8000)
    stub = (
        '#!/usr/bin/env bash\n[ "$1" = recipe ] || exec python -m speech3 "$@"\necho "$*" >>"$CALLS"\n'
        'mkdir -p "$6/decode/tri/test" && cp "$4/test/text" "$6/decode/tri/test/hyp.txt"\n'
    )
    (tmp_path / "speech3").write_text(stub)
    (tmp_path / "speech3").chmod(0o755)
    home = {"CALLS": str(tmp_path / "calls"), "VIRTUAL_ENV": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **home, "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    out = tmp_path / "out"
    command = [ROOT / "recipes" / "folds.sh", "any", "tri", "--source", source, "--folds", "3", "--out", out]
    process = subprocess.run(
        [*command, "--was", "a=1 b=2", "--now", "a=3"], env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    tested: list[str] = []
    for fold in ("1", "2", "3"):
        train, test = (read_datadir(out / "corpora" / fold / split).utterances for split in ("train", "test"))
        assert not {u.speaker for u in train.values()} & {u.speaker for u in test.values()}
        assert not {u.text for u in train.values()} & {u.text for u in test.values()}
        tested += test
    assert sorted(tested) == sorted(rows)
    calls = (tmp_path / "calls").read_text().splitlines()
    only = ["--to", "tri"]
    assert [call.split()[6:] for call in calls] == [[*only, "a=1", "b=2"]] * 3 + [[*only, "a=3"]] * 3
    assert "WER 0.00" in process.stdout
    # Fewer folds beside those of an earlier run would be pooled with them.
    command[command.index("3")] = "2"
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 1 and f"error: --folds 2: {out} has more folds of an earlier run" in process.stderr
