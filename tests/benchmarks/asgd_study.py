"""Accuracy and scaling of the engine's workers with each optimizer: simulated workers on real frames, several seeds.

    OMP_NUM_THREADS=1 python tests/benchmarks/asgd_study.py TABLE FRAMES HMM --out OUT [--every N] [--heldout N] ...

TABLE is one of

ternary
    Last held-out accuracy of momentum SGD, AdamW and Muon with float32 and with ternary gradients (one scale for each
    tensor, `training.codec.float_below` as in the presets), synchronous and asynchronous, with 2, 4 and 8 workers.
adamw, muon
    Efficiency of five workers with these optimizers.
cnn, lstm, lfmmi
    Efficiency of five workers with the networks cnn_small and lstm_small by SGD, and with cnn_tdnn_300k by LF-MMI
    (FRAMES and HMM are then OUT/frames/lfmmi and OUT/lfmmi_hmm).
curve_sgd, curve_muon
    Efficiency of 2, 4, 8 and 16 workers.
momentum
    Efficiency of five workers with SGD: the preset asgd, and server momentum with projection.
recipe
    Efficiency of two workers as a recipe has them where it chooses their number: a pass by one, then averaged pushes.

FRAMES and HMM are those of a recipe (OUT/frames/tri and OUT/tri); of the utterances for training, and of the held-out
ones, every N-th is used. Where a table names no network, it is a DNN of 3 x 128 with batch normalisation, with
minibatches of 128 frames; the clock is that of recipes/minilibri/asgd.sh. Runs are kept in OUT, and a finished run is
not run again. In a table of efficiency, each row has the rate (of a grid) with which the first seed reaches 0.98 of the
best accuracy of one worker first, and shows medians and ranges over seeds.
"""

import argparse
import copy
import json
import math
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from speech3.config import AsgdConfig, ModelConfig, TrainConfig, TrainingConfig, load_preset
from speech3.engine import Trainer, open_backends, rate_of, times_of
from speech3.engine.flat import flatten
from speech3.errors import Speech3Error
from speech3.frames import open_packed, write_frames
from speech3.train import Curve
from speech3.train.curves import time_to
from speech3.train.parts import make_parts, minibatches
from speech3.train.run import evaluate

MODEL = {"family": "dnn", "layers": 3, "width": 128, "normalization": "batch"}
COMMON = {"schedule": "exponential", "final_rate": 0.05, "evaluations": 6, "minibatch": 128}
CLOCK = {"compute_s": 0.01, "sync_s": 0.0006, "jitter": 0.1}  # of a minibatch of 256, as in recipes/minilibri/asgd.sh
LFMMI_CLOCK = {"compute_s": 0.5, "sync_s": 0.0014, "jitter": 0.1}
SHARES = (0.95, 0.98)
STEP = 2**0.5
BINS = 40


@dataclass(frozen=True)
class Row:
    """One setting of a table: keys of training, the number of workers, and the learning rates to choose from."""

    name: str
    workers: int
    rates: tuple[float, ...]
    keys: Mapping[str, Any] = field(default_factory=dict)
    strategy: str = "asgd"
    model: str | Mapping[str, Any] = field(default_factory=lambda: MODEL)
    preset: str = "asgd"  # of training


