"""`speech3 simulate`: training with several workers, simulated on one machine."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from speech3.cli import _complete

if TYPE_CHECKING:
    from speech3.config import TrainConfig

N = TypeVar("N", int, float)
_GIGABITS = "1,10,100"


def command(
    conf: Annotated[Path, typer.Argument(help="YAML file as for `speech3 train`.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes to CONF.", autocompletion=_complete.overrides),
    ] = None,
    workers: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of workers; 1 is plain SGD.")] = "1,2,3,4,5",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Output directory; default: exp/NAME_simulated (NAME.yaml).")
    ] = None,
    rates: Annotated[str, typer.Option(metavar="R,R,...", help="Learning rates to try for each row.")] = "",
    seeds: Annotated[
        str, typer.Option(metavar="S,S,...", help="Seeds for the rows of one worker and of the most workers.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")] = 1,
    synchronous: Annotated[bool, typer.Option(help="Also simulate synchronous workers, for comparison.")] = True,
    methods: Annotated[
        str,
        typer.Option(
            metavar="M,M,...",
            help="Presets of conf/training, each applied to CONF, with rows of its own.",
            autocompletion=_complete.presets("training", several=True),
        ),
    ] = "",
    throughput: Annotated[
        str,
        typer.Option(metavar="N,N,...", help="Do not train: predict the frames per second of N synchronous workers."),
    ] = "",
    gigabits: Annotated[
        str, typer.Option(metavar="G,G,...", help="With --throughput: Gbit/s of each worker's link; default 1,10,100.")
    ] = "",
    models: Annotated[
        str,
        typer.Option(
            metavar="M,M,...",
            help="With --throughput: presets of conf/models; default: CONF's model.",
            autocompletion=_complete.presets("models", several=True),
        ),
    ] = "",
) -> None:
    """Train with 1, 2, ... simulated workers: real gradients, a virtual clock.

    `speech3 simulate my.yaml --workers 1,2,5 --rates 0.1,0.2,0.4 --jobs 2 training=asgd`

    This prints the time to 0.90, 0.95 and 0.98 times the best held-out frame accuracy of one worker, and the scaling
    efficiency, for asynchronous workers and for synchronous workers with the same total minibatch. First it measures
    how long a minibatch and a sync take, unless training.simulation sets these times. It also draws curves as PNG.
    Communication takes time if training.simulation sets bandwidth (bytes per second) or latency_s.

    `speech3 simulate my.yaml --methods sgd,downpour,downpour_adagrad,sandblaster --workers 4,16`

    This draws the figure of the DistBelief paper: held-out accuracy over time for every preset and number of workers.
    The keys of a preset take precedence over those of my.yaml, and overrides (training.max_epochs=5) over both.

    `speech3 simulate my.yaml --throughput 1,2,4,8,16,32,64,128,256,512 --models dnn,cnn,lstm`

    Does not train; applies TernGrad's performance model to three values measured on training.device: the time of a
    minibatch, the time of encoding and decoding, and the number of encoded bytes. It prints and draws frames per second
    with float32 and with ternary gradients (training.codec.bucket, clip, float_below, float_last), and prints whether
    TernGrad's conclusions hold.
    """
    from speech3.config import TrainConfig, load_config
    from speech3.errors import Speech3Error
    from speech3.reports.compare import print_table, write_curves
    from speech3.training.curves import make_table
    from speech3.training.simulation import own_methods, preset_methods, simulate

    if models and not throughput:
        raise Speech3Error(f"--models {models}: only for --throughput; set the model to train with model=...")
    if gigabits and not throughput:
        raise Speech3Error(
            f"--gigabits {gigabits}: only for --throughput; to limit the links in training, set "
            f"training.simulation.bandwidth, in bytes per second"
        )
    for option, given in (("--methods", methods), ("--rates", rates), ("--seeds", seeds)):
        if throughput and given:
            raise Speech3Error(f"{option} {given}: --throughput trains nothing; remove one of the two options")
    directory = out or Path("exp") / f"{conf.stem}_simulated"
    config = load_config(TrainConfig, conf, overrides or [])
    if throughput:
        return _throughput(
            config, directory, _numbers(throughput, int, "--throughput"),
            _numbers(gigabits or _GIGABITS, float, "--gigabits"), _names(models, "--models"),
        )  # fmt: skip
    if methods:
        chosen = preset_methods(conf, overrides or [], _names(methods, "--methods"))
    else:
        chosen = own_methods(config, synchronous=synchronous)
    outcomes, failed = simulate(
        chosen, _numbers(workers, int, "--workers"), directory,
        rates=_numbers(rates, float, "--rates"), seeds=_numbers(seeds, int, "--seeds"), jobs=jobs,
    )  # fmt: skip
    curves = [outcome.curve for outcome in outcomes]
    table = make_table(curves[0], curves[1:])
    columns = [("rate", [f"{outcome.learning_rate:g}" for outcome in outcomes])]
    if any(len(outcome.last) > 1 for outcome in outcomes):
        columns.append(("last %, each seed", [" ".join(f"{100 * a:.2f}" for a in o.last) for o in outcomes]))
    print_table(table, columns)
    if failed:
        print(
            f"note: left out: {', '.join(failed)}: failed at every learning rate tried; try smaller rates with --rates"
        )
    systems = [outcome.variant.method.name for outcome in outcomes] if methods else []
    print(f"wrote {', '.join(map(str, write_curves(directory, table, curves, virtual=True, systems=systems)))}")


def _throughput(config: "TrainConfig", out: Path, workers: list[int], gigabits: list[float], models: list[str]) -> None:
    from speech3.reports.throughput import throughput_text, write_throughput
    from speech3.training.throughput import throughput

    found = throughput(config, workers, gigabits, models)
    print(throughput_text(found))
    print(f"wrote {', '.join(map(str, write_throughput(out, found)))}")


def _names(text: str, option: str) -> list[str]:
    from speech3.errors import Speech3Error

    names = [name for name in text.split(",") if name]
    if text and not names:
        raise Speech3Error(f"{option} {text}: expected names separated by commas, as in sgd,downpour or dnn,cnn")
    return names


def _numbers(text: str, kind: Callable[[str], N], option: str) -> list[N]:
    from speech3.errors import Speech3Error

    try:
        numbers = [kind(part) for part in text.split(",") if part]
        if text and not numbers:
            raise ValueError("nothing but commas")
        return numbers
    except ValueError as error:
        raise Speech3Error(f"{option} {text}: expected numbers separated by commas, as in 1,2,5") from error
