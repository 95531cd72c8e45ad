"""`speech3 g2p`: pronunciations of new words, as learnt from a lexicon."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.errors import MissingError, counted

verbs = typer.Typer(no_args_is_help=True, help="Pronounce words as a lexicon does, or spell phones.")


@verbs.command()
def train(
    lexicon: Annotated[Path, typer.Argument(help="Lexicon of Kaldi, MFA or CMUdict: `word phone phone ...`.")],
    out: Annotated[Path, typer.Argument(help="File to write.")],
    order: Annotated[int, typer.Option(help="Length of the longest n-grams of letters with phones.", min=1, max=6)] = 6,
) -> None:
    """Learn from a lexicon how words are pronounced.

    `speech3 g2p train lexicon.txt english.g2p`

    Words in upper and lower case are learnt alike; silences, noises and symbols such as `<unk>` are left out.
    """
    from speech3.language import g2p
    from speech3.runtime import check_output

    check_output(out, [lexicon], kind=("a file of speech3 g2p train", g2p.is_model))
    model = g2p.train(g2p.read_table(lexicon), str(lexicon), order)
    model.save(out)
    print(
        f"{out}: {counted(model.words, 'word')}, {counted(len(model.letters), 'letter')},"
        f" {counted(len(model.phones), 'phone')}, {counted(len(model.code_G), 'pair')} of both"
    )


@verbs.command()
def apply(
    model: Annotated[Path, typer.Argument(help="File from `speech3 g2p train`.")],
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORD...", help="Words, or files with one per line; - for standard input."),
    ],
    nbest: Annotated[
        int | None,
        typer.Option(metavar="N", help="Print up to N pronunciations of each word, with their probabilities.", min=1),
    ] = None,
    reverse: Annotated[
        bool,
        typer.Option("--reverse", help='Spell phones, given as "F OW1 N" or one pronunciation per line of a file.'),
    ] = False,
) -> None:
    """Print pronunciations of words as lines of a lexicon: `word phone phone ...`.

    `speech3 g2p apply english.g2p aardvark names.txt > more.txt`

    `speech3 g2p apply english.g2p colonel --nbest 3`

    `speech3 g2p apply english.g2p --reverse "F OW1 N"`

    With `--nbest` the probability of the pronunciation, given the word, follows the word; with `--reverse`, that of the
    spelling, given the phones. A word with a letter that the lexicon lacks gets no pronunciation, and is named.
    """
    from speech3.language import g2p
    from speech3.runtime import progress, say

    found = g2p.load(model)
    given = g2p.read_given(words, whole_lines=reverse)
    failed: dict[str, str] = {}
    for each in progress(given, len(given), "spellings" if reverse else "pronunciations"):
        try:
            best = found.spell(each.split(), nbest or 1) if reverse else found.pronounce(each, nbest or 1)
        except g2p.UnknownSymbolError as error:
            failed[each] = f"{error.symbol} is not a {'phone' if reverse else 'letter'} of the lexicon"
            continue
        if not best:
            failed[each] = "there is none"
        for symbols, prob in best:
            number = f" {max(prob, 1e-6):.6g}" if nbest else ""
            print(f"{''.join(symbols)}{number} {each}" if reverse else f"{each}{number} {' '.join(symbols)}")
    what = "spelling" if reverse else "pronunciation"
    for each, why in failed.items():
        say(f"no {what} of {each}: {why}")
    if failed and len(failed) == len(given):
        raise MissingError(f"{model}: no {what} of any of the {len(given):,} given")