class Study:
    """Trains the runs of a table, and keeps the curve of each as OUT/NAME.json.

    The engine is driven directly: a run of a few seconds would spend as long on a run directory.
    """

    def __init__(self, frames: Path, hmm: Path, out: Path, epochs: int) -> None:
        self.epochs = epochs
        self.where, self.out = {"frames": str(frames), "hmm": str(hmm)}, out
        self.frames = {name: open_packed(frames / f"{name}.frames") for name in ("train", "heldout")}

    def run(self, row: Row, rate: float, seed: int) -> Curve | None:
        """The curve of a run; None if it failed because the learning rate was too high."""
        path = self.out / f"{row.name}_rate{rate:.4g}_seed{seed}.json"
        if not path.exists():
            try:
                points = list(self._train(self._config(row, rate, seed)))
            except Speech3Error as error:
                if "learning rate" not in str(error):
                    raise
                points = []
            path.write_text(json.dumps(points))
        points = json.loads(path.read_text())
        return Curve(row.name, row.workers, *map(tuple, zip(*points, strict=True))) if points else None

    def _train(self, config: TrainConfig) -> Iterator[tuple[float, int, float]]:
        """Virtual seconds, frames and held-out accuracy at each evaluation."""
        training, cpu = config.training, torch.device("cpu")
        parts = make_parts(config, self.frames["train"], cpu)
        judge, heldout = copy.deepcopy(parts.model), minibatches(config, self.frames["heldout"], cpu)
        clock = times_of(training.simulation, training.workers)
        trainer = Trainer(*open_backends(training, parts, lambda device: parts, clock=clock), training.asgd.warm_start)
        total, seconds, frames = len(parts.source), 0.0, 0
        for epoch in range(1, training.max_epochs + 1):
            trainer.begin_epoch()
            for progress in trainer.epoch(rate_of(training.learning_rate, epoch, total, training), seconds):
                due = (trainer.done.ended * training.evaluations) // total
                if progress.ended * training.evaluations // total > due:
                    trainer.take()
                    flatten(judge).load(trainer.tensors["parameters"])
                    accuracy = evaluate(judge, heldout, parts.loss)[1]
                    yield seconds + progress.seconds, frames + progress.frames, accuracy
            seconds, frames = seconds + trainer.done.seconds, frames + trainer.done.frames

    def _config(self, row: Row, rate: float, seed: int) -> TrainConfig:
        preset, asgd = (load_preset(TrainingConfig, "training", name).model_dump() for name in (row.preset, "asgd"))
        warmup = 0.0 if row.workers == 1 else asgd["warmup"]  # one worker does not need it
        asgd = {**asgd["asgd"], **row.keys.get("asgd", {})}
        training = {
            **preset,
            **(COMMON if row.preset == "asgd" else {"evaluations": COMMON["evaluations"]}),
            "max_epochs": self.epochs,
            "warmup": warmup,
            **row.keys,
            "world": "simulated",
            "workers": row.workers,
            "learning_rate": rate,
            "simulation": {**(LFMMI_CLOCK if row.preset == "lfmmi" else CLOCK), "strategy": row.strategy},
            "asgd": asgd,
        }
        model = row.model
        if isinstance(model, str):
            model = load_preset(ModelConfig, "models", model).model_dump()
            if model["family"] == "cnn":
                model["channels"] = 1  # no derivatives
        values = {**self.where, "model": model, "seed": seed}
        return TrainConfig.model_validate({**values, "training": training})

    def best_rate(self, row: Row, seed: int, target: float | None = None) -> float:
        """The rate that first reaches the accuracy `target`, or else ends at the highest accuracy."""

        def merit(curve: Curve) -> tuple[float, float]:
            seconds = time_to(curve, target) if target else None
            return -seconds if seconds is not None else -float("inf"), curve.accuracy[-1]

        found = {rate: curve for rate in row.rates if (curve := self.run(row, rate, seed))}
        return max(found, key=lambda rate: merit(found[rate]))


def subset(frames: Path, out: Path, every: int, heldout: int) -> Path:
    """The packed frames of every N-th utterance, without derivatives."""
    for name, step in (("train", every), ("heldout", heldout)):
        if (out / f"{name}.frames").exists():
            continue
        packed = open_packed(frames / f"{name}.frames")
        at = {u: slice(*packed.offsets_U1[i : i + 2]) for i, u in enumerate(packed.utterances)}
        kept = packed.utterances[::step]
        out.mkdir(parents=True, exist_ok=True)
        write_frames(
            out / f"{name}.frames",
            {u: packed.frames_NF[at[u], :BINS] for u in kept},
            {u: packed.senones_N[at[u]] for u in kept},
            packed.num_senones,
            utterances=kept,
            info=packed.info,
        )
        if packed.dim == BINS:
            shutil.copy(frames / "features.yaml", out)
    return out


