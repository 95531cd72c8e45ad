"""`speech3 fix`."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a Kaldi data directory")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the directory to write")],
    jobs: Annotated[int, typer.Option(help="processes that read the audio; 0: one per core", min=0)] = 0,
) -> None:
    """Write a mended copy of a data directory and say what was removed and changed; the audio stays where it is.

    `speech3 fix data/train data/train_fixed`

    Utterances that cannot be used (bad audio, no transcript, another sample rate, several channels) are left out,
    segments are clipped to their recording, utterances without a speaker become their own speaker, of two lines with
    the same id the first is kept. `speech3 validate OUT` then finds nothing.
    """
    from speech3.corpus.fix import fix

    mended = fix(directory, out, jobs=jobs)
    for line in (*mended.warnings, *mended.changes):
        typer.echo(str(line))
    removed = f": {' '.join(mended.removed)}" if mended.removed else ""
    typer.echo(f"removed {len(mended.removed)} utterances{removed}")
    typer.echo(f"{out}: {len(mended.data.utterances)} utterances, {len(mended.data.speakers())} speakers")
