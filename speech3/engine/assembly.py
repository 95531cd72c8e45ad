"""Assembles the server from a config and memory, converts its state to and from checkpoints, and reports progress.

Axes: M minibatches of an epoch, N shards, K values of the model, of which P are parameters, J the most minibatches in a
push plus two, S partitions of the server.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from speech3.config import AsgdConfig
from speech3.engine.flat import Flat, partition_bounds, wait_for_gpus
from speech3.engine.ledger import Ledger
from speech3.engine.pool import Pool
from speech3.engine.rule import Rule, State
from speech3.engine.server import Buffer, Partition
from speech3.engine.server_memory import DOWN, READY, SHARD, UP, ServerMemory, Sizes
from speech3.engine.world import Progress, ShardReport


@dataclass(frozen=True, eq=False)
class Server:
    """One process's view of the whole parameter server; its partitions together hold the parameters."""

    memory: ServerMemory
    pool: Pool
    partitions: tuple[Partition, ...]
    rule: Rule

    @property
    def ledger(self) -> Ledger:
        """What became of each minibatch."""
        return self.memory.ledger

    @property
    def version(self) -> int:
        """Number of updates published so far; with several partitions, the largest of their numbers."""
        return max(partition.version for partition in self.partitions)

    def settle(self) -> None:
        """Mark all published minibatches as used, including those of dead shards; call with all locks held."""
        for partition in self.partitions:
            partition.settle()


def rule_of(config: AsgdConfig, workers: int) -> Rule:
    """The server's update rule for a number of workers."""
    scale = {"1/workers": 1 / workers, "1/accumulated": None}.get(str(config.push_scale), config.push_scale)
    return Rule(
        None if scale is None else float(scale), config.momentum, config.decay, config.projection, config.adagrad,
    )  # fmt: skip


def sizes_of(own: Flat, config: AsgdConfig, workers: int, minibatches: int) -> Sizes:
    """Sizes of the server's memory; the state of a model on a GPU is kept on the GPU, so its sizes here are 0."""
    on_cpu = own.vector_K.device.type == "cpu"
    return Sizes(
        minibatches, workers, config.partitions, push=config.max_distance,
        state=own.vector_K.numel() if on_cpu else 0,
        velocity=own.num_parameters if on_cpu and config.momentum else 0,
        squares=own.num_parameters if on_cpu and config.adagrad else 0,
    )  # fmt: skip


def tensors_on_gpu(own: Flat, config: AsgdConfig) -> tuple[Tensor, Tensor, Tensor] | None:
    """State (2, K), velocity and squares (2, P) on the GPU of `own`, shared by CUDA IPC; None if `own` is on a CPU.

    Velocity and squares have no values if the config does not need them.
    """
    if not own.vector_K.is_cuda:
        return None
    slots = (own.num_parameters if wanted else 0 for wanted in (config.momentum, config.adagrad))
    sizes = (own.vector_K.numel(), *slots)
    state_2K, velocity_2P, squares_2P = (torch.zeros(2, size, device=own.vector_K.device) for size in sizes)
    return state_2K, velocity_2P, squares_2P


def make_server(
    memory: ServerMemory, config: AsgdConfig, workers: int, own: Flat, lock: AbstractContextManager[object],
    on_gpu: tuple[Tensor, Tensor, Tensor] | None = None, rows: Sequence[range] | None = None,
) -> Server:  # fmt: skip
    """Make this process's view of the server, for a model like `own`; `lock` and `rows` are the pool's."""
    arrays = memory.state_2K, memory.velocity_2P, memory.squares_2P
    state_2K, velocity_2P, squares_2P = on_gpu or map(torch.from_numpy, arrays)
    pool, rule = Pool(memory.ledger, memory.cursor, lock, rows), rule_of(config, workers)
    partitions = tuple(
        Partition(
            record, memory.ledger, _buffers(state_2K, velocity_2P, squares_2P, stretch, own.num_parameters), rule,
            config.partitions, config.max_staleness, config.max_push,
        )
        for record, stretch in zip(memory.records, partition_bounds(own, config.partitions), strict=True)
    )  # fmt: skip
    return Server(memory, pool, partitions, rule)


def _buffers(
    state_2K: Tensor, velocity_2P: Tensor, squares_2P: Tensor, stretch: slice, num_parameters: int
) -> tuple[Buffer, Buffer]:
    moved = slice(stretch.start, min(stretch.stop, num_parameters))

    def buffer(index: int) -> Buffer:
        slots = (slot_2P[index, moved] if slot_2P.numel() else None for slot_2P in (velocity_2P, squares_2P))
        return Buffer(state_2K[index, stretch], State(state_2K[index, moved], *slots))

    return buffer(0), buffer(1)


def published_tensors(server: Server) -> dict[str, Tensor]:
    """Copies of the published parameters and slots; call with all locks held, or while all shards are idle."""
    published = [partition.published for partition in server.partitions]
    named = {
        "parameters": [buffer.vector_K for buffer in published],
        "server.velocity": [buffer.state.velocity_P for buffer in published if buffer.state.velocity_P is not None],
        "server.squares": [buffer.state.squares_P for buffer in published if buffer.state.squares_P is not None],
    }
    tensors = {name: torch.cat(stretches) for name, stretches in named.items() if stretches}
    wait_for_gpus(*tensors.values())
    return tensors


def load_tensors(server: Server, tensors: dict[str, Tensor]) -> None:
    """Set the published state; call while all shards are idle. Missing slots become zero.

    After a warm start the server continues with the momentum of plain SGD.
    """
    begin = 0
    for partition in server.partitions:
        published, state = partition.published, partition.published.state
        stretch = slice(begin, begin + len(published.vector_K))
        moved = slice(begin, begin + len(state.parameters_P))
        published.vector_K.copy_(tensors["parameters"][stretch])
        for slot_P, saved in (
            (state.velocity_P, tensors.get("server.velocity", tensors.get("velocity"))),
            (state.squares_P, tensors.get("server.squares")),
        ):
            if slot_P is not None:
                slot_P.zero_() if saved is None else slot_P.copy_(saved[moved])
        wait_for_gpus(published.vector_K)
        begin = stretch.stop


@dataclass(frozen=True)
class Before:
    """The server's version and its numbers of used, stale and refused minibatches when an epoch began or resumed."""

    version: int
    counts: dict[int, int]


def begin_epoch(server: Server, states_M: np.ndarray) -> Before:
    """Fill the pool and reset the counts; call while all shards are idle."""
    server.memory.journal_S2J[:] = 0
    server.memory.ended_S[:] = 0
    server.pool.fill(states_M)
    server.memory.shards_N[:, :READY] = 0
    return Before(server.version, server.ledger.counts())


def epoch_progress(server: Server, before: Before, *, seconds: float, returned: int, restarts: int) -> Progress:
    """Progress of the epoch since it began or resumed, from the published state."""
    shards_N = server.memory.shards_N
    reports = (dict(zip(SHARD, row, strict=True)) for row in shards_N.tolist())
    return replace(
        server.ledger.progress(before.counts), seconds=seconds, versions=server.version - before.version,
        returned=returned, restarts=restarts, up=int(shards_N[:, UP].sum()), down=int(shards_N[:, DOWN].sum()),
        shards=tuple(
            ShardReport(int(r["minibatches"]), r["compute_s"], r["sync_s"], r["wait_s"], int(r["busy"]), r["draw_s"])
            for r in reports
        ),
    )  # fmt: skip
