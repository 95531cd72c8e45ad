"""`speech3 align`: when each word and phone was said, and how surely."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[Path, typer.Argument(help="Model directory, such as exp/digits/tri.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory with text.")],
    out: Annotated[Path, typer.Argument(help="Gets ali.ark, phones.ctm, words.ctm, textgrid/ and lists.")],
    jobs: Annotated[int, typer.Option(help="Processes; 0: one per core.", min=0)] = 0,
    lexicon: Annotated[Path | None, typer.Option(help="More pronunciations, in the model's phones.")] = None,
    lang: Annotated[str | None, typer.Option(help="espeak-ng's language code, to pronounce unknown words.")] = None,
) -> None:
    """Align transcripts with recordings: pdfs, phones and words, for Kaldi, Praat and people.

    `speech3 align exp/digits/tri data/new exp/new_align`

    `words.ctm` and `phones.ctm` hold times in seconds and, in the sixth column, confidences: 1 where no pdf of the
    model fits better than the aligned ones, 0 where one picked at random would. `textgrid/UTTERANCE.TextGrid` is the
    same for Praat, `ali.ark` has a pdf for each frame (Kaldi int32 vectors). Times count from the utterance's start.

    Lists, their fields parted by tabs: `confidence.txt` (utterance, confidence, its worst word, that word's, seconds);
    `suspicious.txt`, worst first, the utterances that are probably mistranscribed (utterance, confidence, why, the
    transcript with * around doubtful words); `oov.txt`, words that are not in the lexicon (word, count, utterances);
    `bad.txt`, utterances that could not be aligned.

    An utterance of more than a minute is searched for its words and cut at pauses: the transcript may lack parts of
    the recording, or have others. CTM and TextGrid are of the whole; `split/` is a data directory of its pieces, ready
    for training, `gaps.txt` says what has no counterpart (utterance, start, end, the words if there are any).

    `speech3 align exp/mini/tri data/lectures exp/lectures --lang en-us` pronounces words that are not in the lexicon;
    `--lexicon more.txt` reads pronunciations (`word phone phone ...`).
    """
    from speech3.corpus.datadir import read_datadir
    from speech3.decoding.forced import align_datadir
    from speech3.decoding.recognizer import load_recognizer
    from speech3.io.parallel import available_jobs

    found = align_datadir(
        load_recognizer(model), read_datadir(directory), out, jobs or available_jobs(), lexicon=lexicon, lang=lang
    )
    print(
        f"{len(found.aligned.alignments)} utterances: {out}/words.ctm, {out}/phones.ctm, {out}/textgrid, {out}/ali.ark"
    )
    print(f"{len(found.suspicious)} suspicious: {out}/suspicious.txt")
    if found.unknown:
        print(f"{len(found.unknown)} words are not in the lexicon: {out}/oov.txt; --lexicon or --lang pronounces them")
    if found.layouts:
        print(f"{len(found.layouts)} long recordings: pieces in {out}/split, what was not found in {out}/gaps.txt")
