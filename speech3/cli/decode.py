"""`speech3 decode`: words for the utterances of a data directory."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[Path, typer.Argument(help="Model directory, such as exp/digits/dnn.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory; needs no text.")],
    out: Annotated[Path, typer.Argument(help="Output directory: hyp.txt and hyp.ctm.")],
    jobs: Annotated[int, typer.Option(help="Number of processes and threads; 0: one per core.", min=0)] = 0,
) -> None:
    """Recognise every utterance, with the acoustic scale and word penalty that were tuned on the model's dev set.

    `speech3 decode exp/digits/dnn data/new exp/new && speech3 score data/new/text exp/new/hyp.txt`

    `hyp.txt` is Kaldi text (`utterance word word ...`); `hyp.ctm` has the time of each word and
    its confidence, which is its posterior in the lattice.
    """
    from speech3.corpus.datadir import read_datadir
    from speech3.decoding.apply import features_for, tell
    from speech3.decoding.output import write_decoding
    from speech3.decoding.recognizer import load_recognizer
    from speech3.io.parallel import available_jobs

    recognizer, jobs = load_recognizer(model), jobs or available_jobs()
    feats, skipped = features_for(recognizer, read_datadir(directory), jobs, out)
    decoding = recognizer.decode(feats, jobs, confidences=True)
    write_decoding(out, recognizer, feats, decoding, jobs)
    tell({**skipped, **decoding.failed}, "not decoded")
    times = f", {out}/hyp.ctm" if (out / "hyp.ctm").exists() else ""
    print(f"{len(decoding.hypotheses)} utterances: {out}/hyp.txt{times}")
