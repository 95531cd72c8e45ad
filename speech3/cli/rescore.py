"""`speech3 rescore`: rescore lattices with another language model."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    decoded: Annotated[Path, typer.Argument(metavar="DECODE", help="Directory that `decode --lattice` wrote.")],
    lm: Annotated[str, typer.Argument(metavar="LM", help="ARPA file (also .gz) of any order, or module:function.")],
    out: Annotated[Path, typer.Argument(help="Directory for hyp.txt, rescore.json and, with ARPA, the new lattices.")],
    weight: Annotated[
        float,
        typer.Option(
            metavar="W", help="1: LM replaces the graph's; less: they are interpolated (in log).", min=0, max=1
        ),
    ] = 1.0,
    tune: Annotated[
        Path | None, typer.Option(metavar="TEXT", help="Kaldi text file of references to choose the best weight on.")
    ] = None,
    nbest: Annotated[
        int | None, typer.Option(metavar="N", help="Paths in nbest.jsonl; with a function, 100 by default.", min=1)
    ] = None,
    ctm: Annotated[bool, typer.Option("--ctm", help="Also write hyp.ctm.")] = False,
    old: Annotated[
        Path | None, typer.Option(metavar="ARPA", help="The graph's language model, if the graph does not keep it.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes for --ctm; 0: one per core.", min=0)] = 0,
) -> None:
    """Replace the language model costs in lattices with those of another language model.

    `speech3 decode exp/dnn data/dev exp/dev --lattice && speech3 rescore exp/dev 4gram.arpa.gz exp/dev4 --tune
    data/dev/text`

    `speech3 decode exp/dnn data/new exp/new --lattice && speech3 rescore exp/new 4gram.arpa.gz exp/new4 --weight 0.7`

    A function, such as a neural language model, gets a list of the N best word sequences (tuples) of an utterance and
    returns the natural logarithm of the probability of each. Its module may be in the working directory:

    `speech3 rescore exp/new my_lm:log_probs exp/new_rescored --weight 0.5`
    """
    from speech3.decoding.rescore_files import Options, rescore, write_times
    from speech3.io.parallel import available_jobs
    from speech3.lattices.directory import open_lattices
    from speech3.scoring.text import read_text

    references = {key: text.split() for key, text in read_text(tune).items()} if tune else None
    directory = open_lattices(decoded)
    paths = nbest or (0 if Path(lm).exists() or ":" not in lm else 100)
    outcome = rescore(directory, lm, out, Options(weight, references, paths, old, ctm))
    if ctm:
        write_times(directory, out, outcome.decoding, jobs or available_jobs())
    for tried, rate in outcome.rates.items():
        print(f"weight {tried:g}: WER {100 * rate:.2f} %")
    print(f"{len(outcome.decoding.hypotheses)} utterances: {out}/hyp.txt, weight {outcome.weight:g}")
