"""`speech3 model-info`: what a model directory holds."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[Path, typer.Argument(help="Model directory, such as exp/digits/dnn.")],
    as_json: Annotated[bool, typer.Option("--json", help="The same, and more, for programs.")] = False,
) -> None:
    """Print layers, shapes, parameters, context, latency, FLOPs a frame, features, training and accuracies of a model.

    `speech3 model-info exp/digits/dnn`

    FLOPs are those of a forward pass: two for each weight and each place to which it is applied; biases, normalisation,
    activations and pooling are not counted. The latency is how much of what follows a frame its scores wait for; a
    decoder adds its own.
    """
    import json
    from dataclasses import asdict

    from speech3.models.describe import words
    from speech3.models.info import model_info

    info = model_info(model)
    print(json.dumps(asdict(info), indent=1) if as_json else words(info))
