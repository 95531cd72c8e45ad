"""What a world cannot have: workers without a core or a GPU, codecs where nothing is sent, an epoch that is too small.

Messages name keys of a config's `training`.
"""

import importlib.util

import torch

from speech3.config import SimulationConfig, TrainingConfig
from speech3.engine.opening import asynchronous
from speech3.errors import Speech3Error
from speech3.io.parallel import available_jobs

_CODECS = ("none", "bf16", "ternary", "topk")
_SHARED_SCALE = ("none", "ternary")  # the codecs of gradients whose mean is sent back


def check_workers(training: TrainingConfig) -> None:
    """Refuse more workers than there are cores or GPUs, and fewer than the world needs.

    Raises
    ------
    Speech3Error
        Names the keys and what this machine has.
    """
    world, workers = training.world, training.workers
    if world == "sgd" and workers > 1:
        raise Speech3Error(
            f"training.workers={workers}: world sgd has one; choose shared, ddp or simulated (--world), or --workers 1"
        )
    _check_partitions(training)
    _check_precision(training)
    if world == "cluster":
        _check_cluster(training)
    here = world in ("shared", "ddp", "sandblaster") or (world == "cluster" and training.cluster.address is None)
    on_cores = here and not training.device.startswith("cuda")
    if on_cores and workers > available_jobs():
        raise Speech3Error(
            f"training.workers={workers}: this machine has {available_jobs()} cores for us; use fewer workers, or "
            f"study more of them with --world simulated"
        )
    if world == "ddp" and training.device.startswith("cuda") and workers > torch.cuda.device_count():
        raise Speech3Error(
            f"training.workers={workers}: ddp needs a GPU for each, here are {torch.cuda.device_count()}"
        )
    if world == "ddp" and training.device.startswith("cuda:") and workers > 1:
        raise Speech3Error(
            f"training.device={training.device}: that is one GPU, and ddp needs one for each of "
            f"training.workers={workers}; use cuda, or one worker"
        )
    if world == "simulated":
        _check_simulation(training.simulation, workers)
    codecs = {"ddp": _SHARED_SCALE, "shared": _CODECS, "cluster": _CODECS, "simulated": _CODECS}.get(world, ("none",))
    if world == "simulated" and workers > 1:  # one worker, which has nobody to send to, is in every simulation
        codecs = {"asgd": _CODECS, "synchronous": _SHARED_SCALE}.get(training.simulation.method, ("none",))
    if training.codec.down != "float32" and codecs != _CODECS:
        raise Speech3Error(
            f"training.codec.down={training.codec.down}: only shards fetch, in world shared, in cluster, and in "
            f"simulated where training.simulation.method is asgd; take it away"
        )
    if training.codec.kind not in codecs:
        raise Speech3Error(
            f"training.codec={training.codec.kind}: here is only {' and '.join(codecs)}; there are others in "
            f"world shared, in cluster, in simulated asgd (training.simulation.method), and in both kinds of "
            f"synchronous training: ddp and simulated (ternary)"
        )
    if _lbfgs(training) and training.gradient_clip is not None:
        raise Speech3Error(
            f"training.gradient_clip={training.gradient_clip:g}: a gradient that was cut down is not that of the loss, "
            f"and the line search of sandblaster needs it; take it away"
        )


def _check_partitions(training: TrainingConfig) -> None:
    """Refuse groups of processes where there are none, or more of them than there are cores or GPUs."""
    partitions, gpus, jobs = training.model_partitions, torch.cuda.device_count(), available_jobs()
    on_gpus, processes = training.device.startswith("cuda"), training.workers * training.model_partitions
    if partitions > 1 and training.world != "shared":
        raise Speech3Error(
            f"training.model_partitions={partitions}: only the workers of world shared are groups of processes, not "
            f"those of {training.world}; set training.world=shared (one worker will do), or take it away"
        )
    if partitions > 1 and not on_gpus and processes > jobs:
        raise Speech3Error(
            f"training.model_partitions={partitions} with training.workers={training.workers}: these are {processes} "
            f"processes, and this machine has {jobs} cores for us; lower one of the two"
        )
    if on_gpus and partitions > max(1, gpus):
        raise Speech3Error(
            f"training.model_partitions={partitions}: each needs a GPU of its own, and here are {gpus}; use as many"
        )


def _check_precision(training: TrainingConfig) -> None:
    """Refuse what would change nothing, and what some worlds cannot take."""
    key = f"training.precision={training.precision}"
    if training.precision == "tf32" and not training.device.startswith("cuda"):
        raise Speech3Error(f"{key}: is of GPUs; on {training.device} use float32 or bf16")
    if training.cuda_graph and not training.device.startswith("cuda"):
        raise Speech3Error(f"training.cuda_graph=true: is of GPUs; on {training.device} take it away")
    if training.cuda_graph and (training.world not in ("sgd", "shared", "cluster") or training.model_partitions > 1):
        raise Speech3Error(
            "training.cuda_graph=true: is for worlds sgd, shared and cluster without training.model_partitions, where "
            "each worker computes its minibatches alone; take it away"
        )
    if training.precision == "bf16" and _lbfgs(training):
        raise Speech3Error(
            f"{key}: the line search of sandblaster compares losses that differ by less than bf16 rounds; use float32"
        )
    if training.precision == "bf16" and training.model_partitions > 1:
        raise Speech3Error(
            f"{key} with training.model_partitions={training.model_partitions}: what members of a replica exchange is "
            f"float32; use float32, or one partition"
        )


def _lbfgs(training: TrainingConfig) -> bool:
    simulated = training.world == "simulated" and training.simulation.method == "sandblaster"
    return training.world == "sandblaster" or simulated


def _check_cluster(training: TrainingConfig) -> None:
    if importlib.util.find_spec("ray") is None:
        raise Speech3Error("training.world=cluster: needs Ray, which is not installed; `pip install speech3[cluster]`")
    if training.device not in ("cpu", "cuda"):
        raise Speech3Error(
            f"training.device={training.device}: in world cluster it is Ray that gives each shard its GPU; use cuda"
        )


def check_epoch(training: TrainingConfig, minibatches: int, warm_start: float) -> None:
    """Refuse what an epoch is too small for, and asynchronous training that would never be: a warm start too long.

    Parameters
    ----------
    minibatches
        In an epoch.
    warm_start
        In epochs, as it will be: none where training begins with a trained model.

    Raises
    ------
    Speech3Error
        Names the keys.
    """
    asgd, lbfgs = training.asgd, training.lbfgs
    if _lbfgs(training) and lbfgs.batches * lbfgs.iterations > minibatches:
        raise Speech3Error(
            f"training.lbfgs: batches={lbfgs.batches} with iterations={lbfgs.iterations} each, but an epoch has only "
            f"{minibatches} minibatches (training.minibatch={training.minibatch}), and every iteration stands for "
            f"some; lower them, or training.minibatch"
        )
    if not asynchronous(training):
        return
    if warm_start >= training.max_epochs:
        raise Speech3Error(
            f"training.asgd.warm_start={warm_start:g}: that is all of training.max_epochs={training.max_epochs}, and "
            f"nothing is left for world {training.world}; shorten it (0.25, say), or train longer"
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
            f"all, or one each"
        )
    if given.method == "synchronous" and given.failures:
        raise Speech3Error(
            "training.simulation.failures: a worker that dies ends training where all step together; take it away, or "
            "training.simulation.method=synchronous"
        )
    for worker, _ in given.failures:
        if not 0 <= worker < workers:
            raise Speech3Error(f"training.simulation.failures: no worker {worker} of {workers}; they count from 0")
