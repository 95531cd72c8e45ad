"""Steps: each runs once, and again if its config, input, output or a step that it needs has changed; never partly."""

import fcntl
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from speech3.errors import OccupiedError, Speech3Error
from speech3.recipe.steps import Step, content_of, describe_plan, make_plan, run_plan


class Kitchen:
    """Three stages: `chop` reads the directory `market`, `cook` has two parts, `eat` needs both of them."""

    def __init__(self, root: Path) -> None:
        self.root, self.out, self.market = root, root / "out", root / "market"
        self.market.mkdir(parents=True)
        (self.market / "leek").write_text("green")
        self.config = {"chop": 1, "cook/soup": 1, "cook/bread": 1, "eat": 1}
        self.ran: list[str] = []
        self.killed_in = ""

    def steps(self) -> list[Step]:
        needs = {"chop": [], "cook/soup": ["chop"], "cook/bread": [], "eat": ["cook/soup", "cook/bread"]}
        return [
            Step(
                name,
                self._work(name),
                config,
                [self._dish(name)],
                needs[name],
                [self.market] if name == "chop" else [],
                owns=self._dish(name).parent,
                elastic=["cooks"],
            )
            for name, config in self.config.items()
        ]

    def _dish(self, name: str) -> Path:
        return self.out / name.replace("/", "_") / "dish"

    def _work(self, name: str) -> Callable[[], None]:
        def work() -> None:
            self.ran.append(name)
            self._dish(name).parent.mkdir(exist_ok=True)
            left = self._dish(name).with_name("half")
            if name == self.killed_in:
                left.write_text("half")
                raise KeyboardInterrupt
            self._dish(name).write_text("continued" if left.exists() else "from scratch")

        return work

    def run(self, from_stage: str | None = None, to_stage: str | None = None) -> list[str]:
        """Run the plan; return the names of the steps that ran."""
        self.ran = []
        run_plan(make_plan(self.steps(), self.out, from_stage, to_stage), self.out)
        return self.ran

    def kill(self, name: str, **stages: str) -> None:
        self.killed_in = name
        with pytest.raises(KeyboardInterrupt):
            self.run(**stages)
        self.killed_in = ""

    def dish(self, name: str) -> str:
        return self._dish(name).read_text()

    def why(self, from_stage: str | None = None) -> dict[str, str]:
        return {plan.step.name: plan.why for plan in make_plan(self.steps(), self.out, from_stage, None)}


ALL = ["chop", "cook/soup", "cook/bread", "eat"]


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    return Kitchen(tmp_path)


@pytest.fixture
def done(kitchen: Kitchen) -> Kitchen:
    assert kitchen.run() == ALL
    return kitchen


def test_a_finished_step_is_not_run_again(done: Kitchen) -> None:
    assert done.run() == []
    assert set(done.why().values()) == {""}


def test_a_changed_config_reruns_what_depends_on_it(done: Kitchen) -> None:
    done.config["cook/bread"] = 2
    assert done.why() == {"chop": "", "cook/soup": "", "cook/bread": "config 1 -> 2", "eat": "cook/bread runs again"}
    assert done.run() == ["cook/bread", "eat"]
    assert done.run() == []
    done.config["cook/bread"] = 1
    assert done.run() == ["cook/bread", "eat"]


def _longer(market: Path) -> None:
    (market / "leek").write_text("greener")


def _edited(market: Path) -> None:
    (market / "leek").write_text("grown")  # as long as before
    _touch(market / "leek")


def _touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def _added(market: Path) -> None:
    (market / "deep").mkdir()
    (market / "deep" / "egg").touch()


def _renamed(market: Path) -> None:
    (market / "leek").rename(market / "onion")


@pytest.mark.parametrize("change", [_longer, _edited, _added, _renamed])
def test_a_changed_input_reruns_what_depends_on_it(done: Kitchen, change: Callable[[Path], None]) -> None:
    change(done.market)
    assert done.run() == ["chop", "cook/soup", "eat"]
    assert done.run() == []


