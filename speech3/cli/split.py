"""`speech3 split`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class By(StrEnum):
    """What is not torn apart."""

    speaker = "speaker"
    utterance = "utterance"


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a Kaldi data directory")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the directory that gets OUT/PART for each part")],
    parts: Annotated[
        list[str] | None, typer.Argument(metavar="PART=SHARE", help="or a number N: equal parts 1 to N")
    ] = None,
    by: Annotated[By, typer.Option(help="parts share no speaker, or only no utterance")] = By.speaker,
    seed: Annotated[int, typer.Option(help="who goes where; the same seed splits the same")] = 1,
) -> None:
    """Split a data directory into parts with given shares of the hours; by speaker, unless you say otherwise.

    `speech3 split data/all data train=0.8 dev=0.1 test=0.1`

    A recogniser tested on speakers that it was trained on looks better than it is, so a speaker stays in one part.
    The shares above are those taken if you give none. `speech3 split data/all data/folds 5` makes five equal parts.
    """
    from speech3.corpus.datadir import read_datadir, write_datadir
    from speech3.corpus.split import parse_shares, split_by_speaker, split_by_utterance
    from speech3.errors import Speech3Error

    shares = parse_shares(parts or ["train=0.8", "dev=0.1", "test=0.1"])
    if directory.resolve() in {(out / name).resolve() for name in shares}:
        raise Speech3Error(f"{directory}: would be replaced by one of its parts; name another OUT")
    data = read_datadir(directory)
    made = (split_by_speaker if by is By.speaker else split_by_utterance)(data, shares, seed)
    for name, part in made.items():
        write_datadir(part, out / name)
    for name, part in made.items():
        typer.echo(f"{out / name}: {len(part.utterances)} utterances, {len(part.speakers())} speakers")
