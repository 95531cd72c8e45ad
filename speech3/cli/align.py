"""`speech3 align`: when each word and phone was said."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[Path, typer.Argument(help="Model directory, such as exp/digits/tri.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory with text.")],
    out: Annotated[Path, typer.Argument(help="Gets ali.ark, phones.ctm, words.ctm and textgrid/.")],
    jobs: Annotated[int, typer.Option(help="Processes; 0: one per core.", min=0)] = 0,
) -> None:
    """Align transcripts with recordings: pdfs, phones and words, for Kaldi, Praat and people.

    `speech3 align exp/digits/tri data/new exp/new_align`

    `ali.ark` holds a pdf for each frame (Kaldi int32 vectors), `phones.ctm` and `words.ctm` the times in seconds,
    `textgrid/UTTERANCE.TextGrid` the same for Praat. Utterances that could not be aligned stand in `bad.txt`.
    """
    from speech3.corpus.datadir import read_datadir
    from speech3.corpus.lengths import lengths_s
    from speech3.decoding.apply import features_for, tell
    from speech3.decoding.recognizer import load_recognizer
    from speech3.hmm.align import write_alignments
    from speech3.hmm.times import frame_clock
    from speech3.hmm.vocabulary import check_vocabulary
    from speech3.io.parallel import available_jobs

    recognizer, jobs = load_recognizer(model), jobs or available_jobs()
    data = read_datadir(directory)
    texts = {key: utterance.text for key, utterance in data.utterances.items()}
    check_vocabulary(texts, recognizer.hmm.lexicon)  # before hours of audio are read
    feats, skipped = features_for(recognizer, data, jobs, out)
    alignments, bad = recognizer.align(feats, texts, jobs)
    clock = frame_clock(recognizer.features)
    bad = {**skipped, **bad}
    write_alignments(out, recognizer.hmm, alignments, texts, clock, durations_s=lengths_s(data), bad=bad)
    tell(bad, "not aligned")
    print(f"{len(alignments)} utterances: {out}/words.ctm, {out}/phones.ctm, {out}/textgrid, {out}/ali.ark")
