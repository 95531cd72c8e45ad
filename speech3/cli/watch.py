"""`speech3 watch`: live display of a training run in the terminal."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="Directory that `speech3 train` writes, such as exp/dnn.")],
) -> None:
    """Show the progress, speed, accuracy and shards of a training run until it finishes or you press Ctrl-C.

    `speech3 watch exp/asgd2`

    Everything is read from the run's `metrics.jsonl`, to which training appends a record at the end of each epoch and
    every ten seconds within one. The training itself is not affected, and may run on another machine that shares the
    directory. Without a terminal, as in a pipe, the current state is printed once.
    """
    from speech3.reports.run_screen import watch

    watch(run)