CODECS: dict[str, dict[str, Any]] = {"float32": {}, "ternary": {"codec": {"kind": "ternary", "float_below": 8192}}}


def ternary_table(study: Study, seeds: Sequence[int], workers: Sequence[int]) -> None:
    """Last held-out accuracies; the rate is the best of float32 with four workers."""
    print(
        "| optimizer, rate | workers | float32, % | ternary, % | ternary / float32 |\n|---|---|---|---|---|", flush=True
    )
    for n, optimizer, strategy in product(workers, OPTIMIZERS, ("synchronous", "asgd")):
        rate, means, cells = study.best_rate(ternary_row(optimizer, strategy, 4, "float32"), seeds[0]), [], []
        for codec in CODECS:
            curves = [study.run(ternary_row(optimizer, strategy, n, codec), rate, seed) for seed in seeds]
            last = [100 * curve.accuracy[-1] if curve else 0.0 for curve in curves]
            means, cells = [*means, statistics.mean(last)], [*cells, spread(last)]
        kind = f"{n} {'asynchronous' if strategy == 'asgd' else strategy}"
        print(f"| {optimizer}, {rate:g} | {kind} | {' | '.join(cells)} | {means[1] / means[0]:.4f} |", flush=True)


def ternary_row(optimizer: str, strategy: str, n: int, codec: str) -> Row:
    keys, rates = OPTIMIZERS[optimizer]
    return Row(f"{optimizer}_{strategy}{n}_{codec}", n, rates[strategy], {**keys, **CODECS[codec]}, strategy)


def spread(values: Sequence[float]) -> str:
    """The mean, and each value."""
    return f"{statistics.mean(values):.2f} ({' '.join(f'{value:.2f}' for value in values)})"


def efficiency_table(study: Study, seeds: Sequence[int], alone: Row, rows: Sequence[Row]) -> None:
    """Medians and ranges of efficiencies at shares of the best accuracy of one worker, itself a median over seeds."""
    rate = study.best_rate(alone, seeds[0])
    base = [curve for seed in seeds if (curve := study.run(alone, rate, seed))]
    best = statistics.median(curve.best for curve in base)
    alone_s = {share: statistics.median(time_to(c, share * best) or math.inf for c in base) for share in SHARES}
    print(f"| | rate | {' | '.join(f'at {100 * share * best:.1f} %' for share in SHARES)} | last accuracy, % |")
    print("|---|---|---|---|---|", flush=True)
    for row in (alone, *rows):
        rate = study.best_rate(row, seeds[0], SHARES[-1] * best if row.workers > 1 else None)
        curves = [curve for seed in seeds if (curve := study.run(row, rate, seed))]
        cells = []
        for share in SHARES:
            times = [time_to(curve, share * best) or math.inf for curve in curves]
            gains = [100 * alone_s[share] / (row.workers * seconds) for seconds in times]
            cells.append(f"{statistics.median(gains):.1f} [{min(gains):.1f}, {max(gains):.1f}]")
        last = spread([100 * curve.accuracy[-1] for curve in curves])
        print(f"| {row.name} | {rate:.2g} | {' | '.join(cells)} | {last} |", flush=True)


def around(rate: float, steps: int) -> tuple[float, ...]:
    """Rates in steps of the square root of two, `steps` on either side."""
    return tuple(rate * STEP**k for k in range(-steps, steps + 1))


