"""`speech3 import`: Kaldi's alignments as training input."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    alignment: Annotated[
        Path, typer.Argument(metavar="ALI", help="Kaldi alignment directory with final.mdl, tree, ali.*.gz.")
    ],
    out: Annotated[Path, typer.Argument(help="Model directory to write: ali.ark, hmm.json, graph/.")],
    lang: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Kaldi lang directory: names of phones, the lexicon.")
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Kaldi graph directory: HCLG.fst, words.txt.")
    ] = None,
) -> None:
    """Import a Kaldi alignment (senones to train on) and optionally Kaldi's decoding graph.

    `speech3 import exp/tri3_ali exp/tri3 --lang data/lang --graph exp/tri3/graph`

    `OUT/ali.ark` holds a pdf for each frame, for `speech3 pack DIR FRAMES --ali OUT --features PRESET`; OUT is then the
    `hmm` of `speech3 train`, and the trained model decodes with Kaldi's graph. With `--lang`, and if all phones have
    three states in a row, OUT is a complete HMM, with which `speech3 align` works as well.
    """
    from speech3.hmm.model import PdfsOnly
    from speech3.io.progress import say
    from speech3.kaldi.directory import import_kaldi

    found = import_kaldi(alignment, out, lang, graph)
    if isinstance(found.outputs, PdfsOnly):
        say(f"{out}: can be used to train and decode, but not to align: {found.outputs.why}")
    words = "no graph" if found.words is None else f"{out}/graph with {found.words} words"
    print(f"{out}: {found.utterances} utterances, {found.frames} frames, {found.outputs.num_pdfs} pdfs; {words}")
