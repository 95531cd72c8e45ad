"""Sizes that follow the amount of speech: what was measured at two hours, larger for more, given ones kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from speech3.config import RecipeConfig, TrainConfig, load_config, shipped
from speech3.config.training import MAY_CHANGE_ON_RESUME
from speech3.errors import Speech3Error
from speech3.recipe.experiment import open_experiment
from speech3.recipe.plan import planned_steps
from speech3.recipe.sizes import open_sizes, with_sizes, workers_keys

RECIPE = shipped("recipes") / "librispeech" / "recipe.yaml"


def test_sizes_at_two_hours_are_those_measured_and_grow_from_there() -> None:
    recipe = load_config(RecipeConfig, RECIPE)
    assert open_sizes(recipe)
    found = {hours: with_sizes(recipe, hours, 16).model_dump() for hours in (0.05, 2, 5, 100, 1000)}
    sizes = {
        hours: (
            each["model"]["width"],
            each["lfmmi"]["model"]["width"],
            each["lfmmi"]["model"]["bottleneck"],
            *(each["training"][key] for key in ("minibatch", "max_epochs")),
            *((part["training"]["workers"], part["training"]["world"]) for part in (each, each["lfmmi"])),
        )
        for hours, each in found.items()
    }
    assert sizes == {
        0.05: (256, 256, 64, 256, 14, (2, "shared"), (2, "shared")),
        2: (512, 384, 96, 256, 14, (2, "shared"), (2, "shared")),
        5: (704, 480, 120, 256, 14, (2, "shared"), (2, "shared")),
        100: (1856, 1024, 160, 1024, 11, (8, "shared"), (8, "shared")),
        1000: (2048, 1536, 160, 1024, 8, (8, "shared"), (8, "shared")),
    }
    assert not open_sizes(with_sizes(recipe, 1, 1)) and with_sizes(recipe, 1000, 2).training.workers == 2


def test_several_workers_push_each_minibatch_unless_the_recipe_says_otherwise() -> None:
    def settings(jobs: int, *given: str) -> list[tuple[int, str, float, float]]:
        recipe = with_sizes(load_config(RecipeConfig, shipped("recipes") / "minilibri" / "recipe.yaml", given), 2, jobs)
        assert recipe.lfmmi
        groups = recipe.training, recipe.lfmmi.training
        return [(each.workers, each.world, each.asgd.warm_start, each.asgd.sync_every) for each in groups]

    alone, pushing, given = (1, "sgd", 1.0, 3), (2, "shared", 0.0, 1), (2, "shared", 0.0, 5)
    assert settings(1) == [(1, "sgd", 0.0, 1)] * 2 and settings(8) == [pushing, pushing]
    assert settings(8, "training.workers=1") == [alone, pushing]
    assert settings(8, "lfmmi.training.world=sgd") == [pushing, alone]
    assert settings(8, "training.asgd.sync_every=5") == [given, pushing]
    assert settings(4, "training.threads=4") == [(1, "sgd", 0.0, 1), pushing]


@pytest.mark.parametrize("world", ["ddp", "cluster", "simulated", "sandblaster"])
def test_a_world_that_is_given_stays(world: str) -> None:
    recipe = load_config(RecipeConfig, RECIPE, [f"training.world={world}"])
    training = with_sizes(recipe, 100, 16).training
    assert (training.world, training.workers) == (world, 1) and "training.world" not in open_sizes(recipe)


def test_given_sizes_stay() -> None:
    given = ["model.width=300", "training.workers=1", "training.max_epochs=3", "lfmmi.model=cnn_tdnn_1m"]
    found = with_sizes(load_config(RecipeConfig, RECIPE, given), 1000, 16)
    assert (found.model.width, found.training.workers, found.training.max_epochs) == (300, 1, 3)  # type: ignore[attr-defined]
    assert found.training.minibatch == 1024 and found.lfmmi and found.lfmmi.model.width == 256  # type: ignore[attr-defined]


def test_only_recipes_choose(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("frames: a\nhmm: b\nmodel: {family: dnn, width: 0}\ntraining: {}\n")
    with pytest.raises(Speech3Error, match=r"model\.width=0: automatic size works only in recipes"):
        load_config(TrainConfig, path)


def test_the_keys_that_are_open_are_those_that_the_amount_of_speech_changes(tmp_path: Path) -> None:
    e = open_experiment("librispeech", tmp_path / "out", tmp_path / "in", ["jobs=2", "lfmmi.adapted=true"], "")
    settled = {step.name: step for step in planned_steps(e.sized(200.0))}
    trained = ("train/dnn", "train/lfmmi", "adapted/sat_dnn", "adapted/sat_lfmmi")
    for step in planned_steps(e):
        now = settled[step.name].settings
        differ = {key for key, value in step.settings.items() if now[key] != value}
        still_open = tuple(f"{key}." for key in step.open_keys)
        assert all(f"{key}.".startswith(still_open) for key in differ) and bool(differ) == (step.name in trained)
        never = {key for key in settled[step.name].open_keys if key.rpartition(".")[2] not in MAY_CHANGE_ON_RESUME}
        chosen = {f"{group}training.{key}" for group in ("", "lfmmi.") for key in ("workers", "world")}
        assert never <= {"lfmmi.training.max_epochs", "lfmmi.training.lfmmi.teaching", *chosen}


def test_other_cores_train_nothing_again(tmp_path: Path) -> None:
    one, eight = (
        open_experiment("minilibri", tmp_path / "out", tmp_path / "in", [f"jobs={jobs}"], "") for jobs in (1, 8)
    )
    recipes = [with_sizes(e.recipe, 2, jobs) for e, jobs in ((one, 1), (eight, 8))]
    chosen = tuple(workers_keys(one.recipe))
    plans = [
        planned_steps(replace(e, recipe=recipe, workers_chosen=chosen))
        for e, recipe in zip((one, eight), recipes, strict=True)
    ]
    for alone, beside in zip(*plans, strict=True):
        still_open = tuple(f"{key}." for key in alone.open_keys)
        assert alone.open_keys == beside.open_keys
        assert all(
            f"{key}.".startswith(still_open) for key in alone.settings if alone.settings[key] != beside.settings[key]
        )
    assert {"training.workers", "lfmmi.training.world"} <= set(chosen)
