"""`speech3 tune`: find the best decoding parameters of a model."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    model: Annotated[
        Path,
        typer.Argument(help="Model directory with a decoding graph, such as exp/dnn.", autocompletion=_complete.models),
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory, neither train nor test.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the search and its grid.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of processes; 0: one per core.", min=0)] = 0,
) -> None:
    """Find the acoustic scale and word penalty with the lowest error rate, and store them with the model.

    `speech3 tune exp/dnn exp/digits/data/dev`

    `speech3 tune exp/dnn data/dev decode.acoustic_scales=[0.06,0.08,0.1] decode.word_penalties=[0,1]`

    Recipes do this themselves; a model from `speech3 train` needs it once before `decode` and `transcribe`. The result,
    with a calibration of the confidences, is `decode.json` in the model directory. The grid and the metric are those of
    the model's recipe (`tuning.json` in the model directory) unless keys change them.
    """
    from tempfile import TemporaryDirectory

    from speech3.config import changed
    from speech3.corpus.datadir import read_datadir
    from speech3.decoding.apply import features_for, say_skipped
    from speech3.decoding.recognizer import TUNING, load_recognizer, load_tuning, tune_recognizer
    from speech3.errors import Speech3Error, listed
    from speech3.graph.places import SETTINGS
    from speech3.io.parallel import available_jobs
    from speech3.scoring.text import ERROR_RATES

    recognizer, jobs = load_recognizer(model), jobs or available_jobs()
    config = changed(load_tuning(recognizer), "decode", overrides or [], recognizer.directory / TUNING)
    data = read_datadir(directory)
    texts = {key: (utterance.text or "").split() for key, utterance in data.utterances.items()}
    if silent := [key for key, words in texts.items() if not words]:
        raise Speech3Error(
            f"{directory}: {len(silent)} of {len(texts)} utterances have no transcript to compare with:"
            f" {listed(silent, 5)}; add transcripts to {directory}/text, or leave these utterances out"
            " (`speech3 subset`)"
        )
    _ = recognizer.tuning_graph  # if there is none, say so before hours of audio are read
    with TemporaryDirectory(prefix="speech3-") as scratch:
        feats, skipped = features_for(recognizer, data, jobs, Path(scratch))
        say_skipped(skipped, "left out")
        best = tune_recognizer(recognizer, feats, texts, config, jobs, ERROR_RATES[config.metric]).best
    print(f"{recognizer.directory / SETTINGS}: acoustic scale {best.acoustic_scale:g},", end=" ")
    print(f"word penalty {best.word_penalty:g}, {config.metric} {100 * best.error_rate:.2f} % on {directory}")
