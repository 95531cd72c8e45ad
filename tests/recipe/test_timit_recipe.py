"""TIMIT's recipe from a small corpus to phone error rates, and the times and sizes that a dry run expects."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from timit_tree import make_timit

from speech3.recipe.costs import expected_costs, hours_of_speech
from speech3.recipe.experiment import open_experiment
from speech3.recipe.plan import planned_steps
from speech3.recipe.steps import make_plan
from speech3.runtime.files import read_json

Run = Callable[..., subprocess.CompletedProcess[str]]
# Few passes and Gaussians; the lexicon has all 61 phones, each of which needs three leaves.
TINY = (
    "jobs=1", "lfmmi=null", "hmm.mono.phone_iterations=2", "hmm.mono.iterations=3", "hmm.mono.gaussians=190",
    "hmm.aligner.phone_iterations=2", "hmm.aligner.iterations=3", "hmm.aligner.gaussians=190",
    "hmm.tri.iterations=2", "hmm.tri.leaves=190", "hmm.tri.gaussians=190", "model.width=64", "model.layers=1",
    "training.max_epochs=2", "training.workers=0", "training.minibatch=0", "decode.acoustic_scales=[0.1]",
    "decode.word_penalties=[0]",
)  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus") / "TIMIT"
    make_timit(root, train=16, sentences=5, phones=7)
    return root


@pytest.mark.slow
def test_phone_error_rates_and_boundaries(source: Path, tmp_path: Path, speech3: Run) -> None:
    out = tmp_path / "timit"
    process = speech3("recipe", "timit", "--source", source, "--out", out, *TINY)
    assert process.returncode == 0, process.stderr
    heading, *rows, _, _ = process.stdout.splitlines()[-5:]
    lines = process.stdout.splitlines()[-2:]
    rates = [float(found[1]) for line in lines if (found := re.fullmatch(r"timit \w+ PER (\S+) \[\S+ \S+\]", line))]
    assert len(rates) == 2 and rates[0] < 10 and rates[1] < 60, lines  # chance is about 90
    assert heading == "rows for the table of published results in recipes/timit/README.md:"
    for row, line in zip(rows, lines, strict=True):
        system, rate = re.fullmatch(r"timit (\w+) PER (.*)", line).groups()  # type: ignore[union-attr]
        assert re.fullmatch(
            rf"\| train, \S+ h \| test \| {system} \| 2-gram of the transcripts \| \| {re.escape(rate)} \(dev \S+\) \|",
            row,
        ), row
    assert "sizes for " in process.stderr and "1 worker" in process.stderr
    found, of_48 = (read_json(out / "score" / "tri" / f"{name}.json") for name in ("score", "phones48"))
    assert round(100 * found["per"], 2) == rates[0]
    assert of_48["words"] == found["words"]
    text = (out / "data" / "test" / "text").read_text().split()
    assert found["words"] == len(text) - 24 - text.count("q"), "q is not counted, and each line has a name"
    boundaries = read_json(out / "score" / "aligner" / "boundaries.json")
    assert boundaries["utterances"] == 24 and boundaries["boundaries"] == 24 * 8 and not boundaries["mismatched"]
    assert boundaries["within_20_ms"] > 0.9 and abs(boundaries["median_difference_ms"]) < 5
    assert "192 phone boundaries of 24 test utterances; within 10 ms" in process.stderr
    assert "PER" in (out / "report.html").read_text()

    e = open_experiment("timit", out, source, list(TINY), "").settled()
    plan = make_plan(planned_steps(e), e.out, None, None)
    speech = hours_of_speech(e, plan)
    assert speech and speech.exact and not any(each.why for each in plan)
    for name, cost in expected_costs(e, speech).items():
        if name.startswith("features/"):
            there = sum(path.stat().st_size for path in (out / name).glob("*/feats.ark"))
            assert cost.size == pytest.approx(there, rel=0.05), name  # the ends of utterances have fewer frames
    packed = sum(path.stat().st_size for path in (out / "frames" / "tri").glob("*.frames"))
    assert expected_costs(e, speech)["train/tri.frames"].size == pytest.approx(packed, rel=0.1)


def test_what_a_dry_run_expects(source: Path, tmp_path: Path, speech3: Run) -> None:
    seconds = sum(path.stat().st_size - 1024 for path in source.rglob("*.WAV")) / 32000
    process = speech3("recipe", "timit", "--source", source, "--out", tmp_path / "new", "--dry-run", "jobs=1")
    assert (process.returncode, process.stderr) == (0, "")
    speakers, hours, first, *rest = process.stdout.splitlines()
    assert speakers.startswith("The steps of lda and sat run only if there are at least 5 minutes")
    said = re.match(r"speech: about (\S+) h in --source", hours)
    assert said and float(said[1]) * 3600 == pytest.approx(seconds, rel=0.02)
    assert first == "data/corpus: would run (not done yet)"
    by_name = dict(line.split(": ", 1) for line in rest if ": " in line)
    # 53 s per epoch for 2.02 hours, 14 epochs (recipes/minilibri/README.md); fewer senones than 800, so fewer than 1.88
    # million parameters; 120 values of 4 bytes, 100 per second.
    trained = re.fullmatch(r"would run \(not done yet\); about (\d+) s", by_name["train/dnn"])
    assert trained and float(trained[1]) == pytest.approx(53 / 2.02 * 14 * seconds / 3600 * 1.47 / 1.88, abs=1)
    size = re.search(r", (\S+) MB$", by_name["features/fbank40_d2"])
    assert size and float(size[1]) == pytest.approx(seconds * 100 * 120 * 4 / 1e6, rel=0.02)
    table = rest[next(place for place, line in enumerate(rest) if line.startswith("stage ")) :]
    by_stage = {stage: cells for stage, *cells in (re.split(r" {2,}", line) for line in table if "  " in line)}
    assert by_stage["stage"] == ["1 core", "2 cores", "16 cores", "disk"] and by_stage["data"] == ["-"] * 4
    assert by_stage["train"][0] != by_stage["train"][1] == by_stage["train"][2]  # two workers have two cores
    one, sixteen = (float(by_stage["hmm"][place].removesuffix(" s")) for place in (0, 2))
    assert one > 4 * sixteen
    assert "recipes/minilibri/README.md" in table[-2] and table[-1].startswith("GPUs: no times, ")
    assert not (tmp_path / "new").exists()
