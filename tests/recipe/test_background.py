"""A step with `beside` runs in a process of its own while other steps of its stage run, and is waited for."""

import os
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from speech3.errors import Speech3Error
from speech3.recipe.costs import Cost, totals_table
from speech3.recipe.experiment import open_experiment
from speech3.recipe.plan import planned_steps as steps_of
from speech3.recipe.steps import Step, make_plan, run_plan


def _write(path: Path) -> None:
    path.write_text(str(os.getpid()))


def _wait(path: Path, awaited: Path) -> None:
    for _ in range(600):
        if awaited.exists():
            print("seen", file=sys.stderr, flush=True)
            return _write(path)
        time.sleep(0.1)
    raise AssertionError(f"{awaited} was not written meanwhile")


def _fail(path: Path) -> None:
    raise Speech3Error("the loss is not finite")


def _read(path: Path, first: Path) -> None:
    path.write_text(first.read_text())


def kitchen(out: Path, soup: partial[None]) -> list[Step]:
    """The soup is cooked beside the bread; what is eaten first needs only the soup."""
    return [
        Step("cook/soup", soup, None, [out / "soup"], beside=True),
        Step("cook/bread", partial(_write, out / "bread"), None, [out / "bread"]),
        Step("eat/soup", partial(_read, out / "eaten", out / "soup"), None, [out / "eaten"], ["cook/soup"]),
    ]


def run(out: Path, steps: list[Step]) -> None:
    run_plan(make_plan(steps, out, None, None), out)


def test_two_steps_at_the_same_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = kitchen(tmp_path, partial(_wait, tmp_path / "soup", tmp_path / "bread"))
    run(tmp_path, steps)
    assert (tmp_path / "eaten").read_text() == (tmp_path / "soup").read_text() != str(os.getpid())
    assert (tmp_path / "bread").read_text() == str(os.getpid())
    assert (tmp_path / "cook.soup.log").read_text() == "seen\n"
    lines = capsys.readouterr().err
    assert f"cook/soup: not done yet, running in the background; progress: {tmp_path}/cook.soup.log" in lines
    assert lines.count("[1/3] cook/soup: ") == 2, "when it began, and when it ended"
    run(tmp_path, steps)
    assert capsys.readouterr().err.count("already done") == 3


def test_a_step_with_nothing_beside_it_runs_in_this_process(tmp_path: Path) -> None:
    steps = kitchen(tmp_path, partial(_write, tmp_path / "soup"))
    run(tmp_path, [steps[0], steps[2]])
    assert (tmp_path / "soup").read_text() == str(os.getpid())
    (tmp_path / "soup").unlink()
    run(tmp_path, [steps[1]])
    run(tmp_path, steps)  # the bread is done
    assert (tmp_path / "soup").read_text() == str(os.getpid())


def test_an_error_in_the_background_stops_the_steps_that_need_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Speech3Error, match="the loss is not finite"):
        run(tmp_path, kitchen(tmp_path, partial(_fail, tmp_path / "soup")))
    assert (tmp_path / "bread").exists() and not (tmp_path / "eaten").exists()
    assert (
        "cook/soup: the loss is not finite; the recipe stops before the first step that needs it"
        in capsys.readouterr().err
    )
    run(tmp_path, kitchen(tmp_path, partial(_write, tmp_path / "soup")))
    assert (tmp_path / "eaten").exists()


def test_an_error_in_this_process_kills_what_runs_in_the_background(tmp_path: Path) -> None:
    steps = kitchen(tmp_path, partial(_wait, tmp_path / "soup", tmp_path / "never"))
    steps[1] = Step("cook/bread", partial(_fail, tmp_path / "bread"), None, [tmp_path / "bread"])
    began = time.monotonic()
    with pytest.raises(Speech3Error, match="the loss is not finite"):
        run(tmp_path, steps)
    assert time.monotonic() - began < 50 and not (tmp_path / "soup").exists()


@pytest.mark.parametrize(
    ("overrides", "time"), [(["jobs=2"], "80 s"), (["jobs=1"], "2 min"), (["training.workers=2"], "2 min")]
)
def test_the_networks_of_a_recipe_and_their_expected_time(tmp_path: Path, overrides: list[str], time: str) -> None:
    e = open_experiment("digits", tmp_path / "out", None, ["lfmmi={}", "lfmmi.least_minutes=0", *overrides], "")
    plan = make_plan(steps_of(e), e.out, None, None)
    expected = {"train/dnn": Cost(60), "train/lfmmi": Cost(80)}
    (row,) = [line.split("  ") for line in totals_table(expected, plan, e).splitlines() if line.startswith("train ")]
    assert [cell.strip() for cell in row if cell][-2] == time, "on 16 cores"
