"""`speech3 transcribe`: recordings in, text out."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[Path, typer.Argument(help="Model directory, or OUT.onnx of `speech3 export`.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="wav, flac, ogg, mp3 or NIST sphere.")],
    ctm: Annotated[
        bool, typer.Option("--ctm", help="Print CTM: file, channel, start, duration, word, confidence.")
    ] = False,
) -> None:
    """Print the text of recordings: for one file the text alone, for several one line `FILE text` each.

    `speech3 transcribe exp/digits/dnn hello.wav more.flac`

    Recordings with a different sample rate from the model's are resampled, and channels are mixed. With `--ctm` every
    word is on its own line with its time in seconds.
    """
    from speech3.decoding.apply import transcribe
    from speech3.decoding.recognizer import load_recognizer
    from speech3.hmm.times import ctm_line

    for result in transcribe(load_recognizer(model), files, times=ctm):
        if ctm:
            for word in result.words:
                print(ctm_line(result.name, word))
        elif len(files) > 1:
            print(f"{result.name} {result.text}".rstrip())
        else:
            print(result.text)
