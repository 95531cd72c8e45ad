"""The verbs for users of Kaldi: `import` and `export-kaldi`."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _verb
from speech3.errors import counted


def import_(
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

    `speech3 import exp/tri3_ali exp3/tri3 --lang data/lang --graph exp/tri3/graph`

    `OUT/ali.ark` holds a pdf for each frame, for `speech3 pack DIR FRAMES --ali OUT --features PRESET`; OUT is then the
    `hmm` of `speech3 train`, and the trained model decodes with Kaldi's graph. With `--lang`, and if all phones have
    three states in a row, OUT is a complete HMM, with which `speech3 align` works as well.
    """
    from speech3.decode import import_kaldi
    from speech3.hmm import PdfsOnly
    from speech3.runtime import say

    found = import_kaldi(alignment, out, lang, graph)
    if isinstance(found.outputs, PdfsOnly):
        say(f"{out}: can be used to train and decode, but not to align: {found.outputs.why}")
    words = "no graph" if found.words is None else f"{out}/graph with {counted(found.words, 'word')}"
    print(
        f"{out}: {counted(found.utterances, 'utterance')}, {counted(found.frames, 'frame')},"
        f" {found.outputs.num_pdfs} pdfs; {words}"
    )


def export_kaldi(
    model: _verb.Model,
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

    `final.mat` (LDA and MLLT) and `splice_opts` are also written for `lda` and `sat`.

    For a model trained with LF-MMI, use `utils/mkgraph.sh --self-loop-scale 1.0` and `--acoustic-scale=1.0`.
    """
    from speech3.decode import with_lexicon_of
    from speech3.hmm import Hmm, export_kaldi, load_hmm, load_projection, write_projection
    from speech3.io import GRAPH_DIR

    hmm = with_lexicon_of(load_hmm(model), model / GRAPH_DIR)
    assert isinstance(hmm, Hmm)
    export_kaldi(hmm, out)
    if projection := load_projection(model):
        write_projection(out, projection)
    files = "tree, final.mdl, topo, phones.txt, dict/" + (", final.mat, splice_opts" if projection else "")
    print(f"{out}: {files}: {hmm.num_pdfs} pdfs, {counted(len(hmm.lexicon.phones), 'phone')}")
