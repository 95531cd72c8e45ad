"""Checks of a training config before anything is started: workers, devices, codecs, precision, epoch and simulation.

Messages name keys of the config's `training`.
"""

import importlib.util

import torch

from speech3.config import CodecConfig, SimulationConfig, TrainingConfig
from speech3.engine.opening import asynchronous
from speech3.errors import Speech3Error
from speech3.runtime import available_jobs

_CODECS = ("none", "bf16", "ternary", "topk")
_SHARED_SCALE = ("none", "ternary")  # codecs of synchronous training, which sends back the mean of the gradients


def check_workers(training: TrainingConfig) -> None:
    """Refuse more workers than cores (in world ddp, than GPUs), and settings that the world does not support.

    Raises
    ------
    Speech3Error
        The message names the keys and what this machine has.
    """
    world, workers = training.world, training.workers
    if world == "sgd" and workers > 1:
        raise Speech3Error(
            f"training.workers={workers}: world sgd has one; choose shared, ddp or simulated (--world), or set "
            f"--workers 1"
        )
    _check_partitions(training)
    _check_precision(training)
    if world == "cluster":
        _check_cluster(training)
    here = world in ("shared", "ddp", "sandblaster") or (world == "cluster" and training.cluster.address is None)
    on_cores = here and not training.device.startswith("cuda")
    if on_cores and workers > available_jobs():
        raise Speech3Error(
            f"training.workers={workers}: this machine has {available_jobs()} cores for training; use fewer workers, "
            f"or simulate more of them with --world simulated"
        )
    if world == "ddp" and training.device.startswith("cuda") and workers > torch.cuda.device_count():
        raise Speech3Error(
            f"training.workers={workers}: ddp needs a GPU for each; this machine has {torch.cuda.device_count()}, so "
            f"use no more workers than that"
        )
    if world == "ddp" and training.device.startswith("cuda:") and workers > 1:
        raise Speech3Error(
            f"training.device={training.device}: that is one GPU, and ddp needs one for each of "
            f"training.workers={workers}; use cuda, or one worker"
        )
    if world == "simulated":
        _check_simulation(training.simulation, workers)
    codecs = {"ddp": _SHARED_SCALE, "shared": _CODECS, "cluster": _CODECS, "simulated": _CODECS}.get(world, ("none",))
    if world == "simulated" and workers > 1:  # a single worker sends nothing
        codecs = {"asgd": _CODECS, "synchronous": _SHARED_SCALE}.get(training.simulation.method, ("none",))
    if training.codec.down != "float32" and codecs != _CODECS:
        raise Speech3Error(
            f"training.codec.down={training.codec.down}: only shards fetch parameters, that is, workers of the worlds "
            f"shared, cluster, and simulated with training.simulation.method=asgd; remove it"
        )
    if training.codec.kind not in codecs:
        raise Speech3Error(
            f"training.codec={training.codec.kind}: this world supports only {' and '.join(codecs)}; all codecs work "
            f"in world shared, in cluster, and in simulated with training.simulation.method=asgd; ternary also works "
            f"in ddp, and in simulated with training.simulation.method=synchronous"
        )
    _check_codec(training.codec)
    if asynchronous(training) and 0 < training.asgd.momentum != training.momentum > 0:
        raise Speech3Error(
            f"training.momentum={training.momentum:g} and training.asgd.momentum={training.asgd.momentum:g}: "
            f"asynchronous workers have one momentum, that of the server; remove one of them"
        )
    if training.by_sandblaster and (training.optimizer != "sgd" or training.momentum):
        raise Speech3Error(
            "training.optimizer and training.momentum: sandblaster is L-BFGS, whose workers take no steps of their "
            "own; remove them"
        )
    if training.by_sandblaster and training.gradient_clip is not None:
        raise Speech3Error(
            f"training.gradient_clip={training.gradient_clip:g}: the line search of sandblaster needs the true "
            f"gradient of the loss, not a clipped one; remove it"
        )


def _check_codec(codec: CodecConfig) -> None:
    """Refuse keys of a codec that is not used."""
    used = {"kind", "down", *(["share"] if codec.kind == "topk" else [])}
    if "ternary" in (codec.kind, codec.down):
        used |= {"clip", "bucket", "float_below", "float_last"}
    for name, key in CodecConfig.model_fields.items():
        if name not in used and (value := getattr(codec, name)) != key.default:
            owner = "topk" if name == "share" else "ternary"
            raise Speech3Error(
                f"training.codec.{name}={value:g}: has no effect with training.codec.kind={codec.kind}; remove it, or "
                f"set training.codec.kind={owner}"
            )


