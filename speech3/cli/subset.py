"""`speech3 subset`."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a Kaldi data directory")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the directory to write")],
    speakers: Annotated[str | None, typer.Option(metavar="N|FILE", help="that many, or those of a list")] = None,
    utterances: Annotated[str | None, typer.Option(metavar="N|FILE", help="that many, or those of a list")] = None,
    per_speaker: Annotated[int | None, typer.Option(metavar="N", min=1, help="at most so many of each")] = None,
    shortest: Annotated[int | None, typer.Option(metavar="N", min=1, help="the shortest")] = None,
    first: Annotated[int | None, typer.Option(metavar="N", min=1, help="the first by name")] = None,
    hours: Annotated[float | None, typer.Option(metavar="H", min=0, help="as many as fit in")] = None,
    seed: Annotated[int, typer.Option(help="what is drawn; the same seed draws the same")] = 1,
) -> None:
    """Write a part of a data directory: drawn at random, listed, the shortest, or so many hours.

    `speech3 subset data/train data/train_1h --hours 1`

    Several choices narrow down one after the other, in the order above: `--speakers 20 --hours 1` is an hour of twenty
    speakers. Lists have a name in their first column, so a `text` or `utt2spk` is one. Audio and features stay where
    they are.
    """
    from speech3.corpus.datadir import read_datadir, write_datadir
    from speech3.corpus.subset import read_list, subset
    from speech3.errors import Speech3Error

    def wanted(value: str | None) -> int | list[str] | None:
        return None if value is None else int(value) if value.isdecimal() else read_list(Path(value))

    if all(value is None for value in (speakers, utterances, per_speaker, shortest, first, hours)):
        raise Speech3Error("say which part: --speakers, --utterances, --per-speaker, --shortest, --first or --hours")
    if out.resolve() == directory.resolve():
        raise Speech3Error(f"{out}: the part cannot replace the whole; name another directory")
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
