"""`speech3 fix`: a repaired copy of a data directory."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Data directory to write.")],
    jobs: Annotated[int, typer.Option(help="Number of processes that read the audio; 0: one per core.", min=0)] = 0,
) -> None:
    """Write a repaired copy of a data directory and print what was removed and changed.

    `speech3 fix data/train data/train_fixed`

    Utterances that cannot be used (bad audio, no transcript, a different sample rate, several channels) are left out,
    segments are clipped to their recording, an utterance without a speaker becomes its own speaker, and of two lines
    with the same id the first is kept. The audio stays where it is, except that 16-bit PCM which lost single bytes in
    a transfer in text mode gets a mended copy in OUT/mended. `speech3 validate OUT` then finds no fault, or only that
    there is no `text`.
    """
    from speech3.corpus.fix import fix

    repaired = fix(directory, out, jobs=jobs)
    for line in (*repaired.warnings, *repaired.changes):
        typer.echo(str(line))
    removed = f": {' '.join(repaired.removed)}" if repaired.removed else ""
    typer.echo(f"removed {len(repaired.removed)} utterances{removed}")
    typer.echo(f"{out}: {len(repaired.data.utterances)} utterances, {len(repaired.data.speakers())} speakers")
