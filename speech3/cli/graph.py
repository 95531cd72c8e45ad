"""`speech3 graph`: new words, another language model or a grammar for a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    model: Annotated[
        Path,
        typer.Argument(help="Model directory, or OUT.onnx from `speech3 export`.", autocompletion=_complete.models),
    ],
    out: Annotated[Path, typer.Argument(help="Directory for the graph, for --graph of `decode` and `transcribe`.")],
    add: Annotated[Path | None, typer.Option(help="Words to add to the language model, one per line.")] = None,
    lm: Annotated[Path | None, typer.Option(help="Another language model: ARPA, may be compressed.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text to estimate another language model from.")] = None,
    order: Annotated[int | None, typer.Option(help="Order of the model from --text; default: 3.", min=1, max=6)] = None,
    grammar: Annotated[Path | None, typer.Option(help="JSGF grammar to use in place of a language model.")] = None,
    sentences: Annotated[Path | None, typer.Option(help="The only sentences to recognise, one per line.")] = None,
    lexicon: Annotated[Path | None, typer.Option(help="Pronunciations that replace the model's own.")] = None,
    lang: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Pronounce unknown words with espeak-ng in this language, such as en-us."),
    ] = None,
) -> None:
    """Build another decoding graph for a trained model, in seconds and without training.

    `speech3 graph exp/minilibri/lfmmi exp/names --add names.txt --lang en-us`

    `speech3 decode exp/minilibri/lfmmi data/calls exp/calls --graph exp/names`

    A line of the `--add` file is `WORD` (as probable as the model's median word), `WORD 5` (five times as probable as
    that) or `WORD like OTHER` (as probable as OTHER after the same words); phones may follow. Words of `--add`,
    `--grammar` and `--sentences` without a pronunciation get one from espeak-ng if `--lang` is given, otherwise from
    their letters, by the rules of the model's lexicon. Words of `--lm` and `--text` without a pronunciation get one
    only if `--lang` is given; otherwise they are left out and listed in `OUT/dropped.txt`. `OUT/lexicon.txt` holds the
    new pronunciations: to correct them, edit the file and pass it to `--lexicon`.

    The model's tuned acoustic scale and word penalty stay in use.
    """
    from speech3.graph.another_graph import LEXICON, GraphSources, make_graph

    found = make_graph(model, out, GraphSources(lm, text, order, grammar, sentences, lexicon, add, lang))
    guessed, about = found.guessed, found.about
    if guessed.pronunciations:
        words = len({pron.word for pron in guessed.pronunciations})
        print(f"{words} words pronounced {guessed.how}: {out / LEXICON}")
        for pron in guessed.pronunciations[:20]:
            print(f"  {pron.word} {' '.join(pron.phones)}")
        if len(guessed.pronunciations) > 20:
            print(f"  and {len(guessed.pronunciations) - 20} more")
    if about["dropped"]:
        print(f"{len(about['dropped'])} words have no pronunciation and cannot be recognised: {out}/dropped.txt")
    print(f"{out}: {about['words']:,} words, {about['states']:,} states, {about['arcs']:,} arcs")
