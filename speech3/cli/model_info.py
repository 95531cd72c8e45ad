"""`speech3 model-info`: a description of a model."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    model: Annotated[
        Path, typer.Argument(help="Model directory, such as exp/digits/dnn.", autocompletion=_complete.models)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else, with more details.")] = False,
) -> None:
    """Print the layers, shapes, parameters, context, latency, FLOPs, features, training and accuracies of a model.

    `speech3 model-info exp/digits/dnn`

    FLOPs are per frame, for a forward pass: two for each weight and each position to which it is applied; biases,
    normalisation, activations and pooling are not counted. The latency is the amount of audio after a frame that must
    be received before the scores of the frame can be computed; the decoder's own latency is not included.
    """
    import json
    from dataclasses import asdict

    from speech3.models.describe import words
    from speech3.models.info import model_info

    info = model_info(model)
    print(json.dumps(asdict(info), indent=1) if as_json else words(info))