def test_a_corpus_that_was_copied_again_is_the_same(done: Kitchen, capsys: pytest.CaptureFixture[str]) -> None:
    _touch(done.market / "leek")
    assert set(done.why().values()) == {""}
    assert done.run() == []
    assert str(done.market) in capsys.readouterr().err
    record = json.loads((done.out / ".done" / "chop.json").read_text())
    assert done.run() == []
    assert str(done.market) not in capsys.readouterr().err  # the new times are recorded, and nothing is compared again
    assert json.loads((done.out / ".done" / "chop.json").read_text()) == record
    _edited(done.market)
    assert done.run() == ["chop", "cook/soup", "eat"]


def test_a_killed_step_continues_after_its_corpus_was_copied_again(kitchen: Kitchen) -> None:
    kitchen.kill("cook/soup")
    _touch(kitchen.market / "leek")
    assert kitchen.run() == ["cook/soup", "cook/bread", "eat"]
    assert kitchen.dish("cook/soup") == "continued"


def test_a_record_without_contents_is_valid(done: Kitchen) -> None:
    path = done.out / ".done" / "chop.json"
    record = json.loads(path.read_text())
    older = {key: value for key, value in record.items() if key != "contents"}
    path.write_text(json.dumps(older))
    assert done.run() == []
    _touch(done.market / "leek")  # nothing says that the content is the same
    assert done.run() == ["chop", "cook/soup", "eat"]


@pytest.mark.parametrize("place", [0, 100_000, (1 << 20) - 1])
def test_content_is_compared_whole(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"\0" * (1 << 20))
    before = content_of(path, "before")
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"b")
    assert content_of(path, "after") != before


def test_an_input_below_a_link_counts(kitchen: Kitchen) -> None:
    cellar = kitchen.root / "cellar"
    cellar.mkdir()
    (cellar / "back").symlink_to(kitchen.market)  # a circle
    (kitchen.market / "cellar").symlink_to(cellar)
    assert kitchen.run() == ALL and kitchen.run() == []
    (cellar / "wine").touch()
    assert kitchen.run() == ["chop", "cook/soup", "eat"]


def test_the_same_input_elsewhere_is_another_input(done: Kitchen) -> None:
    """Outputs may contain paths into the input directory, as a wav.scp does."""
    done.market = done.market.rename(done.root / "supermarket")
    assert done.run() == ["chop", "cook/soup", "eat"]


def test_a_missing_output_reruns_what_depends_on_it(done: Kitchen) -> None:
    gone = done.out / "cook_soup" / "dish"
    gone.unlink()
    assert done.why()["cook/soup"] == f"{gone} is missing"
    assert done.why()["eat"] == "cook/soup runs again"
    assert done.run() == ["cook/soup", "eat"]


@pytest.mark.parametrize(
    ("stages", "ran"),
    [
        (("cook", None), ["cook/soup", "cook/bread", "eat"]),
        (("eat", None), ["eat"]),
        (("cook", "cook"), ["cook/soup", "cook/bread"]),
        ((None, "cook"), []),
        (("cook", "cook/bread"), ["cook/bread"]),
    ],
)
def test_from_and_to(done: Kitchen, stages: tuple[str | None, str | None], ran: Sequence[str]) -> None:
    assert done.run(*stages) == ran


def test_to_stops_early_and_the_rest_follows(kitchen: Kitchen) -> None:
    assert kitchen.run(to_stage="chop") == ["chop"]
    assert kitchen.run() == ALL[1:]


def test_to_a_step_runs_what_it_needs(kitchen: Kitchen) -> None:
    assert kitchen.run(to_stage="cook/soup") == ["chop", "cook/soup"]
    assert kitchen.run() == ["cook/bread", "eat"]


