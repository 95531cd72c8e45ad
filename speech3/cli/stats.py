"""`speech3 stats`: statistics of a data directory."""

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory.")],
    lexicon: Annotated[Path | None, typer.Option(help="Lexicon; words that it lacks are counted.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write stats.json, stats.png and oov.txt to this directory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Print hours, speakers, sample rates, words and out-of-vocabulary words of a data directory.

    `speech3 stats data/train --lexicon data/lexicon.txt --out exp/stats`

    Only the headers of the audio are read. `stats.png` shows the distributions of the lengths of utterances and of the
    amount of speech per speaker; `oov.txt` lists the words that the lexicon lacks, the most frequent first.
    """
    from speech3.corpus.datadir import read_datadir
    from speech3.corpus.stats import describe, measure, warn
    from speech3.io.atomic import write_json, write_text
    from speech3.lexicon.lexicon import read_lexicon

    words = read_lexicon(lexicon).by_word if lexicon else None
    stats = measure(read_datadir(directory), words)
    print(json.dumps(stats.as_json(), indent=1, ensure_ascii=False) if as_json else describe(stats))
    warn(stats)
    if out:
        from speech3.reports.corpus_figure import write_histograms

        write_json(out / "stats.json", stats.as_json())
        write_histograms(stats, out / "stats.png")
        if stats.out_of_vocabulary:
            counts = stats.out_of_vocabulary.counts
            write_text(out / "oov.txt", "".join(f"{word} {count}\n" for word, count in counts.items()))