OPTIMIZERS: dict[str, tuple[dict[str, Any], dict[str, tuple[float, ...]]]] = {
    "momentum": ({"momentum": 0.9}, {"synchronous": (0.1, 0.2, 0.4), "asgd": (0.02, 0.05, 0.1)}),
    "adamw": ({"optimizer": "adamw"}, {"synchronous": (0.002, 0.004, 0.008), "asgd": (0.001, 0.002, 0.004)}),
    "muon": ({"optimizer": "muon"}, {"synchronous": (0.004, 0.008, 0.016), "asgd": (0.002, 0.004, 0.008)}),
}


# Learning rate, network, preset of training and its keys.
NETWORKS: dict[str, tuple[float, str, str, dict[str, Any]]] = {
    "cnn": (0.8, "cnn_small", "asgd", {}),
    "lstm": (3.0, "lstm_small", "asgd", {"minibatch": 640}),
    "lfmmi": (0.004, "cnn_tdnn_300k", "lfmmi", {}),
}


def optimizer_rows(optimizer: str, rate: float) -> tuple[Row, list[Row]]:
    keys = {"optimizer": optimizer}
    alone = Row(f"{optimizer}1", 1, around(rate, 1), keys, "synchronous")
    return alone, [Row(f"{optimizer}5", 5, around(rate, 2), keys)]


def network_rows(network: str) -> tuple[Row, list[Row]]:
    """A network with one and with five workers."""
    rate, model, preset, keys = NETWORKS[network]
    alone = Row(f"{network}1", 1, around(rate, 1), keys, "synchronous", model, preset)
    return alone, [Row(f"{network}5", 5, around(rate, 1), keys, "asgd", model, preset)]


def curve_rows(optimizer: str, rate: float) -> tuple[Row, list[Row]]:
    """One worker, then 2 to 16; the more there are, the lower the rates that are tried."""
    keys = {"optimizer": optimizer}
    more = [Row(f"{optimizer}{n}", n, around(rate / (1 if n < 8 else 2), 1), keys) for n in (2, 4, 8, 16)]
    return Row(f"{optimizer}1", 1, around(rate, 1), keys, "synchronous"), more


def momentum_rows(rate: float) -> tuple[Row, list[Row]]:
    server = {"momentum": 0.5, "push_scale": 0.5}
    return Row("sgd1", 1, around(rate, 1), {}, "synchronous"), [
        Row("sgd5", 5, around(rate, 1)),
        Row("sgd5_momentum", 5, around(rate, 1), {"asgd": server}),
        Row("sgd5_projection", 5, around(rate, 1), {"asgd": {**server, "projection": True}}),
    ]


def recipe_rows() -> tuple[Row, list[Row]]:
    keys, rates = {"momentum": 0.9}, (0.05, 0.1)
    two = {**keys, "warmup": 0.0, "gradient_clip": None, "asgd": AsgdConfig().model_dump()}
    return Row("recipe1", 1, rates, {**keys, "gradient_clip": None}, "synchronous"), [Row("recipe2", 2, rates, two)]


EFFICIENCY: dict[str, Callable[[], tuple[Row, list[Row]]]] = {
    "adamw": partial(optimizer_rows, "adamw", 0.004),
    "muon": partial(optimizer_rows, "muon", 0.008),
    "momentum": partial(momentum_rows, 0.57),
    **{network: partial(network_rows, network) for network in NETWORKS},
    "curve_sgd": partial(curve_rows, "sgd", 0.57),
    "curve_muon": partial(curve_rows, "muon", 0.008),
    "recipe": recipe_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["ternary", *EFFICIENCY])
    parser.add_argument("frames", type=Path)
    parser.add_argument("hmm", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--heldout", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--workers", default="2,4,8", help="of table ternary")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    frames = subset(given.frames, given.out / "frames" / given.frames.name, given.every, given.heldout)
    study = Study(frames, given.hmm, given.out, given.epochs)
    if given.table == "ternary":
        ternary_table(study, seeds, [int(n) for n in given.workers.split(",")])
    else:
        efficiency_table(study, seeds, *EFFICIENCY[given.table]())


if __name__ == "__main__":
    main()
