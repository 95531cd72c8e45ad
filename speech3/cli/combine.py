"""`speech3 combine`: several data directories as one."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Data directory to write.")],
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", help="Two or more Kaldi data directories.")],
) -> None:
    """Combine several data directories; audio and features stay where they are.

    `speech3 combine data/all data/clean data/other`

    No utterance may be in two of the directories. Transcripts, genders and features that one of them lacks are left
    out, with a note.
    """
    from speech3.corpus.combine import combine
    from speech3.corpus.datadir import read_datadir, write_datadir
    from speech3.errors import Speech3Error

    if out.resolve() in {directory.resolve() for directory in directories}:
        raise Speech3Error(f"{out}: is one of the directories to combine; name the output first: combine OUT DIR DIR")
    data, left_out = combine([read_datadir(directory) for directory in directories], out)
    write_datadir(data, out)
    for line in left_out:
        typer.echo(line)
    typer.echo(f"{out}: {len(data.utterances)} utterances, {len(data.speakers())} speakers")
