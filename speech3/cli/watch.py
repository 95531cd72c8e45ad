"""`speech3 watch`: a training run in the terminal, while it runs."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="Directory that `speech3 train` writes, such as exp/dnn.")],
) -> None:
    """Show how far a training run is, how fast and how good, and what its shards do; until it has finished, or Ctrl-C.

    `speech3 watch exp/asgd2`

    Everything is from the run's `metrics.jsonl`, which gets a record at the end of each epoch and every ten seconds
    within one. The training itself is not touched, and may be on another machine that shares the directory. Where
    there is no terminal, as in a pipe, the run is shown once as it stands.
    """
    from speech3.training.run_screen import watch

    watch(run)
