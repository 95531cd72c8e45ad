"""`speech3 subset`: a part of a data directory."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Data directory to write.")],
    speakers: Annotated[
        str | None, typer.Option(metavar="N|FILE", help="N speakers at random, or those listed in FILE.")
    ] = None,
    utterances: Annotated[
        str | None, typer.Option(metavar="N|FILE", help="N utterances at random, or those listed in FILE.")
    ] = None,
    per_speaker: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most N utterances of each speaker, at random.")
    ] = None,
    shortest: Annotated[int | None, typer.Option(metavar="N", min=1, help="The N shortest utterances.")] = None,
    first: Annotated[int | None, typer.Option(metavar="N", min=1, help="The first N utterances by name.")] = None,
    hours: Annotated[
        float | None, typer.Option(metavar="H", min=0, help="Utterances at random, as many as fit into H hours.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same subset.", min=0)] = 1,
) -> None:
    """Write a subset of a data directory: random or listed utterances or speakers, the shortest, or a number of hours.

    `speech3 subset data/train data/train_1h --hours 1`

    Options apply one after the other, in the order listed below: `--speakers 20 --hours 1` is an hour of speech by
    twenty speakers. A list has the names in its first column, so `text` and `utt2spk` files are lists of utterances.
    Audio and features stay where they are.
    """
    from speech3.corpus.datadir import read_datadir, write_datadir
    from speech3.corpus.subset import read_list, subset
    from speech3.errors import Speech3Error

    def wanted(value: str | None) -> int | list[str] | None:
        return None if value is None else int(value) if value.isdecimal() else read_list(Path(value))

    if all(value is None for value in (speakers, utterances, per_speaker, shortest, first, hours)):
        raise Speech3Error(
            "nothing selects a subset: use --speakers, --utterances, --per-speaker, --shortest, --first or --hours"
        )
    if out.resolve() == directory.resolve():
        raise Speech3Error(f"{out}: the subset cannot replace the original; choose another directory")
    data = read_datadir(directory)
    part = subset(
        data,
        speakers=wanted(speakers),
        utterances=wanted(utterances),
        per_speaker=per_speaker,
        shortest=shortest,
        first=first,
        hours=hours,
        seed=seed,
    )
    write_datadir(part, out)
    typer.echo(
        f"{out}: {len(part.utterances)} of {len(data.utterances)} utterances,"
        f" {len(part.speakers())} of {len(data.speakers())} speakers"
    )
