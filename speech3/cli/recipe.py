"""`speech3 recipe`: from a corpus to a word error rate."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    corpus: Annotated[
        str | None, typer.Argument(help="Name of a recipe; none: list them.", autocompletion=_complete.recipes)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes to the recipe.", autocompletion=_complete.overrides),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the corpus, if it is not built in.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Output directory; default: exp/CORPUS.")] = None,
    from_stage: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="STAGE", help="Run this stage and all later ones again.", autocompletion=_complete.stages
        ),
    ] = None,
    to_stage: Annotated[
        str | None,
        typer.Option("--to", metavar="STAGE", help="Stop after this stage.", autocompletion=_complete.stages),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of processes; the same as jobs=N.", min=0)] = None,
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="Language code of espeak-ng; the same as lang=CODE.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, why, and for how long; run nothing.")
    ] = False,
) -> None:
    """Run a recipe: data, features, hmm, graph, train, decode, score, report.

    `speech3 recipe digits` or, in a checkout, `recipes/run.sh digits`

    `speech3 recipe fsdd --source /data/fsdd model.width=512 training.learning_rate=0.05`

    A finished stage is run again only if its config, its input or an earlier stage has changed. If a run was killed,
    run the same command again to resume it. The last lines on standard output have the form `CORPUS SYSTEM WER 12.34
    [10.20, 14.60]`: the word error rate in per cent and its 95 % interval.
    """
    from speech3.io.progress import console
    from speech3.recipe import evaluation
    from speech3.recipe.experiment import LFMMI, open_experiment, recipes
    from speech3.recipe.outline import CHOOSE, DATA, SELF_STAGE, chose_nothing, steps
    from speech3.recipe.steps import describe, is_done, make_plan, run_plan

    if corpus is None:
        print("recipes (run them with recipes/run.sh NAME in a checkout, with speech3 recipe NAME anywhere):")
        width = max(map(len, recipes()))
        print("\n".join(f"  {name:<{width}} {about}" for name, about in recipes().items()))
        return
    changes = [*(overrides or []), *_as_overrides(overrides or [], jobs=jobs, lang=lang)]
    experiment = open_experiment(corpus, out, source, changes, shlex.join(["speech3", *sys.argv[1:]]))
    settled = not experiment.follows_speech
    if not settled and from_stage != DATA and is_done(steps(experiment), experiment.out, DATA):
        experiment, settled = experiment.settled(), True
    if settled and from_stage in (None, "score", "report") and chose_nothing(experiment):
        experiment, to_stage = experiment.without_selftraining(), "decode" if to_stage == SELF_STAGE else to_stage
    plan = make_plan(steps(experiment), experiment.out, from_stage, to_stage)
    first = 0
    if not settled and dry_run:
        for key, minutes in experiment.least_minutes.items():
            which = f"The steps of {LFMMI}" if key.startswith(LFMMI) else "Those of networks"
            print(f"{which} run only if there are at least {minutes:g} minutes to train on:")
    elif not settled:
        run_plan(plan, experiment.out, end=sum(each.step.stage == DATA for each in plan))
        experiment = experiment.settled()
        plan = make_plan(steps(experiment), experiment.out, from_stage, to_stage)
        first = sum(each.step.stage == DATA for each in plan)
    if dry_run:
        from speech3.recipe.expected import costs, find_speech, remarks, totals

        speech = find_speech(experiment, plan)
        expected = costs(experiment, speech) if speech else {}
        print(*[line for line in (speech, describe(plan, remarks(expected, experiment.jobs))) if line], sep="\n")
        if any(each.why for each in plan):
            print(totals(expected, plan, experiment) if speech else "expected: not known before the stage data has run")
        return
    chosen = next((place for place, each in enumerate(plan, 1) if each.step.name == CHOOSE), 0)
    if chosen:
        from speech3.recipe.selftrain import found_nothing

        run_plan(plan, experiment.out, first=first, end=chosen)
        first = chosen
        if found_nothing(experiment):  # the other systems are scored without it
            experiment, done = experiment.without_selftraining(), {each.step.name for each in plan[:chosen]}
            from_stage = None if from_stage == SELF_STAGE else from_stage
            to_stage = "decode" if to_stage == SELF_STAGE else to_stage
            plan = make_plan(steps(experiment), experiment.out, from_stage, to_stage)
            first = sum(each.step.name in done for each in plan)
    run_plan(plan, experiment.out, first=first)
    if plan[-1].step.stage == "report":
        if not console.quiet:
            print(evaluation.summary(experiment))
            if experiment.compared_with_published_results:
                print(evaluation.rows_to_paste(experiment))
        print("\n".join(evaluation.result_lines(experiment)))
    else:
        print(f"stopped after stage {plan[-1].step.stage}; the results so far are in {experiment.out}")


def _as_overrides(overrides: list[str], **options: object) -> list[str]:
    """Options that are short for keys, as overrides."""
    from speech3.errors import Speech3Error

    given = {key: value for key, value in options.items() if value is not None}
    for key, value in given.items():
        if both := [override for override in overrides if override.startswith(f"{key}=")]:
            raise Speech3Error(f"--{key} {value}, {both[0]}: these are two ways to set one key; remove one")
    return [f"{key}={value}" for key, value in given.items()]
