"""The verbs that train networks: `recipe`, `pack`, `train`, `pretrain`, `simulate`."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from speech3.cli import _verb
from speech3.errors import SettingError, counted
from speech3.io import FEATURES_FILE
from speech3.runtime import check_output

if TYPE_CHECKING:
    from speech3.config import TrainConfig

N = TypeVar("N", int, float)
_GIGABITS, _WORKERS = "1,10,100", "1,2,3,4,5"


def recipe(
    corpus: Annotated[
        str | None, typer.Argument(help="Name of a recipe; none: list them.", autocompletion=_verb.recipes)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes to the recipe.", autocompletion=_verb.overrides),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the corpus, if it is not built in.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Output directory; default: exp/CORPUS, or exp/FOLDER for any.")
    ] = None,
    from_stage: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="STAGE", help="Run this stage and all later ones again.", autocompletion=_verb.stages
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE|SYSTEM",
            help="Stop after this stage; or run only what a system needs: tri, lfmmi, ...",
            autocompletion=_verb.stages,
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of processes; the same as jobs=N.", min=0)] = None,
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="Language code of espeak-ng; the same as lang=CODE.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, why, and for how long; run nothing.")
    ] = False,
) -> None:
    """Run a recipe: data, features, hmm, graph, train, decode, adapted, self, rescore, score, report.

    `speech3 recipe digits` or, in a checkout, `recipes/run.sh digits`

    `speech3 recipe fsdd --source /data/fsdd model.width=512 training.learning_rate=0.05`

    A finished stage is run again only if its config, its input or an earlier stage has changed. If a run was killed,
    run the same command again to resume it. The last lines on standard output have the form `CORPUS SYSTEM WER 12.34
    [10.20, 14.60]`: the word error rate in per cent and its 95 % interval.
    """
    from speech3.config import recipes

    if corpus is None:
        print("recipes (run them with recipes/run.sh NAME in a checkout, with speech3 recipe NAME anywhere):")
        width = max(map(len, recipes()))
        print("\n".join(f"  {name:<{width}} {about}" for name, about in recipes().items()))
        return
    from speech3.recipe import open_experiment, run_recipe  # imports PyTorch, which takes seconds

    changes = [*(overrides or []), *_as_overrides(overrides or [], jobs=jobs, lang=lang)]
    experiment = open_experiment(corpus, out, source, changes, shlex.join(["speech3", *sys.argv[1:]]))
    run_recipe(experiment, from_stage, to, dry_run=dry_run)


def _as_overrides(overrides: list[str], **options: object) -> list[str]:
    given = {key: value for key, value in options.items() if value is not None}
    for key, value in given.items():
        if both := [override for override in overrides if override.startswith(f"{key}=")]:
            raise SettingError(f"--{key} {value}, {both[0]}: these are two ways to set one key; remove one")
    return [f"{key}={value}" for key, value in given.items()]


def pack(
    directory: _verb.DataDir,
    out: Annotated[Path, typer.Argument(help="Output directory: train.frames, heldout.frames and features.yaml.")],
    ali: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory with ali.ark, from `speech3 import` or `speech3 align`.")
    ],
    features: Annotated[
        str,
        _verb.preset(
            "features", "Preset in conf/features (`given`: DIR's feats.scp), a YAML file, or Kaldi's conf/mfcc.conf."
        ),
    ],
    hmm: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL", help="Model that made the alignment; default: --ali.", autocompletion=_verb.models
        ),
    ] = None,
    heldout: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the hours held out, by speaker.", min=0.001, max=0.5)
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed for drawing the held-out speakers.", min=0)] = 1,
    jobs: _verb.Jobs = 0,
) -> None:
    """Extract features and pack them with the senones of an alignment; some of the speakers are held out.

    `speech3 import exp/tri3_ali exp3/tri3 && speech3 pack data/train exp/frames --ali exp3/tri3 --features fbank40_d2`

    `speech3 align exp/tri data/train exp/ali && speech3 pack data/train exp/frames --ali exp/ali --hmm exp/tri
    --features fbank40_d2`

    Then `speech3 train my.yaml` with, in my.yaml: `frames: exp/frames`, `hmm: exp3/tri3`, `model: dnn`,
    `training: sgd`.
    """
    from speech3.config import FeatureConfig, load_preset
    from speech3.data import read_datadir
    from speech3.decode import say_skipped
    from speech3.frames import pack_aligned
    from speech3.runtime import available_jobs

    check_output(out, [Path(features)] if Path(features).is_file() else [], [FEATURES_FILE])
    config = load_preset(FeatureConfig, "features", features)
    packed = pack_aligned(
        read_datadir(directory), ali, hmm or ali, out, config, heldout=heldout, seed=seed, jobs=jobs or available_jobs()
    )
    say_skipped(packed.skipped, "left out")
    for name, report in (("train", packed.train), ("heldout", packed.heldout)):
        print(f"{out}/{name}.frames: {counted(report.utterances, 'utterance')}, {counted(report.frames, 'frame')}")


def train(
    conf: Annotated[Path, typer.Argument(help="YAML file with the keys frames, hmm, model, training, seed.")],
    overrides: _verb.Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run directory; default: exp/NAME for NAME.yaml.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Number of workers; short for training.workers=...")] = None,
    world: Annotated[
        str | None,
        typer.Option(
            help="sgd, ddp, simulated, shared, cluster or sandblaster; short for training.world=...",
            autocompletion=_verb.backends,
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
        Path | None, typer.Option(metavar="MODEL", help="Fine-tune MODEL (any language).", autocompletion=_verb.models)
    ] = None,
    restart: _verb.Restart = False,
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
    from speech3.config import TrainConfig, load_config, refuse_unused
    from speech3.engine import simulated_strategy
    from speech3.models import parameters_of
    from speech3.runtime import say
    from speech3.train import train, with_workers

    given = {"world": world, "workers": workers, "device": device, "cluster.address": address}
    changes = (overrides or []) + [f"training.{key}={value}" for key, value in given.items() if value is not None]
    directory = out or Path("exp") / conf.stem
    config = load_config(TrainConfig, conf, changes)
    if world == "simulated" and not any(change.startswith("training.simulation.strategy=") for change in changes):
        strategy = simulated_strategy(load_config(TrainConfig, conf, overrides).training)
        if strategy != config.training.simulation.strategy:
            config = load_config(TrainConfig, conf, [*changes, f"training.simulation.strategy={strategy}"])
            say(f"--world simulated: training.simulation.strategy={strategy}, to match the world of the config")
    if address and config.training.world != "cluster":
        raise SettingError(f"--address {address}: only for world cluster; add --world cluster")
    if init:
        config = config.model_copy(update={"init": str(init)})
    if world is None and workers is not None and workers > 1 and config.training.world == "sgd":
        config = with_workers(config, workers, world="shared")
        say(f"--workers {workers}: using world shared (choose another with --world)")
    refuse_unused(changes, {f"training.{key}": purpose for key, purpose in config.training.unused.items()})
    about = train(config, directory, restart=restart)
    print(
        f"{directory}/model.safetensors: held-out frame accuracy {about['heldout_accuracy']:.2%} "
        f"({parameters_of(about)} of {len(about['history'])}), {about['seconds']:.0f} s of training"
    )


def pretrain(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of recordings, or Kaldi data directory.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes to conf/pretrain.yaml.", autocompletion=_verb.overrides),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="RUN", help="Run directory.")] = Path("exp/pretrained"),
    restart: _verb.Restart = False,
) -> None:
    """Train a network on recordings without transcripts, as a start for an acoustic model; resume an unfinished run.

    `speech3 pretrain recordings --out exp/pretrained model=dnn_small`

    `speech3 train my.yaml --init exp/pretrained model=dnn_small` then begins with its hidden layers and a new output
    layer; in recipes `pretrain=DIR` does both. The network predicts the clusters of hidden frames; with
    `pretraining=autoencoder` it reconstructs windows of frames from damaged ones. Transcripts are not read.

    Recordings are resampled to the rate of the first. For a network at another rate pass the features of its frames:
    `features=exp/frames/features.yaml`.
    """
    from speech3.config import PretrainConfig, load_config, refuse_unused, shipped
    from speech3.train import pretrain

    config = load_config(PretrainConfig, shipped("conf") / "pretrain.yaml", overrides)
    for name, group in (("training", config.training), ("pretraining", config.pretraining)):
        refuse_unused(overrides or [], {f"{name}.{key}": purpose for key, purpose in group.unused.items()})
    about = pretrain(source, out, config, restart=restart)
    what = {"masked": "of the clusters predicted", "autoencoder": "of the variance reconstructed"}
    print(
        f"{out}/model.safetensors: held-out {about['heldout_accuracy']:.2%} {what[config.pretraining.task]},"
        f" {about['seconds']:.0f} s of training"
    )


def simulate(
    conf: Annotated[Path, typer.Argument(help="YAML file as for `speech3 train`.")],
    overrides: _verb.Overrides = None,
    workers: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of workers; 1 is plain SGD. Default: 1,2,3,4,5.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Output directory; default: exp/NAME_simulated (NAME.yaml).")
    ] = None,
    rates: Annotated[str, typer.Option(metavar="R,R,...", help="Learning rates to try for each row.")] = "",
    seeds: Annotated[
        str, typer.Option(metavar="S,S,...", help="Seeds for the rows of one worker and of the most workers.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")] = 1,
    synchronous: Annotated[
        bool, typer.Option(help="Also simulate synchronous workers, for comparison (without --strategies).")
    ] = True,
    strategies: Annotated[
        str,
        typer.Option(
            metavar="M,M,...",
            help="Presets of conf/training, each applied to CONF, with rows of its own.",
            autocompletion=_verb.presets("training", several=True),
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
            autocompletion=_verb.presets("models", several=True),
        ),
    ] = "",
) -> None:
    """Train with 1, 2, ... simulated workers: real gradients, a virtual clock.

    `speech3 simulate my.yaml --workers 1,2,5 --rates 0.1,0.2,0.4 --jobs 2 training=asgd`

    This prints the time to 0.90, 0.95 and 0.98 times the best held-out frame accuracy of one worker, and the scaling
    efficiency, for asynchronous workers and for synchronous workers with the same total minibatch. First it measures
    how long a minibatch and a sync take, unless training.simulation sets these times. It also draws curves as PNG.
    Communication takes time if training.simulation sets bandwidth (bytes per second) or latency_s.

    `speech3 simulate my.yaml --strategies sgd,downpour,downpour_adagrad,sandblaster --workers 4,16`

    This draws the figure of the DistBelief paper: held-out accuracy over time for every preset and number of workers.
    The keys of a preset take precedence over those of my.yaml, and overrides (training.max_epochs=5) over both.

    `speech3 simulate my.yaml --throughput 1,2,4,8,16,32,64,128,256,512 --models dnn,cnn,lstm`

    Does not train; applies TernGrad's performance model to three values measured on training.device: the time of a
    minibatch, the time of encoding and decoding, and the number of encoded bytes. It prints and draws frames per second
    with float32 and with ternary gradients (training.codec.bucket, clip, float_below, float_last), and prints whether
    TernGrad's conclusions hold.
    """
    from speech3.config import TrainConfig, load_config
    from speech3.evaluate import print_table, write_curves
    from speech3.train import make_table, own_strategies, preset_strategies, simulate

    if models and not throughput:
        raise SettingError(f"--models {models}: only for --throughput; set the model to train with model=...")
    if gigabits and not throughput:
        raise SettingError(
            f"--gigabits {gigabits}: only for --throughput; to limit the links in training, set "
            "training.simulation.bandwidth, in bytes per second"
        )
    for option, given in (("--workers", workers), ("--strategies", strategies), ("--rates", rates), ("--seeds", seeds)):
        if throughput and given:
            raise SettingError(f"{option} {given}: --throughput trains nothing; remove one of the two options")
    if (strategies or throughput) and not synchronous:
        raise SettingError("--no-synchronous: only without --strategies and --throughput; remove it")
    directory = out or Path("exp") / f"{conf.stem}_simulated"
    config = load_config(TrainConfig, conf, overrides or [])
    if throughput:
        counts, links = _numbers(throughput, int, "--throughput"), _numbers(gigabits or _GIGABITS, float, "--gigabits")
        return _throughput(config, directory, counts, links, _names(models, "--models"))
    if strategies:
        chosen = preset_strategies(conf, overrides or [], _names(strategies, "--strategies"))
    else:
        chosen = own_strategies(config, synchronous=synchronous)
    counts, tried = _numbers(workers or _WORKERS, int, "--workers"), _numbers(rates, float, "--rates")
    drawn = _numbers(seeds, int, "--seeds")
    outcomes, failed = simulate(chosen, counts, directory, rates=tried, seeds=drawn, jobs=jobs)
    curves = [outcome.curve for outcome in outcomes]
    table = make_table(curves[0], curves[1:])
    columns = [("rate", [f"{outcome.learning_rate:g}" for outcome in outcomes])]
    if any(len(outcome.last) > 1 for outcome in outcomes):
        columns.append(("last %, each seed", [" ".join(f"{100 * a:.2f}" for a in o.last) for o in outcomes]))
    print_table(table, columns)
    if failed:
        print(f"note: left out: {', '.join(failed)}: failed at every rate tried; try smaller ones with --rates")
    systems = [outcome.variant.strategy.name for outcome in outcomes] if strategies else []
    print(f"wrote {', '.join(map(str, write_curves(directory, table, curves, virtual=True, systems=systems)))}")


def _throughput(config: "TrainConfig", out: Path, workers: list[int], gigabits: list[float], models: list[str]) -> None:
    from speech3.evaluate import throughput_text, write_throughput
    from speech3.train import throughput

    found = throughput(config, workers, gigabits, models)
    print(throughput_text(found))
    print(f"wrote {', '.join(map(str, write_throughput(out, found)))}")


def _names(text: str, option: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if text and not names:
        raise SettingError(f"{option} {text}: expected names separated by commas, as in sgd,downpour or dnn,cnn")
    return names


def _numbers(text: str, kind: Callable[[str], N], option: str) -> list[N]:
    try:
        numbers = [kind(part) for part in text.split(",") if part]
        if text and not numbers:
            raise ValueError("nothing but commas")
        return numbers
    except ValueError as error:
        raise SettingError(f"{option} {text}: expected numbers separated by commas, as in 1,2,5") from error
