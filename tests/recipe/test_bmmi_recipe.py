"""A recipe's boosted MMI system, from its key to its error rate."""

import re
from pathlib import Path

import pytest

from speech3.hmm.gmm import load_gmm
from speech3.recipe.experiment import open_experiment
from speech3.recipe.plan import planned_steps
from speech3.runtime import read_metrics

BMMI = ("hmm.tri.discriminative=bmmi", "hmm.bmmi.iterations=2", "hmm.bmmi.extra_lm_states=100")


def test_its_steps_come_after_what_they_need_and_change_no_other(tmp_path: Path):
    plain, with_it = (open_experiment("digits", tmp_path, None, list(keys), "") for keys in ((), BMMI))
    before, after = ({step.name: step for step in planned_steps(each)} for each in (plain, with_it))
    names = list(after)
    for step in after.values():
        assert all(names.index(needed) < names.index(step.name) for needed in step.needs)
    assert set(after) - set(before) == {"train/bmmi", "decode/bmmi"}
    assert all(after[name].config == before[name].config for name in before if name != "score")
    assert with_it.systems == ("tri", "lda", "sat", "bmmi", *plain.systems[3:])


@pytest.mark.slow
def test_from_the_alignment_to_an_error_rate(speech3, tiny, mine: Path):
    process = speech3("recipe", "digits", "--out", mine, *tiny, *BMMI)
    assert process.returncode == 0, process.stderr
    ran = re.findall(r"^\[\d+/\d+\] (\S+): .*, running$", process.stderr, re.M)
    assert ran == ["train/bmmi", "decode/bmmi", "score", "report"]
    assert re.search(r"^digits bmmi WER \d+\.\d\d \[", process.stdout, re.M)
    records = read_metrics(mine / "bmmi" / "metrics.jsonl")
    assert [record["iteration"] for record in records] == [1, 2]
    assert records[0]["log_posterior_per_frame"] < records[1]["log_posterior_per_frame"] < 0.1
    tri, bmmi = (load_gmm(mine / system / "model.safetensors") for system in ("tri", "bmmi"))
    assert (bmmi.offset == tri.offset).all() and not (bmmi.mean == tri.mean).all()
    assert ">bmmi</td>" in (mine / "report.html").read_text()
    again = speech3("recipe", "digits", "--out", mine, *tiny)  # without the key it is a system of an earlier run
    assert again.returncode == 0, again.stderr
    assert not re.search("^digits bmmi", again.stdout, re.M)
    assert ">bmmi</td>" in (mine / "report.html").read_text()