@pytest.mark.parametrize(
    ("from_stage", "to_stage", "message"),
    [
        ("cok", None, "no stage 'cok'; the stages are: chop, cook, eat"),
        (None, "ea", "no stage 'ea'; the stages are: chop, cook, eat"),
        (None, "cook/stew", "no stage 'cook/stew'"),
        ("eat", "cook/soup", "--from eat comes after --to cook/soup"),
        ("eat", "chop", "--from eat comes after --to chop"),
        ("eat", None, r"--from eat: chop .* \(not done yet\)"),
        ("cook/soup", None, "no stage 'cook/soup'"),
    ],
)
def test_stages_that_cannot_be_asked_for(
    kitchen: Kitchen, from_stage: str | None, to_stage: str | None, message: str
) -> None:
    with pytest.raises(Speech3Error, match=message):
        kitchen.run(from_stage, to_stage)
    assert kitchen.ran == []
    assert not kitchen.out.exists()


def test_from_needs_the_stages_before_it_as_they_would_be_now(done: Kitchen) -> None:
    done.config["chop"] = 2
    with pytest.raises(Speech3Error, match=r"--from cook: chop .* \(config 1 -> 2\)"):
        done.run("cook")


def test_a_missing_input_names_its_step(done: Kitchen) -> None:
    done.market.rename(done.root / "closed")
    with pytest.raises(Speech3Error, match=f"{done.market}: no such file or directory .needed by chop"):
        done.run()


def test_a_killed_step_finds_what_it_left(kitchen: Kitchen) -> None:
    kitchen.kill("cook/soup")
    assert kitchen.why() == dict.fromkeys(["cook/soup", "cook/bread", "eat"], "not done yet") | {"chop": ""}
    assert kitchen.run() == ALL[1:]
    assert kitchen.dish("cook/soup") == "continued"
    assert kitchen.dish("eat") == "from scratch"


def test_a_killed_step_that_changed_begins_in_an_empty_directory(kitchen: Kitchen) -> None:
    kitchen.kill("cook/soup")
    kitchen.config["cook/soup"] = 2
    kitchen.run()
    assert kitchen.dish("cook/soup") == "from scratch"
    assert not (kitchen.out / "cook_soup" / "half").exists()


def test_a_killed_step_continues_where_it_was_if_only_an_elastic_key_changed(kitchen: Kitchen) -> None:
    kitchen.config["cook/soup"] = {"cooks": 3, "salt": 1}
    kitchen.kill("cook/soup")
    kitchen.config["cook/soup"] = {"cooks": 2, "salt": 1}
    kitchen.kill("cook/soup")
    kitchen.config["cook/soup"] = {"cooks": 4, "salt": 1}
    kitchen.run()
    assert kitchen.dish("cook/soup") == "continued"
    kitchen.config["cook/soup"] = {"cooks": 5, "salt": 1}  # once it is done, such a key counts
    kitchen.run()
    assert kitchen.dish("cook/soup") == "from scratch"
    kitchen.config["cook/soup"] = {"cooks": 5, "salt": 2}
    kitchen.kill("cook/soup")
    kitchen.config["cook/soup"] = {"cooks": 5, "salt": 3}
    kitchen.run()
    assert kitchen.dish("cook/soup") == "from scratch"


def test_from_forgets_what_a_killed_step_left(kitchen: Kitchen) -> None:
    kitchen.kill("cook/soup")
    kitchen.run("cook")
    assert kitchen.dish("cook/soup") == "from scratch"


def test_killed_while_a_directory_was_being_removed(kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch) -> None:
    kitchen.kill("cook/soup")
    with monkeypatch.context() as during, pytest.raises(KeyboardInterrupt):
        during.setattr("shutil.rmtree", Mock(side_effect=KeyboardInterrupt))
        kitchen.run("cook")
    kitchen.run()
    assert kitchen.dish("cook/soup") == "from scratch"


def test_a_killed_step_begins_again_if_what_it_used_was_made_again(kitchen: Kitchen) -> None:
    kitchen.kill("cook/soup")
    (kitchen.out / "chop" / "dish").unlink()
    assert kitchen.run() == ALL
    assert kitchen.dish("cook/soup") == "from scratch"


def test_what_ran_again_by_itself_reruns_its_users_next_time(done: Kitchen) -> None:
    """The fingerprint is the same, but outputs may differ, because they contain times or the program has changed."""
    assert done.run("cook", "cook") == ["cook/soup", "cook/bread"]
    assert done.why()["eat"] == "cook/soup has run again"
    assert done.run() == ["eat"]
    assert done.run() == []


