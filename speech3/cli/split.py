"""`speech3 split`: parts of a data directory."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class By(StrEnum):
    """What is kept within one part."""

    speaker = "speaker"
    utterance = "utterance"


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output directory; each part is written to OUT/PART.")],
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PART=SHARE", help="Parts and their shares, or a number N: equal parts 1 to N."),
    ] = None,
    by: Annotated[By, typer.Option(help="Keep each speaker, or only each utterance, in one part.")] = By.speaker,
    seed: Annotated[int, typer.Option(help="The same seed gives the same split.", min=0)] = 1,
) -> None:
    """Split a data directory into parts with given shares of the hours; by default no speaker is in two parts.

    `speech3 split data/all data train=0.8 dev=0.1 test=0.1`

    A recogniser tested on speakers that it was trained on looks better than it is, so a speaker stays in one part.
    The shares above are the default. `speech3 split data/all data/folds 5` makes five equal parts.
    """
    from speech3.corpus.datadir import read_datadir, write_datadir
    from speech3.corpus.split import parse_shares, split_by_speaker, split_by_utterance
    from speech3.errors import Speech3Error

    shares = parse_shares(parts or ["train=0.8", "dev=0.1", "test=0.1"])
    if directory.resolve() in {(out / name).resolve() for name in shares}:
        raise Speech3Error(f"{directory}: would be replaced by one of its parts; choose another OUT")
    data = read_datadir(directory)
    made = (split_by_speaker if by is By.speaker else split_by_utterance)(data, shares, seed)
    for name, part in made.items():
        write_datadir(part, out / name)
    for name, part in made.items():
        typer.echo(f"{out / name}: {len(part.utterances)} utterances, {len(part.speakers())} speakers")
