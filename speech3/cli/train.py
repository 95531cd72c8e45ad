"""`speech3 train`: an acoustic model from packed frames."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    conf: Annotated[Path, typer.Argument(help="YAML file with the keys data, hmm, model, training, seed.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to it: key=value.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default: exp/NAME for NAME.yaml.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; short for training.device=...")] = None,
    init: Annotated[Path | None, typer.Option(metavar="CKPT", help="Begin with a trained model (directory).")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget an earlier run in the same directory.")] = False,
) -> None:
    """Train an acoustic model; an unfinished run of the same config goes on from where it was.

    `speech3 train my.yaml --out exp/dnn model.width=256 training.max_epochs=10`

    with, in my.yaml: `data: exp/frames` (the directory with train.frames and heldout.frames), `hmm: exp/tri`,
    `model: dnn_small` (a preset of conf/models, or the keys themselves), `training: sgd`.

    Fine-tuning: `speech3 train my.yaml --init exp/dnn --out exp/tuned training.learning_rate=0.02`

    keeps all parameters if the senones of `hmm` are those of the model, else all but the output layer's.
    """
    from speech3.config import TrainConfig, load_config
    from speech3.training import train

    changes = (overrides or []) + ([f"training.device={device}"] if device else [])
    directory = out or Path("exp") / conf.stem
    config = load_config(TrainConfig, conf, changes)
    if init:
        config = config.model_copy(update={"init": str(init)})
    about = train(config, directory, restart=restart)
    print(
        f"{directory}/model.safetensors: held-out frame accuracy {about['heldout_accuracy']:.2%} "
        f"(epoch {about['best_epoch']} of {len(about['history'])}), {about['seconds']:.0f} s of training"
    )