def test_killed_between_a_step_and_its_user(done: Kitchen) -> None:
    (done.out / "chop" / "dish").unlink()
    done.kill("cook/soup")
    assert done.run() == ["cook/soup", "eat"]


def test_a_step_that_fails_is_not_done(kitchen: Kitchen) -> None:
    broken = Step("chop", lambda: None, 1, [kitchen.out / "never"])
    with pytest.raises(Speech3Error, match=f"chop ended without writing {kitchen.out}/never"):
        run_plan(make_plan([broken], kitchen.out, None, None), kitchen.out)
    assert make_plan([broken], kitchen.out, None, None)[0].why == "not done yet"


def test_a_failure_leaves_the_earlier_result(done: Kitchen) -> None:
    steps, made = done.steps(), done.dish("cook/soup")

    def fail() -> None:
        done._dish("cook/soup").parent.mkdir()
        done._dish("cook/soup").write_text("burnt")
        raise Speech3Error("the pot is too small")

    steps[1] = replace(steps[1], config=2, run=fail)
    with pytest.raises(Speech3Error, match="the pot is too small"):
        run_plan(make_plan(steps, done.out, None, None), done.out)
    assert done.dish("cook/soup") == made and set(done.why().values()) == {""}
    steps[1] = replace(steps[1], bulky=True)
    with pytest.raises(Speech3Error, match="the pot is too small"):
        run_plan(make_plan(steps, done.out, None, None), done.out)
    assert done.why()["cook/soup"] == "not done yet"


def test_a_killed_step_keeps_the_earlier_result_until_it_has_succeeded(done: Kitchen) -> None:
    done.config["cook/soup"] = 2
    done.kill("cook/soup")
    before = done.out / ".done" / "cook.soup.before"
    assert (before / "files" / "dish").exists()
    assert done.run() == ["cook/soup", "eat"] and done.dish("cook/soup") == "continued" and not before.exists()


def test_files_of_the_user_are_not_replaced(kitchen: Kitchen) -> None:
    own = kitchen.out / "cook_soup" / "notes"
    own.parent.mkdir(parents=True)
    kitchen.kill("chop")  # nothing is wrong with an empty directory
    own.write_text("salt")
    with pytest.raises(OccupiedError, match="cook_soup"):
        kitchen.run()
    assert own.read_text() == "salt"
    own.unlink()
    kitchen.run()


def test_inputs_among_what_steps_make_are_refused(done: Kitchen) -> None:
    steps = done.steps()
    steps[0] = replace(steps[0], inputs=[done._dish("eat")])
    with pytest.raises(OccupiedError, match="eat/dish"):
        make_plan(steps, done.out, None, None)


