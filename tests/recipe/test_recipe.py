"""`speech3 recipe digits` from the beginning to report.html; run again, changed, killed, interrupted; its models."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from speech3.io.ark import ArkReader, read_int_ark
from speech3.runtime.files import read_json

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]
Finished = tuple[Path, subprocess.CompletedProcess[str]]
STAGES = ["data", "features", "hmm", "graph", "train", "decode", "score", "report"]


def results(process: subprocess.CompletedProcess[str]) -> list[str]:
    return process.stdout.splitlines()[-3:]


def ran(stderr: str) -> list[str]:
    """Names of the steps that ran, without those that were already done."""
    return re.findall(r"^\[\d+/\d+\] (\S+): .*, running$", stderr, re.M)


def plan(speech3: Run, out: Path, *arguments: str) -> dict[str, str]:
    """Each step of a dry run, with the text printed for it."""
    process = speech3("recipe", "digits", "--out", out, "--dry-run", *arguments)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return dict(re.findall(r"^(\w+(?:/\S+)?): (done|would run \(.*\)(?=;|$))", process.stdout, re.M))


def test_the_last_lines_are_the_results(finished: Finished) -> None:
    systems = []
    for line in results(finished[1]):
        match = re.fullmatch(r"digits (\w+) WER (\d+\.\d\d) \[(\d+\.\d\d), (\d+\.\d\d)\]", line)
        assert match, line
        systems.append(match[1])
        wer, low, high = map(float, match.groups()[1:])
        assert low <= wer <= high
        assert wer < 60  # chance is above 100
        assert f"{100 * read_json(finished[0] / 'score' / match[1] / 'score.json')['wer']:.2f}" == match[2]
    assert systems == ["mono", "tri", "dnn"]


def test_it_says_where_everything_is(finished: Finished) -> None:
    out, process = finished
    for name in ("report.html", "mono", "tri", "dnn", "aligner", "decode", "score"):
        assert str(out / name) in process.stdout
        assert (out / name).exists()
    page = (out / "report.html").read_text()
    assert "<html" in page and "max_epochs: 2" in page and "model.width=64" in page
    for section in ("Worst utterances", "Suspicious transcripts", "Words outside the vocabulary", "Terms"):
        assert f"<h2>{section}</h2>" in page
    assert '<audio controls preload="metadata" src="data:audio/' in page
    assert 1 <= page.count(">alignment, and what was recognised<") <= 10


def test_the_stages_in_their_order(finished: Finished) -> None:
    assert list(dict.fromkeys(name.partition("/")[0] for name in ran(finished[1].stderr))) == STAGES


def test_a_second_run_runs_nothing(finished: Finished, speech3: Run, tiny: Sequence[str]) -> None:
    out, first = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    again = speech3("recipe", "digits", "--out", out, *tiny)
    assert again.returncode == 0
    assert again.stdout == first.stdout
    assert ran(again.stderr) == []
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_dry_run(experiment: Path, speech3: Run, tiny: Sequence[str]) -> None:
    assert set(plan(speech3, experiment, *tiny).values()) == {"done"}
    changed = plan(speech3, experiment, *tiny, "model.width=32")
    would = {name for name, what in changed.items() if what != "done"}
    assert {name.partition("/")[0] for name in would} <= {"train", "decode", "score", "report"}
    assert {name for name in would if "/" in name} == {"train/dnn", "decode/dnn"}
    assert changed["train/dnn"] == "would run (model.width 64 -> 32)"
    assert changed["decode/dnn"] == "would run (train/dnn runs again)"
    scaled = plan(speech3, experiment, *tiny, "lm.self_loop_scale=1.0")
    graphs = {name for name, what in scaled.items() if what == "would run (lm.self_loop_scale 0.1 -> 1.0)"}
    assert graphs == {"graph/mono", "graph/tri"}
    assert {name for name, what in scaled.items() if name.startswith("hmm/") or name == "graph/lm"} <= {
        name for name, what in scaled.items() if what == "done"
    }


def test_dry_run_of_nothing_writes_nothing(tmp_path: Path, speech3: Run, tiny: Sequence[str]) -> None:
    assert set(plan(speech3, tmp_path / "new", *tiny).values()) == {"would run (not done yet)"}
    assert not (tmp_path / "new").exists()


def test_to_and_from(mine: Path, speech3: Run, tiny: Sequence[str]) -> None:
    out = speech3("recipe", "digits", "--out", mine, "--from", "score", "--to", "score", *tiny)
    assert ran(out.stderr)[0] == "score"
    assert {name.partition("/")[0] for name in ran(out.stderr)} == {"score"}
    assert out.stdout.splitlines()[-1] == f"stopped after stage score; the results so far are in {mine}"
    bad = speech3("recipe", "digits", "--out", mine, "--from", "scoring", *tiny)
    assert (bad.returncode, bad.stderr) == (1, f"error: no stage 'scoring'; the stages are: {', '.join(STAGES)}\n")
    bad = speech3("recipe", "digits", "--out", mine, "--to", "gmm", *tiny)
    assert bad.returncode == 1 and bad.stderr.endswith("the systems: mono, tri, dnn\n"), bad.stderr


def test_only_what_a_system_needs(finished: Finished, mine: Path, speech3: Run, tiny: Sequence[str]) -> None:
    every, needed = (set(plan(speech3, mine, *tiny, *more)) for more in ((), ("--to", "tri")))
    assert {"hmm/mono", "hmm/tri", "graph/lm", "graph/tri", "decode/tri"} <= needed < every
    assert not {"hmm/aligner", "train/dnn", "decode/dnn", "graph/mono", "decode/mono", "score"} & needed
    # What is there is not made again, and the error rate is that of the whole recipe.
    out = speech3("recipe", "digits", "--out", mine, "--to", "tri", *tiny)
    assert ran(out.stderr) == []
    stopped, rate = out.stdout.splitlines()
    assert stopped == f"stopped after tri; the results so far are in {mine}"
    assert rate in results(finished[1])


@pytest.mark.slow
def test_rescoring_is_added_to_a_finished_recipe(mine: Path, speech3: Run, tiny: Sequence[str]) -> None:
    network = mine / "tiny.yaml"
    network.write_text("width: 16\nepochs: 2\nsamples: 0\n")
    more = speech3("recipe", "digits", "--out", mine, *tiny, f"lm.rescore={network}")
    assert more.returncode == 0, more.stderr
    systems = ["mono", "tri", "dnn"]
    assert ran(more.stderr)[:4] == ["graph/rescore", *(f"rescore/{system}" for system in systems)]
    assert {name.partition("/")[0] for name in ran(more.stderr)[4:]} == {"score", "report"}
    for system in systems:
        scored = read_json(mine / "score" / system / "rescored.json")
        assert 0 < scored["wer"] <= read_json(mine / "score" / system / "score.json")["wer"] + 0.1
        assert read_json(mine / "decode" / system / "dev_rescored" / "rescore.json")["error_rates"].keys() >= {"0", "1"}
    assert "WER % rescored" in (mine / "report.html").read_text()
    # Without it, no number of it is shown.
    plain = speech3("recipe", "digits", "--out", mine, *tiny)
    assert set(ran(plain.stderr)) == {"score", "report"}, plain.stderr
    assert not (mine / "score" / "dnn" / "rescored.json").exists()
    assert "WER % rescored" not in (mine / "report.html").read_text()


@pytest.mark.slow
def test_a_moved_experiment_still_works(finished: Finished, mine: Path, speech3: Run, tiny: Sequence[str]) -> None:
    assert set(plan(speech3, mine, *tiny).values()) == {"done"}
    # No file that is read contains the old path. (A graph names its language model, and a model card its HMM.)
    read = [path for place in ("data", "features", "frames", ".done") for path in (mine / place).rglob("*")]
    for path in read:
        assert path.is_dir() or str(finished[0]).encode() not in path.read_bytes(), path
    again = speech3("recipe", "digits", "--out", mine, *tiny, "training.max_epochs=3", "--to", "decode")
    assert again.returncode == 0, again.stderr
    assert ran(again.stderr) == ["train/dnn", "decode/dnn"]


def test_recipes_are_listed(speech3: Run) -> None:
    process = speech3("recipe")
    assert process.returncode == 0
    assert {"digits", "fsdd"} <= {line.split()[0] for line in process.stdout.splitlines()}


def stop(process: subprocess.Popen[str], line: str, kind: int, after_s: float = 0.0) -> str:
    """Read the messages up to `line`; then send the signal to the group of processes, or SIGKILL to the first only."""
    assert process.stderr
    said = ""
    for said_now in process.stderr:
        said += said_now
        if line in said_now:
            break
    else:
        pytest.fail(f"it ended without saying {line!r}: {said}")
    for _ in range(200):  # the step's name is printed just before it begins
        if list((Path(str(process.args[4])) / ".done").glob("*.begun")):
            break
        time.sleep(0.01)
    time.sleep(after_s)
    (os.kill if kind == signal.SIGKILL else os.killpg)(process.pid, kind)
    return said + process.communicate(timeout=60)[1]


def gone(group: int) -> bool:
    """Whether within ten seconds no process of the group is left."""
    for _ in range(100):
        left = subprocess.run(["ps", "-o", "stat=", "-g", str(group)], capture_output=True, text=True).stdout.split()
        if all(state.startswith("Z") for state in left):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "line"), [("hmm/mono", "hmm/mono: requested by --from, running"), ("train/dnn", "epoch 1:")]
)
def test_a_killed_run_resumes(
    finished: Finished, mine: Path, started: Start, speech3: Run, tiny: Sequence[str], step: str, line: str
) -> None:
    long = ("training.max_epochs=30", "training.schedule=constant")
    options = ("recipe", "digits", "--out", mine, *tiny, *long)
    stage = step.partition("/")[0]
    process = started(*options, "jobs=2", "--from", stage, "--to", stage)
    stop(process, line, signal.SIGKILL, after_s=0.3)
    assert process.returncode == -signal.SIGKILL
    assert gone(process.pid)
    planned = plan(speech3, mine, *tiny, *long)
    assert planned["data/corpus"] == "done"
    assert planned[step] == "would run (not done yet)"
    again = speech3(*options, "--to", stage)  # what two workers began, one continues
    assert again.returncode == 0, again.stderr
    assert ran(again.stderr)[0] == step
    if stage == "train":
        assert "resuming at epoch" in again.stderr
        epochs = [int(epoch) for epoch in re.findall(r"^epoch (\d+):", again.stderr, re.M)]
        assert epochs[0] > 1 and epochs[-1] == 30
    else:
        for name in ("mono", "tri", "aligner"):
            model = Path(name) / "model.safetensors"
            assert (mine / model).read_bytes() == (finished[0] / model).read_bytes()


@pytest.mark.parametrize(
    "stage",
    ["data", "hmm", "train", *(pytest.param(stage, marks=pytest.mark.slow) for stage in ("features", "decode"))],
)
def test_ctrl_c(mine: Path, started: Start, speech3: Run, tiny: Sequence[str], stage: str) -> None:
    """All processes get the signal, as from a terminal; only one prints a message."""
    changes = {"data": ["corpus_options.train=200"], "train": ["training.max_epochs=500", "training.schedule=constant"]}
    options = ("recipe", "digits", "--out", mine, *tiny, "jobs=2", *changes.get(stage, []))
    begun = {"train": "epoch 1:"}.get(stage, "running")
    process = started(*options, *(() if stage in ("data", "train") else ("--from", stage, "--to", stage)))
    said = stop(process, begun, signal.SIGINT)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "interrupted; finished work is kept: run the same command again to resume"
    assert "Traceback" not in said and "KeyboardInterrupt" not in said
    assert gone(process.pid)
    planned = plan(speech3, mine, *options[4:])
    order = [name.partition("/")[0] for name in planned]
    before = [what for name, what in planned.items() if STAGES.index(name.partition("/")[0]) < STAGES.index(stage)]
    assert set(before) <= {"done"} and len(before) == order.index(stage)
    assert "would run" in next(what for name, what in planned.items() if name.startswith(stage) and what != "done")


def test_verbs_at_work(experiment: Path, tmp_path: Path, speech3: Run) -> None:
    test, model = experiment / "data" / "test", experiment / "dnn"
    assert speech3("validate", test).returncode == 0
    process = speech3("extract", test, tmp_path / "feats", "--features", "fbank40")
    assert process.returncode == 0, process.stderr
    feats = ArkReader(tmp_path / "feats" / "feats.scp")
    assert len(feats) == 22
    process = speech3("decode", model, test, tmp_path / "decoded")
    assert process.returncode == 0, process.stderr
    decoded = (tmp_path / "decoded" / "hyp.txt").read_text()
    assert decoded == (experiment / "decode" / "dnn" / "test" / "hyp.txt").read_text()
    process = speech3("score", test / "text", tmp_path / "decoded" / "hyp.txt", "--json")
    assert process.returncode == 0, process.stderr
    assert f'"wer": {read_json(experiment / "score" / "dnn" / "score.json")["wer"]}' in process.stdout


@pytest.mark.parametrize("system", ["mono", "dnn"])
def test_alignments(experiment: Path, tmp_path: Path, speech3: Run, system: str) -> None:
    test, out = experiment / "data" / "test", tmp_path / "aligned"
    process = speech3("align", experiment / system, test, out)
    assert process.returncode == 0, process.stderr
    texts = dict(line.rstrip("\n").split(" ", 1) for line in (test / "text").read_text().splitlines())
    words: dict[str, list[str]] = {}
    for line in (out / "words.ctm").read_text().splitlines():
        words.setdefault(line.split()[0], []).append(line.split()[4])
    assert {key: " ".join(said) for key, said in words.items()} == texts
    lengths = {key: len(pdfs_T) for key, pdfs_T in read_int_ark(out / "ali.ark").items()}
    speech3("extract", test, tmp_path / "feats", "--features", "fbank40")
    assert lengths == {key: len(feats_TF) for key, feats_TF in ArkReader(tmp_path / "feats" / "feats.scp").items()}
    assert {path.stem for path in (out / "textgrid").glob("*.TextGrid")} == set(texts)
    assert (out / "bad.txt").read_text() == ""


@pytest.mark.parametrize("system", ["mono", "tri", "dnn"])
def test_a_model_directory_stands_on_its_own(mine: Path, tmp_path: Path, speech3: Run, system: str) -> None:
    hypotheses = dict(
        line.split(" ", 1) for line in (mine / "decode" / system / "test" / "hyp.txt").read_text().splitlines()
    )
    name = next(iter(hypotheses))
    shutil.move(mine / "data" / "test" / "wav" / f"{name}.wav", tmp_path / "said.wav")
    shutil.move(mine / system, tmp_path / "model")
    shutil.rmtree(mine)
    process = speech3("transcribe", tmp_path / "model", tmp_path / "said.wav", cwd=tmp_path)
    assert (process.returncode, process.stdout.strip()) == (0, hypotheses[name].strip()), process.stderr
    process = speech3("transcribe", "model", "said.wav", "--ctm", cwd=tmp_path)
    lines = [line.split() for line in process.stdout.splitlines()]
    assert [line[4] for line in lines] == hypotheses[name].split()
    assert all(line[:2] == ["said.wav", "1"] and float(line[3]) > 0 for line in lines)
