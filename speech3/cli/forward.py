"""`speech3 forward`: log likelihoods for another decoder, such as Kaldi's."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    model: Annotated[
        Path,
        typer.Argument(
            help="Model directory of a network or of GMMs, such as exp/dnn.", autocompletion=_complete.models
        ),
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory; needs no text.")],
    out: Annotated[Path, typer.Argument(help="Output directory: loglikes.ark and loglikes.scp.")],
    jobs: Annotated[int, typer.Option(help="Number of processes for the features; 0: one per core.", min=0)] = 0,
) -> None:
    """Write the log likelihood of every pdf in every frame (for a network: log posterior minus log prior).

    `speech3 forward exp/dnn data/test exp/dnn/forward_test`

    `latgen-faster-mapped --acoustic-scale=0.1 final.mdl HCLG.fst ark:exp/dnn/forward_test/loglikes.ark ark:lat`

    `final.mdl` and `HCLG.fst` are those of the alignment that `speech3 import` read, or come from `speech3
    export-kaldi`. For a model trained with LF-MMI the scores are the network's outputs, one row per three frames: run
    Kaldi's decoder with `--acoustic-scale=1.0` and, where a program or script has the option, with
    `--frame-subsampling-factor=3`.

    The columns are the pdfs. Utterances without features are listed in `OUT/bad.txt`.
    """
    from speech3.corpus.datadir import read_datadir
    from speech3.decoding.apply import features_for, say_skipped, write_loglikes
    from speech3.decoding.recognizer import load_recognizer
    from speech3.io.parallel import available_jobs

    recognizer = load_recognizer(model)
    feats, skipped = features_for(recognizer, read_datadir(directory), jobs or available_jobs(), out)
    written = write_loglikes(recognizer, feats, out, skipped)
    say_skipped(skipped, "left out")
    print(f"{written} utterances, {recognizer.outputs.num_pdfs} pdfs: {out}/loglikes.scp")
