"""`speech3 export-kaldi`: senones for Kaldi's graph and decoder."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    model: Annotated[Path, typer.Argument(help="Model directory, such as exp/dnn.", autocompletion=_complete.models)],
    out: Annotated[Path, typer.Argument(help="Output directory: tree, final.mdl, topo, phones.txt and dict/.")],
) -> None:
    """Write tree, transition model, topology and dictionary in Kaldi's text formats.

    `speech3 export-kaldi exp/dnn kaldi && speech3 forward exp/dnn data/test forward`

    Then, in a Kaldi recipe directory:

    `utils/prepare_lang.sh --position-dependent-phones false --num-sil-states 3 --phone-symbol-table kaldi/phones.txt
    kaldi/dict "<unk>" kaldi/tmp kaldi/lang`

    `utils/format_lm.sh kaldi/lang lm.arpa.gz kaldi/dict/lexiconp.txt kaldi/lang_test`

    `utils/mkgraph.sh kaldi/lang_test kaldi kaldi/graph`

    `latgen-faster-mapped --acoustic-scale=0.1 --word-symbol-table=kaldi/graph/words.txt kaldi/final.mdl
    kaldi/graph/HCLG.fst ark:forward/loglikes.ark ark:lat.ark`

    For a model trained with LF-MMI, use `utils/mkgraph.sh --self-loop-scale 1.0` and `--acoustic-scale=1.0`.
    """
    from speech3.hmm.model import load_hmm
    from speech3.kaldi.export import export_kaldi

    hmm = load_hmm(model)
    export_kaldi(hmm, out)
    print(f"{out}: tree, final.mdl, topo, phones.txt, dict/: {hmm.num_pdfs} pdfs, {len(hmm.lexicon.phones)} phones")
