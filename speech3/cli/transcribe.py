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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a file: file, duration, text, words.")
    ] = False,
) -> None:
    """Print the text of recordings: of one file the text alone, of several a line `FILE text` for each.

    `speech3 transcribe exp/digits/dnn hello.wav more.flac`

    Recordings of another sample rate than the model's are resampled, channels are mixed. With `--ctm` every word comes
    on a line of its own with its time in seconds. `--json` prints a line for each file: `{"file", "duration", "text",
    "words": [{"word", "start", "end", "confidence"}, ...]}`, times in seconds.
    """
    from speech3.decoding.apply import transcribe
    from speech3.decoding.recognizer import load_recognizer
    from speech3.decoding.transcription_json import json_of
    from speech3.hmm.times import ctm_line

    for result in transcribe(load_recognizer(model), files, times=ctm or as_json):
        if as_json:
            print(json_of(result))
        elif ctm:
            for word in result.words:
                print(ctm_line(result.name, word))
        elif len(files) > 1:
            print(f"{result.name} {result.text}".rstrip())
        else:
            print(result.text)