def test_what_a_link_points_to_is_kept(done: Kitchen, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    done._dish("cook/soup").parent.rename(elsewhere)
    done._dish("cook/soup").parent.symlink_to(elsewhere)
    done.config["cook/soup"] = 2
    assert "cook/soup" in done.run() and (elsewhere / "dish").exists()


def test_two_runs_in_one_directory(done: Kitchen) -> None:
    done.config["eat"] = 2
    with (done.out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Speech3Error, match=f"{done.out}: another run is using this directory"):
            done.run()
    assert done.ran == []
    assert done.run() == ["eat"]


def test_a_damaged_record_names_its_file(done: Kitchen) -> None:
    (done.out / ".done" / "cook.soup.json").write_text("{")
    with pytest.raises(Speech3Error, match=r"cook\.soup\.json: not valid JSON"):
        done.run()


@pytest.mark.parametrize("lacking", ["settings", "used", "inputs"])
def test_a_step_with_a_record_of_another_release_runs_again(done: Kitchen, lacking: str) -> None:
    path = done.out / ".done" / "cook.soup.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != lacking}))
    assert done.why()["cook/soup"] == "its record is of another release"
    assert done.run() == ["cook/soup", "eat"]
    assert done.run() == []


def test_describe(done: Kitchen) -> None:
    done.config["eat"] = 2
    expected = {"eat": "; about 5 min", "chop": "; about 9 min"}
    assert describe_plan(make_plan(done.steps(), done.out, None, None), expected).splitlines() == [
        "chop: done",
        "cook/soup: done",
        "cook/bread: done",
        "eat: would run (config 1 -> 2); about 5 min",
    ]
    assert done.ran == ALL


def _with(kitchen: Kitchen, config: object) -> list[Step]:
    return [replace(step, config=config) if step.name == "eat" else step for step in kitchen.steps()]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (
            {"model": {"width": 64, "layers": 2}, "seed": 1},
            {"model": {"width": 32, "layers": 2}, "seed": 1},
            "model.width 64 -> 32",
        ),
        (
            {"features": {"deep": {"cmvn": "speaker"}}},
            {"features": {"deep": {"cmvn": None}}},
            "features.deep.cmvn speaker -> null",
        ),
        ({"seed": 1, "lm": 2}, {"seed": 2, "lm": 3}, "seed 1 -> 2, lm 2 -> 3"),
        ({"lm": {}}, {"lm": {"order": 3}}, "lm.order null -> 3"),
        ({"speed_perturb": (0.9, 1.1)}, {"speed_perturb": (0.9,)}, "speed_perturb [0.9, 1.1] -> [0.9]"),
        ({"lang": "a" * 50}, {"lang": "b"}, f"lang {'a' * 40}... -> b"),
        (dict.fromkeys("abcde", 1), dict.fromkeys("abcde", 2), "a 1 -> 2, b 1 -> 2, c 1 -> 2, and 2 more"),
    ],
)
def test_the_key_that_changed(kitchen: Kitchen, before: object, after: object, why: str) -> None:
    run_plan(make_plan(_with(kitchen, before), kitchen.out, None, None), kitchen.out)
    assert make_plan(_with(kitchen, before), kitchen.out, None, None)[-1].why == ""
    assert make_plan(_with(kitchen, after), kitchen.out, None, None)[-1].why == why


def test_the_input_that_changed(done: Kitchen) -> None:
    _longer(done.market)
    assert done.why()["chop"] == f"{done.market} changed"
    old, done.market = done.market, done.market.rename(done.root / "supermarket")
    assert done.why()["chop"] == f"{done.market} is new, {old} is no longer used"
    assert done.why()["cook/soup"] == "chop runs again"


def test_an_input_that_is_no_longer_used(kitchen: Kitchen) -> None:
    *others, eat = kitchen.steps()
    with_input = [*others, replace(eat, inputs=[kitchen.market / "leek"])]
    run_plan(make_plan(with_input, kitchen.out, None, None), kitchen.out)
    assert kitchen.why() == dict.fromkeys(ALL, "") | {"eat": f"{kitchen.market}/leek is no longer used"}


def test_keys_that_are_still_open_have_not_changed(kitchen: Kitchen) -> None:
    run_plan(make_plan(_with(kitchen, {"model": {"width": 64}, "seed": 1}), kitchen.out, None, None), kitchen.out)
    _longer(kitchen.market)
    for seed, why in ((1, "cook/soup runs again"), (2, "seed 1 -> 2")):
        *others, eat = _with(kitchen, {"model": {"width": 0}, "seed": seed})
        plan = make_plan([*others, replace(eat, open_keys=["model.width"])], kitchen.out, None, None)
        assert plan[-1].why == why


def test_a_step_that_needs_less_than_in_an_earlier_release_is_done(done: Kitchen) -> None:
    *others, eat = done.steps()
    plans = make_plan([*others, replace(eat, needs=["cook/soup"])], done.out, None, None)
    assert {plan.why for plan in plans} == {""}


def test_a_step_that_needs_another_finished_step_instead_runs_again(done: Kitchen) -> None:
    chop, _, bread, _ = done.steps()
    whys = [make_plan([chop, replace(bread, needs=needs)], done.out, None, None)[1].why for needs in ([], ["chop"])]
    assert whys == ["", "now needs chop"]
