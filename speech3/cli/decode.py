"""`speech3 decode`: recognition of the utterances of a data directory."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    model: Annotated[
        Path, typer.Argument(help="Model directory, such as exp/digits/dnn.", autocompletion=_complete.models)
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory; needs no text.")],
    out: Annotated[Path, typer.Argument(help="Output directory: hyp.txt and hyp.ctm.")],
    nbest: Annotated[int, typer.Option(metavar="N", help="Write the N best word sequences to nbest.jsonl.", min=0)] = 0,
    lattice: Annotated[bool, typer.Option("--lattice", help="Write Kaldi lattices: lat.ark, lat.scp.")] = False,
    mbr: Annotated[
        bool, typer.Option("--mbr", help="Write the words with the fewest expected errors (minimum Bayes risk).")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Number of processes and threads; 0: one per core.", min=0)] = 0,
    graph: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Graph of `speech3 graph`, used in place of the model's.")
    ] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="MODEL",
            autocompletion=_complete.models,
            help="Average the scores with those of another model; may be repeated.",
        ),
    ] = None,
    hot: Annotated[Path | None, typer.Option(help="Words to expect: lines `WORD [WORD ...] [BOOST]`.")] = None,
) -> None:
    """Recognise every utterance, with the acoustic scale and word penalty that were tuned on the model's dev set.

    `speech3 decode exp/digits/dnn data/new exp/new && speech3 score data/new/text exp/new/hyp.txt`

    `hyp.txt` is Kaldi text (`utterance word word ...`). `hyp.ctm` has the times of each word and its confidence: its
    posterior in the lattice, calibrated on the data that the model was tuned on. Utterances of more than five minutes
    are cut at pauses; lattices and N-best lists are then those of the parts, `UTTERANCE-BEGIN-END` (hundredths of a
    second).

    `--nbest 10` adds `nbest.jsonl`: a line for each of the best word sequences, with `utterance`, `rank`, `cost`,
    `acoustic_cost` (scaled), `graph_cost` and `words`. `--lattice` adds `lat.ark`, which Kaldi's tools, `speech3
    rescore` and `speech3 score` (oracle error rate) read. Each line of the `--hot` file is a word or phrase, which
    becomes e^BOOST times as probable; the default of BOOST is 3.

    `speech3 decode exp/digits/dnn DIR OUT --with exp/digits/lstm --with exp/digits/cnn` averages the models' log
    likelihoods of each frame. The models must have the same senones; the graph and the settings are those of MODEL.
    """
    from speech3.corpus.datadir import read_datadir
    from speech3.decoding.apply import say_skipped
    from speech3.decoding.chosen_graph import with_graph
    from speech3.decoding.latticed import NBEST, Wanted, decode_latticed
    from speech3.decoding.long_utterances import Parts, cut_long
    from speech3.decoding.output import write_decoding
    from speech3.decoding.recognizer import load_recognizer
    from speech3.decoding.search import without_words
    from speech3.decoding.together import features_together
    from speech3.features.extract import silent_in
    from speech3.io.parallel import available_jobs

    recognizer, jobs = with_graph(load_recognizer(model), graph, hot), jobs or available_jobs()
    more, data = [load_recognizer(other) for other in others or []], read_datadir(directory)
    given = any(each.features.kind == "given" for each in (recognizer, *more))
    data, parts = (data, Parts()) if given else cut_long(data)
    recognizer, feats, skipped = features_together(recognizer, more, data, jobs, out)
    decoding, kept = decode_latticed(recognizer, feats, out, Wanted(nbest, lattice, mbr), jobs)
    decoding = without_words(decoding, silent_in(out / "feats"))
    written = write_decoding(out, recognizer, feats, decoding, jobs, parts)
    say_skipped({**skipped, **decoding.failed}, "not decoded")
    say_skipped(kept.without, "no lattice")
    times = f", {out}/hyp.ctm" if (out / "hyp.ctm").exists() else ""
    paths = f", {out / NBEST}" if nbest else ""
    print(f"{len(written.hypotheses)} utterances: {out}/hyp.txt{times}{paths}")
    if lattice:
        print(f"lattices: {out}/lat.ark, {kept.density:.1f} arcs per frame")
