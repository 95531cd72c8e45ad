"""`speech3 validate`: the faults of a data directory."""

from pathlib import Path
from typing import Annotated

import typer

_SHOWN = 20  # most faults and most warnings that are printed without --all


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory.")],
    jobs: Annotated[int, typer.Option(help="Number of processes that read the audio; 0: one per core.", min=0)] = 0,
    everything: Annotated[bool, typer.Option("--all", help="Print all faults, not only 20.")] = False,
    no_text: Annotated[
        bool, typer.Option("--no-text", help="Do not require transcripts (for data that is only decoded).")
    ] = False,
    features: Annotated[
        Path | None, typer.Option(help="Archives to look at in place of those of the directory's feats.scp.")
    ] = None,
) -> None:
    """List the faults of a data directory: file, utterance, what is wrong and what to do.

    `speech3 validate data/train`

    The exit status is 1 if there is a fault. At most 20 faults are printed, of each kind at least one, and then their
    number; `--all` prints all. The text files may be in any order. The audio is read completely, so that truncated
    files are found, and those that lost a byte. If a header gives a wrong length, the audio in the file is read, with a
    warning that has both lengths. The features of `feats.scp` or of the `--features` file are read as well: their
    offsets, values that are not numbers, sizes, and numbers of frames that do not fit the recordings. Warnings (such as
    digital silence) do not count as faults. `speech3 fix` writes a copy without the faults.
    """
    from speech3.corpus.validate import some_of_each_kind, validate

    report = validate(directory, jobs=jobs, need_text=not no_text, features=features)
    for faults, what in ((report.warnings, "warnings"), (report.faults, "faults")):
        shown = faults if everything else some_of_each_kind(faults, _SHOWN)
        for fault in shown:
            typer.echo(str(fault))
        if len(shown) < len(faults):
            typer.echo(f"... and {len(faults) - len(shown)} more {what}; --all prints all {len(faults)}")
    typer.echo(report.summary())
    if report.faults:
        raise typer.Exit(1)
