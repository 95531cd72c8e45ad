"""`speech3 validate`: the faults of a data directory."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory.")],
    jobs: Annotated[int, typer.Option(help="Number of processes that read the audio; 0: one per core.", min=0)] = 0,
    no_text: Annotated[
        bool, typer.Option("--no-text", help="Do not require transcripts (for data that is only decoded).")
    ] = False,
    features: Annotated[
        Path | None, typer.Option(help="Archives to look at in place of those of the directory's feats.scp.")
    ] = None,
) -> None:
    """List every fault of a data directory with the utterance or file concerned and what to do.

    `speech3 validate data/train`

    The exit status is 1 if there is a fault. The text files may be in any order. The audio is read completely, so that
    truncated files are found, and those that lost a byte. Where the header of a file gives a wrong length, what there
    is is read, with a warning that has both lengths. The features of `feats.scp` or of the `--features` file are read
    as well: their offsets, values that are not numbers, sizes, and numbers of frames that do not fit the recordings.
    Warnings (such as digital silence) do not count as faults. `speech3 fix` writes a copy without the faults.
    """
    from speech3.corpus.validate import validate

    report = validate(directory, jobs=jobs, need_text=not no_text, features=features)
    for fault in (*report.warnings, *report.faults):
        typer.echo(str(fault))
    typer.echo(report.summary())
    if report.faults:
        raise typer.Exit(1)
