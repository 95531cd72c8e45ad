"""The tables of the SPEECH3 talk and DistBelief's figure from the simulator: methods, and some numbers of workers.

Every row gets the learning rate that suits it best, the baseline too: what a number of workers is worth is otherwise a
statement about the learning rate. Each run is a run directory like any other, so a killed simulation goes on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

import torch

from speech3.config import CodecConfig, SimulationConfig, TrainConfig, load_config, training_overrides
from speech3.engine.checks import check_epoch, check_workers
from speech3.engine.codecs.levels import check_levels
from speech3.engine.device import device_of
from speech3.engine.opening import own_method
from speech3.errors import Speech3Error
from speech3.frames.packed import open_packed
from speech3.io.parallel import parallel_map
from speech3.io.progress import say
from speech3.models.linear import product
from speech3.training.curves import SHARES, Curve, read_curve, time_to
from speech3.training.init import read_init
from speech3.training.parts import BuildParts, minibatches
from speech3.training.run import train
from speech3.training.rundir import AnotherRun
from speech3.training.worlds import simulation_of


@dataclass(frozen=True)
class Method:
    """A way to train, in the simulated world; `alone`: plain SGD, which has one worker."""

    name: str
    config: TrainConfig
    alone: bool = False


@dataclass(frozen=True)
class Variant:
    """A row of the table: a method, and so many workers."""

    method: Method
    workers: int

    @property
    def name(self) -> str:
        """As the table has it."""
        return self.method.name if self.method.alone else f"{self.method.name}{self.workers}"


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


def own_methods(config: TrainConfig, *, synchronous: bool = True) -> list[Method]:
    """The config's own training: plain SGD, workers that are asynchronous (or sandblaster's, where it is theirs) and,
    where its codec lets them, synchronous ones.
    """
    sandblaster, codec = own_method(config.training) == "sandblaster", config.training.codec
    several = [
        Method("sandblaster", _by(config, "sandblaster")) if sandblaster else Method("async", _by(config, "asgd"))
    ]
    if synchronous and _averaged(codec):
        several.append(Method("sync", _by(config, "synchronous")))
    elif synchronous:
        say(f"no row of synchronous workers: training.codec is {codec.kind}, with down={codec.down}, and theirs is "
            f"none or ternary, with down=float32")  # fmt: skip
    return [Method("sgd", _by(config, "synchronous"), alone=True), *several]


def _averaged(codec: CodecConfig) -> bool:
    """Can synchronous workers send their gradients so, and get the mean?"""
    return codec.kind in ("none", "ternary") and codec.down == "float32"


def refuse_split(config: TrainConfig) -> None:
    """Refuse a model that is split over processes, before anything is built of it.

    Raises
    ------
    Speech3Error
        It is.
    """
    partitions = config.training.model_partitions
    if partitions > 1:
        raise Speech3Error(
            f"training.model_partitions={partitions}: a model that is split over processes is not simulated; simulate "
            f"the whole one with training.model_partitions=1"
        )


def preset_methods(path: Path, overrides: Sequence[str], names: Sequence[str]) -> list[Method]:
    """Presets of ``conf/training``, or YAML files, each laid over the config at `path`, and `overrides` over that.

    The baseline comes first: the first preset that is plain SGD; the config itself where none is.

    Raises
    ------
    Speech3Error
        No such preset, two of one name, or as of `load_config`.
    """
    names = list(dict.fromkeys(names))
    for stem, same in groupby(sorted(names, key=_stem), key=_stem):
        if len(alike := list(same)) > 1:
            raise Speech3Error(f"--methods {','.join(alike)}: the rows of both would be called {stem}; rename a file")
    whole = [change for change in overrides if change.startswith("training=")]  # presets are laid over that, too
    rest = [change for change in overrides if change not in whole]
    methods = []
    for name in names:
        config = load_config(TrainConfig, path, [*whole, *training_overrides(name), *rest])
        alone = config.training.world == "sgd"
        kind = "synchronous" if alone else own_method(config.training)
        methods.append(Method(_stem(name), _by(config, kind), alone=alone))
    methods.sort(key=lambda method: not method.alone)
    if not methods or not methods[0].alone:
        methods.insert(0, own_methods(load_config(TrainConfig, path, list(overrides)), synchronous=False)[0])
    return methods


def _stem(name: str) -> str:
    return Path(name).stem


def simulate(
    methods: Sequence[Method], workers: Sequence[int], out: Path, *, rates: Sequence[float] = (),
    seeds: Sequence[int] = (), jobs: int = 1,
) -> tuple[list[Outcome], list[str]]:  # fmt: skip
    """Simulate every row of the table: plain SGD by one worker, all else by more.

    Parameters
    ----------
    methods
        The first is the baseline.
    workers
        Their numbers; 1 is always there.
    rates
        Learning rates to try for each row; none: the config's. A row keeps the one with which it first reaches 0.98 of
        the best accuracy of one worker; if it does so with none, the one that ends best.
    seeds
        Of the rows of one and of the most workers; the others take the first. None: the config's.

    Returns
    -------
    outcomes, failed
        The rows, the baseline first; names of those whose training failed at every rate.

    Raises
    ------
    Speech3Error
        A number of workers below 1, a rate or seed that is none; the baseline failed; what `train` raises, but for a
        learning rate that is too high. What a row's config cannot have is told before the first is trained.
    """
    if not workers or min(workers) < 1:
        raise Speech3Error(f"--workers {','.join(map(str, workers))}: at least one worker each, as in 1,2,5")
    if wrong := [rate for rate in rates if not 0 < rate < math.inf]:
        raise Speech3Error(f"--rates {','.join(f'{rate:g}' for rate in wrong)}: a learning rate is above 0")
    if wrong := [seed for seed in seeds if seed < 0]:
        raise Speech3Error(f"--seeds {','.join(map(str, wrong))}: a seed is 0 or more")
    numbers = sorted({1, *workers})
    _check(_variants(methods, numbers))  # before anything is measured, or the first of them is trained
    variants = _variants(_with_times(methods, out), numbers)
    seeds = list(seeds) or [methods[0].config.seed]
    tried = {v: list(rates) or [v.method.config.training.learning_rate] for v in variants}
    curves = _run(out, [Trial(v, rate, seeds[0]) for v in variants for rate in tried[v]], jobs)
    found = {v: {t.learning_rate: c for t, c in curves.items() if t.variant == v} for v in variants}
    failed = [variant for variant, kept in found.items() if not kept]
    if variants[0] in failed:
        raise Speech3Error(f"{variants[0].name}: training failed at every learning rate tried; try smaller ones")
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


def _variants(methods: Sequence[Method], numbers: Sequence[int]) -> list[Variant]:
    return [Variant(method, n) for method in methods for n in ([1] if method.alone else numbers[1:])]


def _check(variants: Sequence[Variant]) -> None:
    """Refuse what `train` would refuse in one of them, and two of one name."""
    base = variants[0].method.config
    if isinstance(base.training.simulation.compute_s, tuple):
        raise Speech3Error("training.simulation.compute_s: give one time for all workers here, their number varies")
    device_of(base.training.device)
    frames = open_packed(Path(base.data) / "train.frames")
    init = read_init(base, frames)
    for name, same in groupby(sorted(variants, key=_name), key=_name):
        if len(alike := [f"{each.method.name} with {each.workers} workers" for each in same]) > 1:
            raise Speech3Error(f"--methods: {' and '.join(alike)} would both be called {name}; rename one of the files")
    for variant in variants:
        config = _config(Trial(variant, 1.0, 1))
        training = config.training
        try:
            refuse_split(config)
            check_workers(training)
            if training.codec.kind == "ternary" and training.simulation.method == "synchronous":
                check_levels(variant.workers)
            epoch = len(minibatches(config, frames, torch.device("cpu")))
            check_epoch(training, epoch, 0.0 if init and init.same_senones else training.asgd.warm_start)
        except Speech3Error as error:
            raise Speech3Error(f"{variant.name}: {error}") from error


def _name(variant: Variant) -> str:
    return variant.name


def _run(out: Path, trials: Sequence[Trial], jobs: int) -> dict[Trial, Curve]:
    """The curves of those trials that did not fail."""
    results = parallel_map(partial(_train, out), trials, jobs, f"{out}: runs", show=False, start_at_once=True)
    return {trial: read_curve(out / trial.name) for trial, failure in zip(trials, results, strict=True) if not failure}


def _train(out: Path, trial: Trial) -> str:
    """Run a trial; returns why it failed, for a learning rate may be too high."""
    say(f"{trial.name} begins")
    try:
        train(_config(trial), out / trial.name)
    except AnotherRun as error:  # there is no `simulate --restart`
        raise Speech3Error(
            f"{error.fault}; give another --out, or remove {out / trial.name} (or all of {out}, where times that were "
            f"measured for that config may be, too)"
        ) from error
    except Speech3Error as error:
        if "learning rate" not in str(error):
            raise
        say(f"{trial.name}: failed: {error}")
        return str(error)
    return ""


def _config(trial: Trial) -> TrainConfig:
    config, variant = trial.variant.method.config, trial.variant
    training, simulation = config.training, config.training.simulation
    failures = [] if simulation.method == "synchronous" else [f for f in simulation.failures if f[0] < variant.workers]
    alone = {"warmup": 0.0} if variant.workers == 1 else {}  # which it does not need, and would lose time by
    training = training.model_copy(update={
        "workers": variant.workers, "learning_rate": trial.learning_rate,
        "simulation": simulation.model_copy(update={"failures": tuple(failures)}), **alone,
    })  # fmt: skip
    return config.model_copy(update={"training": training, "seed": trial.seed})


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


def _by(config: TrainConfig, method: str) -> TrainConfig:
    simulation = config.training.simulation.model_copy(update={"method": method})
    training = config.training.model_copy(update={"world": "simulated", "simulation": simulation})
    return config.model_copy(update={"training": training})


def _with_times(methods: Sequence[Method], out: Path) -> list[Method]:
    """The times of all runs, measured where they are not given.

    A minibatch is measured once, for the baseline: one of another size takes as much longer. A sync is measured anew
    where something else is sent.
    """
    first = methods[0].config.training
    alike = _measured(methods[0].config, out / "simulation.json")
    compute_s = alike.compute_s
    assert compute_s is not None and not isinstance(compute_s, tuple)
    timed = []
    for method in methods:
        training, path = method.config.training, out / f"simulation_{method.name}.json"
        clock = alike if training.codec == first.codec else _measured(method.config, path)
        simulation = training.simulation.model_copy(
            update={"compute_s": compute_s * training.minibatch / first.minibatch, "sync_s": clock.sync_s}
        )
        training = training.model_copy(update={"simulation": simulation})
        timed.append(replace(method, config=method.config.model_copy(update={"training": training})))
    return timed


def _measured(config: TrainConfig, path: Path) -> SimulationConfig:
    return simulation_of(config, path, lambda: BuildParts(config, product())(config.training.device))
