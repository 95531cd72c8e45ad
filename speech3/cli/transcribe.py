"""`speech3 transcribe`: recordings in, text out."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    model: Annotated[
        Path, typer.Argument(help="Model directory, or OUT.onnx of `speech3 export`.", autocompletion=_complete.models)
    ],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="wav, flac, ogg, mp3 or NIST sphere.")],
    ctm: Annotated[
        bool, typer.Option("--ctm", help="Print CTM: file, channel, start, duration, word, confidence.")
    ] = False,
    graph: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Graph of `speech3 graph`, used in place of the model's.")
    ] = None,
    hot: Annotated[Path | None, typer.Option(help="Words to expect: lines `WORD [WORD ...] [BOOST]`.")] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="MODEL",
            autocompletion=_complete.models,
            help="Average the scores with those of another model; may be repeated.",
        ),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="FILE is `-` (standard input) or a file that is still being written.")
    ] = False,
    rate: Annotated[
        int | None,
        typer.Option(metavar="HZ", help="With --stream: sample rate of raw audio, in Hz. Default: the model's."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each file; with --stream, for each result.")
    ] = False,
) -> None:
    """Print the text of recordings: of one file the text alone, of several files a line `FILE text` each.

    `speech3 transcribe exp/digits/dnn hello.wav more.flac`

    Recordings with a different sample rate from the model's are resampled. Several channels become one:
    their average, unless some are silent or cancel each other, which is said. Recordings of more than a minute are cut
    at pauses. With `--ctm` every word is on its own line with its time in seconds. `--json`
    prints a line for each file: `{"file", "duration", "text", "words": [{"word", "start", "end", "confidence"}, ...]}`,
    times in seconds.

    `arecord -t raw -f S16_LE -c 1 -r 16000 | speech3 transcribe --stream exp/digits/dnn - --rate 16000`

    With `--stream`, raw audio (16 bits, little endian, one channel) or WAV is recognised while it arrives. A terminal
    shows the words so far on a line that is rewritten as they change; without a terminal, lines `partial WORDS` and
    `final WORDS` are printed. A pause of half a second ends a line. Ctrl-C ends the audio.
    """
    from speech3.alignment.times import ctm_line
    from speech3.decoding.apply import transcribe
    from speech3.decoding.chosen_graph import with_graph
    from speech3.decoding.live import transcribe_arriving
    from speech3.decoding.recognizer import load_recognizer
    from speech3.decoding.together import same_features, together
    from speech3.decoding.transcription_json import json_of
    from speech3.errors import Speech3Error

    recognizer = with_graph(load_recognizer(model), graph, hot)
    if others:
        if stream:
            raise Speech3Error("--with: cannot be combined with --stream")
        more = [load_recognizer(other) for other in others]
        if differs := [other.directory for other in more if not same_features(recognizer, other)]:
            raise Speech3Error(f"{differs[0]}: reads other features than {model}; use speech3 decode --with instead")
        recognizer = together(recognizer, more)
    if stream:
        if len(files) != 1 or ctm:
            raise Speech3Error("--stream takes one FILE, or - for standard input, and no --ctm")
        transcribe_arriving(recognizer, str(files[0]), rate, as_json=as_json)
        return
    if rate is not None:
        raise Speech3Error("--rate is only for --stream; a finished file contains its sample rate")

    for result in transcribe(recognizer, files, times=ctm or as_json):
        if as_json:
            print(json_of(result))
        elif ctm:
            for word in result.words:
                print(ctm_line("_".join(result.name.split()), word))
        elif len(files) > 1:
            print(f"{result.name} {result.text}".rstrip())
        else:
            print(result.text)
