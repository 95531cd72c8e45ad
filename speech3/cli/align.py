"""`speech3 align`: times and confidences of words and phones."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    model: Annotated[
        Path, typer.Argument(help="Model directory, such as exp/digits/tri.", autocompletion=_complete.models)
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory with text.")],
    out: Annotated[Path, typer.Argument(help="Output directory: ali.ark, phones.ctm, words.ctm, textgrid/ and lists.")],
    jobs: Annotated[int, typer.Option(help="Number of processes; 0: one per core.", min=0)] = 0,
    lexicon: Annotated[Path | None, typer.Option(help="Additional pronunciations, in the model's phones.")] = None,
    lang: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Pronounce unknown words with espeak-ng in this language, such as en-us."),
    ] = None,
) -> None:
    """Align transcripts with recordings; write pdf, phone and word alignments for Kaldi and Praat.

    `speech3 align exp/digits/tri data/new exp/new_align`

    `words.ctm` and `phones.ctm` hold times in seconds and, in the sixth column, confidences: 1 where no pdf of the
    model fits better than the aligned ones, 0 where a pdf picked at random would fit just as well.
    `textgrid/UTTERANCE.TextGrid` is the same for Praat; `ali.ark` has a pdf for each frame (Kaldi int32 vectors).
    Times count from the start of the utterance.

    Lists with tab-separated fields: `confidence.txt` (utterance, confidence, its worst word, the confidence of that
    word, seconds); `suspicious.txt`, the utterances that are probably mistranscribed, worst first (utterance,
    confidence, reason, the transcript with * around doubtful words); `oov.txt`, words that are not in the lexicon
    (word, count, utterances). `bad.txt` lists utterances that could not be aligned, with the reason.

    An utterance longer than a minute is searched for the words of its transcript and cut at pauses; its transcript may
    omit parts of the recording or contain text that was not spoken. CTM and TextGrid cover the whole utterance;
    `split/` is a data directory of its parts, ready for training; `gaps.txt` lists what has no counterpart in the
    recording or the transcript (utterance, start, end, words if any).

    `speech3 align exp/minilibri/aligner data/lectures exp/lectures --lang en-us` also pronounces words that are not in
    the lexicon; `--lexicon more.txt` reads their pronunciations from a file (`word phone phone ...`).
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
        print(
            f"{len(found.unknown)} words are not in the lexicon: {out}/oov.txt; add their pronunciations with --lexicon"
            " or --lang"
        )
    if found.layouts:
        print(f"{len(found.layouts)} long utterances: parts in {out}/split, unmatched text or speech in {out}/gaps.txt")
