"""`speech3 rescore`: another language model for lattices."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    decoded: Annotated[Path, typer.Argument(metavar="DECODE", help="Directory that `decode --lattice` wrote.")],
    lm: Annotated[str, typer.Argument(metavar="LM", help="ARPA file (also .gz) of any order, or module:function.")],
    out: Annotated[Path, typer.Argument(help="Gets hyp.txt, rescore.json and, of an ARPA file, the new lattices.")],
    weight: Annotated[
        float, typer.Option(help="1: LM in place of the graph's; less: log probabilities interpolated.", min=0, max=1)
    ] = 1.0,
    tune: Annotated[
        Path | None, typer.Option(metavar="TEXT", help="Kaldi text of what was said: take the best weight for it.")
    ] = None,
    nbest: Annotated[
        int | None, typer.Option(metavar="N", help="Paths for nbest.jsonl; for a function 100 by default.", min=1)
    ] = None,
    ctm: Annotated[bool, typer.Option("--ctm", help="Write hyp.ctm, too.")] = False,
    old: Annotated[
        Path | None, typer.Option(metavar="ARPA", help="What the graph was made of, if the graph does not keep it.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes for --ctm; 0: one per core.", min=0)] = 0,
) -> None:
    """Put another language model's costs in place of those that were searched with.

    `speech3 decode exp/dnn data/dev exp/dev --lattice && speech3 rescore exp/dev 4gram.arpa.gz exp/dev4 --tune
    data/dev/text`

    `speech3 decode exp/dnn data/new exp/new --lattice && speech3 rescore exp/new 4gram.arpa.gz exp/new4 --weight 0.7`

    A function, such as a neural language model, gets a list with the N best sequences of words of an utterance (tuples)
    and returns the natural logarithm of the probability of each. It is imported from the working directory, too:

    `speech3 rescore exp/new my_lm:log_probs exp/new_rescored --weight 0.5`
    """
    from speech3.decoding.lattice_dir import open_lattices
    from speech3.decoding.rescore_files import Options, rescore, write_times
    from speech3.io.parallel import available_jobs
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
