"""`speech3 stats`."""

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a Kaldi data directory")],
    lexicon: Annotated[Path | None, typer.Option(help="lexicon.txt: which words are not in it?")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="write stats.json, stats.png, oov.txt")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON and nothing else")] = False,
) -> None:
    """Hours, speakers, sample rates, words and out-of-vocabulary words of a data directory.

    `speech3 stats data/train --lexicon data/lexicon.txt --out exp/stats`

    Only the headers of the audio are read. `stats.png` shows how long the utterances are and how much each speaker
    says; `oov.txt` lists the words that the lexicon lacks, the most frequent first.
    """
    from speech3.corpus.datadir import read_datadir
    from speech3.corpus.stats import describe, measure, warn
    from speech3.hmm.lexicon import read_lexicon
    from speech3.io.atomic import write_json, write_text

    words = read_lexicon(lexicon).by_word if lexicon else None
    stats = measure(read_datadir(directory), words)
    print(json.dumps(stats.as_json(), indent=1, ensure_ascii=False) if as_json else describe(stats))
    warn(stats)
    if out:
        from speech3.corpus.figures import write_histograms

        write_json(out / "stats.json", stats.as_json())
        write_histograms(stats, out / "stats.png")
        if stats.out_of_vocabulary:
            counts = stats.out_of_vocabulary.counts
            write_text(out / "oov.txt", "".join(f"{word} {count}\n" for word, count in counts.items()))
