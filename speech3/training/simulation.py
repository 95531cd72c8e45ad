"""The tables of the SPEECH3 talk from the simulator: some numbers of workers, asynchronous and synchronous.

Every row gets the learning rate that suits it best, the baseline too: what a number of workers is worth is otherwise a
statement about the learning rate. Each run is a run directory like any other, so a killed simulation goes on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from speech3.config import TrainConfig
from speech3.errors import Speech3Error
from speech3.io.parallel import parallel_map
from speech3.io.progress import say
from speech3.models.linear import product
from speech3.training.curves import SHARES, Curve, read_curve, time_to
from speech3.training.parts import BuildParts
from speech3.training.run import train
from speech3.training.worlds import simulation_of


@dataclass(frozen=True)
class Variant:
    """A row of the table: so many workers, stepping together or not. One worker alone is plain SGD."""

    workers: int
    synchronous: bool

    @property
    def name(self) -> str:
        """As the table has it."""
        return "sgd" if self.workers == 1 else f"{'sync' if self.synchronous else 'async'}{self.workers}"


@dataclass(frozen=True)
class Trial:
    """One run."""

    variant: Variant
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"{self.variant.name}_rate{self.learning_rate:g}_seed{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """A row: its learning rate, the mean curve over its seeds, and each seed's last accuracy."""

    variant: Variant
    learning_rate: float
    curve: Curve
    last: tuple[float, ...]


def simulate(
    config: TrainConfig, workers: Sequence[int], out: Path, *, rates: Sequence[float] = (), seeds: Sequence[int] = (),
    synchronous: bool = True, jobs: int = 1,
) -> list[Outcome]:  # fmt: skip
    """Simulate every row of the table; the first is plain SGD on one worker.

    Parameters
    ----------
    workers
        Their numbers; 1 is always there.
    rates
        Learning rates to try for each row; none: the config's. A row keeps the one with which it first reaches 0.98 of
        the best accuracy of one worker; if it does so with none, the one that ends best.
    seeds
        Of the rows of one and of the most workers; the others take the first. None: the config's.
    synchronous
        Also rows of as many workers that step together.

    Raises
    ------
    Speech3Error
        A number of workers below 1, or what `train` raises for every rate of a row.
    """
    if not workers or min(workers) < 1:
        raise Speech3Error(f"--workers {','.join(map(str, workers))}: at least one worker each, as in 1,2,5")
    if wrong := [rate for rate in rates if not 0 < rate < math.inf]:
        raise Speech3Error(f"--rates {','.join(f'{rate:g}' for rate in wrong)}: a learning rate is above 0")
    numbers = sorted({1, *workers})
    kinds = (False, True) if synchronous else (False,)
    variants = [Variant(1, True), *(Variant(n, kind) for kind in kinds for n in numbers[1:])]
    config = _with_times(config, out)
    seeds, rates = list(seeds) or [config.seed], list(rates) or [config.training.learning_rate]
    curves = _run(config, out, [Trial(v, rate, seeds[0]) for v in variants for rate in rates], jobs)
    found = {v: {t.learning_rate: c for t, c in curves.items() if t.variant == v} for v in variants}
    for variant, tried in found.items():
        if not tried:
            raise Speech3Error(f"{variant.name}: training failed at every learning rate tried; try smaller ones")
    target = SHARES[-1] * max(curve.best for curve in found[variants[0]].values())
    chosen = {variant: _best_rate(found[variant], target) for variant in variants}
    repeated = [variant for variant in variants if variant.workers in (1, numbers[-1])]
    more = _run(config, out, [Trial(v, chosen[v], seed) for v in repeated for seed in seeds[1:]], jobs)
    outcomes = []
    for variant in variants:
        same = [found[variant][chosen[variant]], *(c for t, c in more.items() if t.variant == variant)]
        outcomes.append(Outcome(variant, chosen[variant], _mean(variant, same), tuple(c.accuracy[-1] for c in same)))
    return outcomes


def _run(config: TrainConfig, out: Path, trials: Sequence[Trial], jobs: int) -> dict[Trial, Curve]:
    """The curves of those trials that did not fail."""
    results = parallel_map(partial(_train, config, out), trials, jobs, f"{out}: runs", show=False, start_at_once=True)
    return {trial: read_curve(out / trial.name) for trial, failure in zip(trials, results, strict=True) if not failure}


def _train(config: TrainConfig, out: Path, trial: Trial) -> str:
    """Run a trial; returns why it failed, for a learning rate may be too high."""
    variant, training = trial.variant, config.training
    failures = [] if variant.synchronous else [f for f in training.simulation.failures if f[0] < variant.workers]
    simulation = training.simulation.model_copy(
        update={"synchronous": variant.synchronous, "failures": tuple(failures)}
    )
    alone = {"warmup": 0.0} if variant.workers == 1 else {}  # which it does not need, and would lose time by
    training = training.model_copy(update={
        "world": "simulated", "workers": variant.workers, "learning_rate": trial.learning_rate,
        "simulation": simulation, **alone,
    })  # fmt: skip
    say(f"{trial.name} begins")
    try:
        train(config.model_copy(update={"training": training, "seed": trial.seed}), out / trial.name)
    except Speech3Error as error:
        if "learning rate" not in str(error):
            raise
        say(f"{trial.name}: failed: {error}")
        return str(error)
    return ""


def _best_rate(tried: dict[float, Curve], target: float) -> float:
    def merit(rate: float) -> tuple[float, float]:
        seconds = time_to(tried[rate], target)
        return (-seconds if seconds is not None else -float("inf")), tried[rate].accuracy[-1]

    return max(tried, key=merit)


def _mean(variant: Variant, curves: Sequence[Curve]) -> Curve:
    """Point by point; the runs of a row look at the same minibatches, some moments apart."""
    points = min(len(curve.seconds) for curve in curves)

    def mean(name: str) -> list[float]:
        return [sum(getattr(curve, name)[i] for curve in curves) / len(curves) for i in range(points)]

    frames = tuple(round(value) for value in mean("frames"))
    return Curve(variant.name, variant.workers, tuple(mean("seconds")), frames, tuple(mean("accuracy")))


def _with_times(config: TrainConfig, out: Path) -> TrainConfig:
    """The times of all runs, measured once if they are not given."""
    training = config.training
    if isinstance(training.simulation.compute_s, tuple):
        raise Speech3Error("training.simulation.compute_s: give one time for all workers here, their number varies")
    simulation = simulation_of(
        config, out / "simulation.json", lambda: BuildParts(config, product())(training.device)
    )  # fmt: skip
    return config.model_copy(update={"training": training.model_copy(update={"simulation": simulation})})
