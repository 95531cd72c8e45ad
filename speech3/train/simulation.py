"""Simulated training with several strategies and numbers of workers: tables as in the SPEECH3 talk, DistBelief's plot.

Every row, including the baseline, uses its own best learning rate; otherwise a comparison of numbers of workers would
be a comparison of learning rates. Each run has an ordinary run directory, so a killed simulation can be resumed.

`throughput` trains nothing: it predicts the frames per second of 1 to hundreds of workers with float32 and with ternary
gradients from measured times (`speech3.engine.papers.terngrad`).
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import torch

from speech3.config import (
    CodecConfig,
    ModelConfig,
    SimulationConfig,
    TrainConfig,
    load_config,
    load_preset,
    training_overrides,
)
from speech3.engine import (
    Conclusion,
    Costs,
    ThroughputPoint,
    check_epoch,
    check_levels,
    check_workers,
    conclusions,
    device_of,
    measure_costs,
    simulated_strategy,
    throughputs,
)
from speech3.errors import DataError, SettingError, Speech3Error, TrainingError
from speech3.frames import open_packed
from speech3.models import AcousticModel, gemm_library, layers_of
from speech3.runtime import parallel_map, say
from speech3.train.checks import check_objective, with_precision
from speech3.train.curves import SHARES, Curve, read_curve, time_to
from speech3.train.init import read_init
from speech3.train.parts import BuildParts, make_parts, minibatches
from speech3.train.run import simulation_of, train, with_workers
from speech3.train.rundir import AnotherRun

BYTES_PER_GIGABIT = 1e9 / 8


@dataclass(frozen=True)
class Strategy:
    """A training strategy in the simulated world; `alone`: plain SGD with one worker."""

    name: str
    config: TrainConfig
    alone: bool = False


@dataclass(frozen=True)
class Variant:
    """A row of the table: a strategy and a number of workers."""

    strategy: Strategy
    workers: int

    @property
    def name(self) -> str:
        return self.strategy.name if self.strategy.alone else f"{self.strategy.name}{self.workers}"


@dataclass(frozen=True)
class Trial:
    variant: Variant
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.variant.name}_rate{self.learning_rate:g}_seed{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """A row: its learning rate, the mean curve over its seeds, and the last accuracy of each seed."""

    variant: Variant
    learning_rate: float
    curve: Curve
    last: tuple[float, ...]


def own_strategies(config: TrainConfig, *, synchronous: bool = True) -> list[Strategy]:
    """The strategies for a config: plain SGD, asynchronous workers (or sandblaster, if that is its world) and, if its
    codec allows it, synchronous workers.
    """
    sandblaster, codec = simulated_strategy(config.training) == "sandblaster", config.training.codec
    several = [
        Strategy("sandblaster", _by(config, "sandblaster")) if sandblaster else Strategy("async", _by(config, "asgd"))
    ]
    averaged = codec.kind in ("none", "ternary") and codec.down == "float32"  # gradients that can be averaged as sent
    if synchronous and averaged:
        several.append(Strategy("sync", _by(config, "synchronous")))
    elif synchronous:
        say(
            f"no row of synchronous workers: training.codec is {codec.kind} with down={codec.down}, and they need none"
            " or ternary with down=float32"
        )
    return [Strategy("sgd", _by(config, "synchronous"), alone=True), *several]


def refuse_split(config: TrainConfig) -> None:
    """Refuse a model that is split over processes, before any part of it is built."""
    partitions = config.training.model_partitions
    if partitions > 1:
        raise SettingError(
            f"training.model_partitions={partitions}: a model that is split over processes cannot be simulated; "
            f"simulate the whole model with training.model_partitions=1"
        )


def preset_strategies(path: Path, overrides: Sequence[str], names: Sequence[str]) -> list[Strategy]:
    """The strategies of presets of ``conf/training`` or YAML files, applied to the config at `path` before `overrides`.

    The baseline comes first: the first preset that is plain SGD, or the config itself with plain SGD if there is none.
    Two presets must not have the same name.
    """
    names = list(dict.fromkeys(names))
    for stem, same in groupby(sorted(names, key=_stem), key=_stem):
        if len(alike := list(same)) > 1:
            raise SettingError(
                f"--strategies {','.join(alike)}: the rows of both would be called {stem}; rename a file"
            )
    whole = [change for change in overrides if change.startswith("training=")]  # presets take precedence over these
    rest = [change for change in overrides if change not in whole]
    strategies = []
    for name in names:
        config = load_config(TrainConfig, path, [*whole, *training_overrides(name), *rest])
        alone = config.training.world == "sgd"
        kind = "synchronous" if alone else simulated_strategy(config.training)
        strategies.append(Strategy(_stem(name), _by(config, kind), alone=alone))
    strategies.sort(key=lambda strategy: not strategy.alone)
    if not strategies or not strategies[0].alone:
        strategies.insert(0, own_strategies(load_config(TrainConfig, path, list(overrides)), synchronous=False)[0])
    return strategies


def _stem(name: str) -> str:
    return Path(name).stem


def simulate(
    strategies: Sequence[Strategy],
    workers: Sequence[int],
    out: Path,
    *,
    rates: Sequence[float] = (),
    seeds: Sequence[int] = (),
    jobs: int = 1,
) -> tuple[list[Outcome], list[str]]:
    """Simulate every row of the table: plain SGD with one worker, the other strategies with several.

    `strategies`: the first is the baseline.
    `workers`: their numbers; 1 is always included.
    `rates`: learning rates to try for each row; none: that of the config. A row keeps the rate with which it reaches
    0.98 of the best accuracy of one worker first, or, if none does, the rate with the best final accuracy.
    `seeds`: for the rows of one worker and of the most workers; the others use the first; none: that of the config.

    Returns the rows, the baseline first, and the names of the rows whose training failed at every rate.

    Raises Speech3Error: a number of workers below 1, an invalid rate or seed; the baseline failed; or as for `train`,
    before the first row is trained. A learning rate that is too high is no error.
    """
    if not workers or min(workers) < 1:
        raise SettingError(f"--workers {','.join(map(str, workers))}: must be at least 1, as in 1,2,5")
    if wrong := [rate for rate in rates if not 0 < rate < math.inf]:
        raise SettingError(f"--rates {','.join(f'{rate:g}' for rate in wrong)}: learning rates must be above 0")
    if wrong := [seed for seed in seeds if seed < 0]:
        raise SettingError(f"--seeds {','.join(map(str, wrong))}: seeds must be at least 0")
    numbers, rates, seeds = sorted({1, *workers}), list(dict.fromkeys(rates)), list(dict.fromkeys(seeds))
    _check(_variants(strategies, numbers))  # before anything is measured or trained
    strategies = _in_one_precision(strategies, out)
    variants = _variants(_with_times(strategies, out), numbers)
    seeds = seeds or [strategies[0].config.seed]
    tried = {v: rates or [v.strategy.config.training.learning_rate] for v in variants}
    curves = _run(out, [Trial(v, rate, seeds[0]) for v in variants for rate in tried[v]], jobs)
    found = {v: {t.learning_rate: c for t, c in curves.items() if t.variant == v} for v in variants}
    failed = [variant for variant, kept in found.items() if not kept]
    if variants[0] in failed:
        raise TrainingError(f"{variants[0].name}: training failed at every learning rate tried; try smaller rates")
    variants = [variant for variant in variants if variant not in failed]
    target = SHARES[-1] * max(curve.best for curve in found[variants[0]].values())
    chosen = {variant: _best_rate(found[variant], target) for variant in variants}
    repeated = [variant for variant in variants if variant.workers in (1, numbers[-1])]
    more = _run(out, [Trial(v, chosen[v], seed) for v in repeated for seed in seeds[1:]], jobs)
    outcomes = []
    for variant in variants:
        same = [found[variant][chosen[variant]], *(c for t, c in more.items() if t.variant == variant)]
        outcomes.append(Outcome(variant, chosen[variant], _mean(variant, same), tuple(c.accuracy[-1] for c in same)))
    return outcomes, [variant.name for variant in failed]


def _variants(strategies: Sequence[Strategy], numbers: Sequence[int]) -> list[Variant]:
    return [Variant(strategy, n) for strategy in strategies for n in ([1] if strategy.alone else numbers[1:])]


def _check(variants: Sequence[Variant]) -> None:
    """Refuse rows that `train` would refuse, and two rows with the same name."""
    base = variants[0].strategy.config
    if isinstance(base.training.simulation.compute_s, tuple):
        raise SettingError("training.simulation.compute_s: set one time for all workers, as their number varies")
    device_of(base.training.device)
    frames = open_packed(Path(base.frames) / "train.frames")
    init = read_init(base, frames)
    by_name = attrgetter("name")
    for name, same in groupby(sorted(variants, key=by_name), key=by_name):
        if len(alike := [f"{each.strategy.name} with {each.workers} workers" for each in same]) > 1:
            raise SettingError(
                f"--strategies: {' and '.join(alike)} would both be called {name}; rename one of the files"
            )
    for variant in variants:
        config = _config(Trial(variant, 1.0, 1))
        training = config.training
        try:
            refuse_split(config)
            check_workers(training)
            check_objective(config)
            if training.codec.kind == "ternary" and training.simulation.strategy == "synchronous":
                check_levels(variant.workers)
            epoch = len(minibatches(config, frames, torch.device("cpu")))
            check_epoch(training, epoch, 0.0 if init and init.same_senones else training.asgd.warm_start)
        except Speech3Error as error:
            raise error.restated(f"{variant.name}: {error}") from error


def _run(out: Path, trials: Sequence[Trial], jobs: int) -> dict[Trial, Curve]:
    results = parallel_map(partial(_train, out), trials, jobs, f"{out}: runs", show=False, start_at_once=True)
    return {trial: read_curve(out / trial.name) for trial, failure in zip(trials, results, strict=True) if not failure}


def _train(out: Path, trial: Trial) -> str:
    """Run a trial; return the reason if it failed because the learning rate was too high, else nothing."""
    say(f"{trial.name}: starting")
    try:
        train(_config(trial), out / trial.name)
    except AnotherRun as error:  # there is no `simulate --restart`
        raise DataError(
            f"{error.fault}; choose another --out, or remove {out / trial.name} (or all of {out}, which may also hold "
            f"times measured for that config)"
        ) from error
    except Speech3Error as error:
        if "learning rate" not in str(error):
            raise
        say(f"{trial.name}: failed: {error}")
        return str(error)
    return ""


def _config(trial: Trial) -> TrainConfig:
    config, variant = trial.variant.strategy.config, trial.variant
    simulation = config.training.simulation
    failures = (
        [] if simulation.strategy == "synchronous" else [f for f in simulation.failures if f[0] < variant.workers]
    )
    changes: dict[str, object] = {"learning_rate": trial.learning_rate}
    changes["simulation"] = simulation.model_copy(update={"failures": tuple(failures)})
    if variant.workers == 1:  # which does not need warm-up and would lose time by it
        changes["warmup"] = 0.0
    return with_workers(config, variant.workers, **changes).model_copy(update={"seed": trial.seed})


def _best_rate(tried: dict[float, Curve], target: float) -> float:
    def merit(rate: float) -> tuple[float, float]:
        seconds = time_to(tried[rate], target)
        return (-seconds if seconds is not None else -float("inf")), tried[rate].accuracy[-1]

    return max(tried, key=merit)


def _mean(variant: Variant, curves: Sequence[Curve]) -> Curve:
    """The mean of curves, point by point; the runs of a row are evaluated after about the same minibatches."""
    points = min(len(curve.seconds) for curve in curves)

    def mean(name: str) -> list[float]:
        return [sum(getattr(curve, name)[i] for curve in curves) / len(curves) for i in range(points)]

    frames = tuple(round(value) for value in mean("frames"))
    return Curve(variant.name, variant.workers, tuple(mean("seconds")), frames, tuple(mean("accuracy")))


def _by(config: TrainConfig, strategy: str) -> TrainConfig:
    simulation = config.training.simulation.model_copy(update={"strategy": strategy})
    codec = config.training.codec
    if (codec.kind, codec.down) == ("none", "float32"):
        codec = CodecConfig()  # its other keys are for strategies of the same table that send codes
    training = config.training.model_copy(update={"world": "simulated", "simulation": simulation, "codec": codec})
    return config.model_copy(update={"training": training})


def _in_one_precision(strategies: Sequence[Strategy], out: Path) -> list[Strategy]:
    """The strategies with ``training.precision=auto`` replaced: by that of earlier runs in `out`, if any."""
    earlier = next((path.parent for path in sorted(out.glob("*/run.json"))), None)
    return [replace(strategy, config=with_precision(strategy.config, earlier)) for strategy in strategies]


def _with_times(strategies: Sequence[Strategy], out: Path) -> list[Strategy]:
    """The strategies with the times of the virtual clock, measured if the config does not set them.

    The time of a minibatch is measured once, for the baseline, and assumed to be proportional to its size. The time of
    a sync is measured again for each strategy that sends with another codec.
    """
    first = strategies[0].config.training
    baseline = _measured(strategies[0].config, out / "simulation.json")
    compute_s = baseline.compute_s
    assert compute_s is not None and not isinstance(compute_s, tuple)
    timed = []
    for strategy in strategies:
        training, path = strategy.config.training, out / f"simulation_{strategy.name}.json"
        clock = baseline if training.codec == first.codec else _measured(strategy.config, path)
        simulation = training.simulation.model_copy(
            update={"compute_s": compute_s * training.minibatch / first.minibatch, "sync_s": clock.sync_s}
        )
        training = training.model_copy(update={"simulation": simulation})
        timed.append(replace(strategy, config=strategy.config.model_copy(update={"training": training})))
    return timed


def _measured(config: TrainConfig, path: Path) -> SimulationConfig:
    return simulation_of(config, path, lambda: BuildParts(config, gemm_library())(config.training.device))


@dataclass(frozen=True)
class MeasuredNetwork:
    """A network and its measured costs.

    `connected`: share of its parameters that are used once per frame: those of fully connected layers and LSTM cells,
    not those of convolutions.
    """

    name: str
    parameters: int
    connected: float
    costs: Costs


@dataclass(frozen=True)
class Throughput:
    """The prediction of the performance model, and its inputs."""

    device: str
    workers: tuple[int, ...]
    gigabits: tuple[float, ...]
    networks: tuple[MeasuredNetwork, ...]
    points: tuple[ThroughputPoint, ...]
    conclusions: tuple[Conclusion, ...]


def throughput(
    config: TrainConfig, workers: Sequence[int], gigabits: Sequence[float], models: Sequence[str] = ()
) -> Throughput:
    """Measure networks on the config's frames and device, and apply the model of `speech3.engine.papers.terngrad`.

    The keys of the config's codec are used for the ternary code, whatever its kind, and `simulation.latency_s`.
    `gigabits`: bandwidths of each worker's link, in Gbit/s.
    `models`: presets of ``conf/models``; none: the config's model.

    Raises Speech3Error, before the first network is measured: a value that is out of range, a model that is split,
    unknown or does not match the frames, no such device, or missing frames.
    """
    if not workers or min(workers) < 1:
        raise SettingError(f"--throughput {','.join(map(str, workers))}: must be at least 1, as in 1,2,4,512")
    try:
        check_levels(max(workers))
    except Speech3Error as error:
        raise error.restated(f"--throughput: {error}") from error
    if not gigabits or not all(0 < each < math.inf for each in gigabits):
        given = ",".join(f"{each:g}" for each in gigabits)
        raise SettingError(f"--gigabits {given}: must be finite numbers of Gbit/s above 0, as in 1,10")
    refuse_split(config)
    device_of(config.training.device)
    config = with_precision(config, None)
    workers, gigabits = sorted(set(workers)), sorted(set(gigabits))
    codec = config.training.codec.model_copy(update={"kind": "ternary"})
    networks = []
    for name, chosen in _configs(config, models).items():
        say(f"{name}: measuring the time of a minibatch, and of the coding for each number of workers")
        parts = BuildParts(chosen, gemm_library())(config.training.device)
        assert isinstance(parts.model, AcousticModel)
        layers = layers_of(copy.deepcopy(parts.model).cpu())
        total = sum(layer.parameters for layer in layers)
        shared = sum(layer.parameters for layer in layers if layer.kind == "convolution")
        networks.append(MeasuredNetwork(name, total, 1 - shared / total, measure_costs(parts, codec, workers)))
    costs, links = {each.name: each.costs for each in networks}, [each * BYTES_PER_GIGABIT for each in gigabits]
    points = throughputs(costs, workers, links, config.training.simulation.latency_s)
    found = conclusions(points, {each.name: each.connected for each in networks})
    return Throughput(
        config.training.device, tuple(workers), tuple(gigabits), tuple(networks), tuple(points), tuple(found)
    )


def _configs(config: TrainConfig, models: Sequence[str]) -> dict[str, TrainConfig]:
    """The config of each network; builds each once, so that errors are raised before any network is measured."""
    chosen = {name: load_preset(ModelConfig, "models", name) for name in models} or {"model": config.model}
    configs = {name: config.model_copy(update={"model": model}) for name, model in chosen.items()}
    frames = open_packed(Path(config.frames) / "train.frames")
    for name, each in configs.items():
        try:
            make_parts(each, frames, torch.device("cpu"))
        except Speech3Error as error:
            raise error.restated(f"{name}: {error}") from error
    return configs
