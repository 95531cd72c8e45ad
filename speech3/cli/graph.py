"""`speech3 graph`: other words, another language model or a grammar for a trained model."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[Path, typer.Argument(help="Model directory, or OUT.onnx of `speech3 export`.")],
    out: Annotated[Path, typer.Argument(help="Gets the graph, for --graph of `decode` and `transcribe`.")],
    add: Annotated[Path | None, typer.Option(help="Words for the language model, one a line.")] = None,
    lm: Annotated[Path | None, typer.Option(help="Another language model: ARPA, may be gzipped.")] = None,
    text: Annotated[Path | None, typer.Option(help="Another language model, estimated from this text.")] = None,
    order: Annotated[int | None, typer.Option(help="Of the model from --text; 3 if not given.", min=1, max=6)] = None,
    grammar: Annotated[Path | None, typer.Option(help="A grammar, JSGF, in place of a language model.")] = None,
    sentences: Annotated[Path | None, typer.Option(help="The only sentences that can be said, one a line.")] = None,
    lexicon: Annotated[Path | None, typer.Option(help="Pronunciations that come before the model's own.")] = None,
    lang: Annotated[str | None, typer.Option(help="espeak-ng's language code, to pronounce unknown words.")] = None,
) -> None:
    """Build another decoding graph for a trained model, in seconds; nothing is trained.

    `speech3 graph exp/mini/lfmmi exp/names --add names.txt --lang en-us`

    `speech3 decode exp/mini/lfmmi data/calls exp/calls --graph exp/names`

    A line of `--add` is `WORD`, `WORD 5` (five times as probable as the model's median word, which is the default) or
    `WORD like OTHER` (as probable as OTHER, after the same words); phones may follow. Words of `--add`, `--grammar` and
    `--sentences` that have no pronunciation get one: from espeak-ng with `--lang`, else from their letters, as in the
    model's lexicon. Words of `--lm` and `--text` get one with `--lang`, else they are left out and
    listed in `OUT/dropped.txt`. `OUT/lexicon.txt` holds the new pronunciations: correct them and give them back with
    `--lexicon`.

    The acoustic scale and word penalty remain those that the model was tuned to.
    """
    from speech3.decoding.another_graph import LEXICON, Wish, make_graph

    found = make_graph(model, out, Wish(lm, text, order, grammar, sentences, lexicon, add, lang))
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
