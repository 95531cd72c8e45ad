"""`speech3 train`: an acoustic model from packed frames."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    conf: Annotated[Path, typer.Argument(help="YAML file with the keys frames, hmm, model, training, seed.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes to CONF.", autocompletion=_complete.overrides),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run directory; default: exp/NAME for NAME.yaml.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Number of workers; short for training.workers=...")] = None,
    world: Annotated[
        str | None,
        typer.Option(
            help="sgd, ddp, simulated, shared, cluster or sandblaster; short for training.world=...",
            autocompletion=_complete.backends,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="World cluster: address of Ray's head node, or auto. Default: start Ray on this host.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; short for training.device=...")] = None,
    init: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Fine-tune MODEL (any language).", autocompletion=_complete.models),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard an earlier run in the same directory and begin again.")
    ] = False,
) -> None:
    """Train an acoustic model, or resume an unfinished run of the same config.

    `speech3 train my.yaml --out exp/dnn model.width=256 training.max_epochs=10`

    where my.yaml contains: `frames: exp/frames` (the directory with train.frames and heldout.frames), `hmm: exp/tri`,
    `model: dnn_small` (a preset of conf/models, or the keys themselves), `training: sgd`.

    On two cores: `speech3 train my.yaml --workers 2 --out exp/dnn2`

    This trains asynchronously (world shared: one process per worker, one server in shared memory) after one epoch of
    plain SGD (training.asgd.warm_start). `--world ddp` is PyTorch's synchronous training, for comparison; `--world
    simulated --workers 5` simulates five workers on one core (also with training=sandblaster or terngrad_ddp). Options
    of the engine are keys such as training.asgd.sync_every=3.

    On several hosts, which are nodes of one Ray cluster (`pip install speech3[cluster]`, `ray start`) and have the
    frames at the same path: `speech3 train my.yaml --world cluster --address auto --workers 8`

    On GPUs: `speech3 train my.yaml --workers 4 --device cuda`

    Fine-tuning: `speech3 train my.yaml --init exp/dnn --out exp/tuned training.learning_rate=0.02`

    This starts from all parameters of the model if `hmm` has the same senones, otherwise from all but those of the
    output layer.

    Sequence training (sMBR, or MMI with training=mmi), from a model trained by cross-entropy:

    `speech3 train my.yaml training=smbr --init exp/dnn --out exp/dnn_smbr`
    """
    from speech3.config import TrainConfig, load_config
    from speech3.engine import simulated_method
    from speech3.errors import Speech3Error
    from speech3.io.progress import say
    from speech3.models.describe import parameters_of
    from speech3.training import train
    from speech3.training.worlds import with_workers

    given = {"world": world, "workers": workers, "device": device, "cluster.address": address}
    changes = (overrides or []) + [f"training.{key}={value}" for key, value in given.items() if value is not None]
    directory = out or Path("exp") / conf.stem
    config = load_config(TrainConfig, conf, changes)
    if world == "simulated" and not any(change.startswith("training.simulation.method=") for change in changes):
        method = simulated_method(load_config(TrainConfig, conf, overrides).training)
        if method != config.training.simulation.method:
            config = load_config(TrainConfig, conf, [*changes, f"training.simulation.method={method}"])
            say(f"--world simulated: training.simulation.method={method}, to match the world of the config")
    if address and config.training.world != "cluster":
        raise Speech3Error(f"--address {address}: only for world cluster; add --world cluster")
    if init:
        config = config.model_copy(update={"init": str(init)})
    if world is None and workers is not None and workers > 1 and config.training.world == "sgd":
        config = with_workers(config, workers, world="shared")
        say(f"--workers {workers}: using world shared (choose another with --world)")
    about = train(config, directory, restart=restart)
    print(
        f"{directory}/model.safetensors: held-out frame accuracy {about['heldout_accuracy']:.2%} "
        f"({parameters_of(about)} of {len(about['history'])}), {about['seconds']:.0f} s of training"
    )