def _check_partitions(training: TrainingConfig) -> None:
    """Refuse model partitions in worlds without replicas, more processes than cores, more partitions than GPUs."""
    partitions, gpus, jobs = training.model_partitions, torch.cuda.device_count(), available_jobs()
    on_gpus, processes = training.device.startswith("cuda"), training.workers * training.model_partitions
    if partitions > 1 and training.world != "shared":
        raise Speech3Error(
            f"training.model_partitions={partitions}: only the workers of world shared can be groups of processes, "
            f"not those of {training.world}; set training.world=shared (one worker is enough), or remove it"
        )
    if partitions > 1 and not on_gpus and processes > jobs:
        raise Speech3Error(
            f"training.model_partitions={partitions} with training.workers={training.workers}: these are {processes} "
            f"processes, and this machine has {jobs} cores for training; lower one of the two"
        )
    if on_gpus and partitions > max(1, gpus):
        raise Speech3Error(
            f"training.model_partitions={partitions}: each partition needs its own GPU, and this machine has "
            f"{gpus}; use no more partitions than GPUs"
        )


def _check_precision(training: TrainingConfig) -> None:
    """Refuse precisions and CUDA graphs where they would have no effect, and in worlds that do not support them."""
    key = f"training.precision={training.precision}"
    if training.precision == "tf32" and not training.device.startswith("cuda"):
        raise Speech3Error(f"{key}: needs a GPU; on {training.device} use float32 or bf16")
    if training.cuda_graph and not training.device.startswith("cuda"):
        raise Speech3Error(f"training.cuda_graph=true: needs a GPU; on {training.device} set it to false")
    if training.cuda_graph and (training.world not in ("sgd", "shared", "cluster") or training.model_partitions > 1):
        raise Speech3Error(
            "training.cuda_graph=true: works only in worlds sgd, shared and cluster without training.model_partitions, "
            "where each worker computes its minibatches alone; set it to false"
        )
    if training.precision == "bf16" and training.by_sandblaster:
        raise Speech3Error(
            f"{key}: the line search of sandblaster compares losses that differ by less than the rounding error of "
            f"bf16; use float32"
        )
    if training.precision == "bf16" and training.model_partitions > 1:
        raise Speech3Error(
            f"{key} with training.model_partitions={training.model_partitions}: the members of a replica exchange "
            f"float32; use training.precision=float32, or one partition"
        )


def _check_cluster(training: TrainingConfig) -> None:
    if importlib.util.find_spec("ray") is None:
        raise Speech3Error("training.world=cluster: needs Ray, which is not installed; `pip install speech3[cluster]`")
    if training.device not in ("cpu", "cuda"):
        raise Speech3Error(
            f"training.device={training.device}: in world cluster, Ray assigns each shard its GPU; use cuda"
        )


def check_epoch(training: TrainingConfig, minibatches: int, warm_start: float) -> None:
    """Refuse settings for which an epoch is too small, and a warm start that leaves no asynchronous training.

    Parameters
    ----------
    minibatches
        Number of minibatches in an epoch.
    warm_start
        Length of the warm start in epochs: 0 if training begins with a trained model.

    Raises
    ------
    Speech3Error
        The message names the keys.
    """
    asgd, lbfgs = training.asgd, training.lbfgs
    if training.by_sandblaster and lbfgs.batches * lbfgs.iterations > minibatches:
        raise Speech3Error(
            f"training.lbfgs: batches={lbfgs.batches} with iterations={lbfgs.iterations} each, but an epoch has only "
            f"{minibatches} minibatches (training.minibatch={training.minibatch}), and every iteration needs at least "
            f"one; lower them, or training.minibatch"
        )
    if not asynchronous(training):
        return
    if warm_start >= training.max_epochs:
        raise Speech3Error(
            f"training.asgd.warm_start={warm_start:g}: warm start lasts the whole run "
            f"(training.max_epochs={training.max_epochs}); shorten it (to 0.25, for example), or train longer"
        )
    if asgd.sync_every > minibatches:
        raise Speech3Error(
            f"training.asgd.sync_every={asgd.sync_every}: an epoch has only {minibatches} minibatches "
            f"(training.minibatch={training.minibatch}), so no shard would sync; lower it, or training.minibatch"
        )


def _check_simulation(given: SimulationConfig, workers: int) -> None:
    if isinstance(given.compute_s, tuple) and len(given.compute_s) != workers:
        raise Speech3Error(
            f"training.simulation.compute_s: {len(given.compute_s)} times for training.workers={workers}; give one for "
            f"all workers, or one for each worker"
        )
    if given.method == "synchronous" and given.failures:
        raise Speech3Error(
            "training.simulation.failures: a worker that dies ends synchronous training, where all step together; "
            "remove it, or set training.simulation.method=asgd"
        )
    for worker, _ in given.failures:
        if not 0 <= worker < workers:
            raise Speech3Error(
                f"training.simulation.failures: no worker {worker} of {workers}; workers are numbered from 0"
            )
