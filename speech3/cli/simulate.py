"""`speech3 simulate`: what more workers would be worth, studied on one machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

N = TypeVar("N", int, float)


def command(
    conf: Annotated[Path, typer.Argument(help="YAML file as for `speech3 train`.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to it: key=value.")] = None,
    workers: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of workers.")] = "1,2,3,4,5",
    out: Annotated[Path | None, typer.Option(help="Where the runs go; default: exp/NAME_simulated.")] = None,
    rates: Annotated[str, typer.Option(metavar="R,R,...", help="Learning rates to try for each row.")] = "",
    seeds: Annotated[str, typer.Option(metavar="S,S,...", help="Seeds of the rows of one and most workers.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    synchronous: Annotated[bool, typer.Option(help="Also synchronous workers, to compare.")] = True,
) -> None:
    """Train with 1, 2, ... simulated workers: real gradients, a virtual clock.

    `speech3 simulate my.yaml --workers 1,2,5 --rates 0.1,0.2,0.4 --jobs 2 training=asgd`

    prints the time to 0.90, 0.95 and 0.98 of the best held-out frame accuracy of one worker, and the scaling
    efficiency: asynchronous workers, and beside them synchronous ones with the same total minibatch. The times of a
    minibatch and a sync are measured first, unless training.simulation gives them. Draws the curves as PNG.
    """
    from speech3.config import TrainConfig, load_config
    from speech3.scoring.compare import print_table, write_curves
    from speech3.training.curves import make_table
    from speech3.training.simulation import simulate

    directory = out or Path("exp") / f"{conf.stem}_simulated"
    outcomes = simulate(
        load_config(TrainConfig, conf, overrides or []), _numbers(workers, int, "--workers"), directory,
        rates=_numbers(rates, float, "--rates"), seeds=_numbers(seeds, int, "--seeds"), synchronous=synchronous,
        jobs=jobs,
    )  # fmt: skip
    curves = [outcome.curve for outcome in outcomes]
    table = make_table(curves[0], curves[1:])
    columns = [("rate", [f"{outcome.learning_rate:g}" for outcome in outcomes])]
    if any(len(outcome.last) > 1 for outcome in outcomes):
        columns.append(("last %, each seed", [" ".join(f"{100 * a:.2f}" for a in o.last) for o in outcomes]))
    print_table(table, columns)
    print(f"wrote {', '.join(map(str, write_curves(directory, table, curves, virtual=True)))}")


def _numbers(text: str, kind: Callable[[str], N], option: str) -> list[N]:
    from speech3.errors import Speech3Error

    try:
        return [kind(part) for part in text.split(",") if part]
    except ValueError as error:
        raise Speech3Error(f"{option} {text}: expected numbers with commas between them, as in 1,2,5") from error
