"""The passive parameter server: parameters in memory, a version, and what a shard does to both while it holds the lock.

Follows CMU's SPEECH3 (an update happens whenever a shard finds the server free) and Zhang et al. 2013, "Asynchronous
stochastic gradient descent for DNN training" (version stamps). There is no server process: the shard that holds the
lock applies its own push to the parameters and fetches the new ones. The parameters may be divided into partitions
(DistBelief, Dean et al. 2012), each a server of its own: a shard syncs with one after the other and skips those that
are busy.

The state has two buffers. A push is written into the buffer that is not published, together with the numbers of its
minibatches (the journal); then a single store of the version publishes both. So a shard that is killed at any
instruction leaves the last published version intact. If it died just after publishing, the next shard to hold the lock
reads from the journal which minibatches are used, and marks them (`pool.MinibatchStates`).

Axes: M minibatches of an epoch, N shards, S partitions, K values of the model or of a partition, of which P are
parameters, J the most minibatches in a push plus two.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speech3.config import AsgdConfig
from speech3.engine.flat import Flat, partition_bounds, wait_for_gpus
from speech3.engine.interface import REFUSED, STALE, USED, Progress, Rows, ShardReport
from speech3.engine.pool import STATE_ARRAYS, Lock, MinibatchQueue, MinibatchStates
from speech3.engine.server_optimizer import ServerOptimizer, ServerVectors, server_optimizer_of
from speech3.engine.shard import Push

_ALIGN = 64  # bytes: no two arrays share a cache line
MemoryLayout = dict[str, tuple[type, tuple[int, ...]]]  # type and shape of each array of the server's memory
GpuTensors = tuple[Tensor, Tensor, Tensor] | None  # see `tensors_on_gpu`


class Status(IntEnum):
    """The values in a shard's row of `ServerMemory.shards_N`: counts and seconds of the epoch up to `DOWN`."""

    MINIBATCHES, COMPUTE_S, SYNC_S, WAIT_S, BUSY, DRAW_S, UP, DOWN = range(8)
    READY, EPOCH, DOING, SINCE = range(8, 12)


@dataclass(frozen=True, eq=False)
class ServerMemory:
    """The server's arrays. An axis of size 2 is the two buffers, of which number `version % 2` is the published one."""

    version_S: np.ndarray  # int64: storing a new version publishes what was written into the other buffer
    # float32: parameters and the model's buffers; the server's momentum; Adagrad's sums of squares. Those that are not
    # needed are empty, and all three are if the server is on a GPU.
    state_2K: np.ndarray
    velocity_2P: np.ndarray
    squares_2P: np.ndarray
    # int64, for each buffer, of the push that wrote it: how many minibatches it had, its staleness, and the
    # minibatches' numbers.
    journal_S2J: np.ndarray
    # float64: when a push was last published, on the clock `time.monotonic`; 0: none yet in this epoch.
    ended_S: np.ndarray
    syncing_S: np.ndarray  # int64: 1 while a shard syncs with the partition; it remains 1 if that shard dies
    states: MinibatchStates  # what became of each minibatch
    cursor: np.ndarray  # int64 (2,): see `pool.MinibatchQueue`
    # float64 (5,): the epoch that shards must work on (0: none, -1: exit), and base, warmup, decay and last of its
    # `Rate`.
    order: np.ndarray
    # float64 (N, `Status`): the status of each shard: counts and seconds of the epoch; READY: 1 once it has loaded
    # everything; EPOCH: the epoch that it works on (0: none); DOING: its current activity; SINCE: its heartbeat, when
    # that began (`backends/processes.py`).
    shards_N: np.ndarray


def memory_layout(own: Flat, config: AsgdConfig, workers: int, minibatches: int) -> MemoryLayout:
    """Type and shape of the server's arrays for a model like `own`; on a GPU, its state is not among them."""
    partitions, on_cpu = config.partitions, own.vector_K.device.type == "cpu"
    slots = [own.num_parameters if on_cpu and wanted else 0 for wanted in (config.momentum, config.adagrad)]
    return {
        "version_S": (np.int64, (partitions,)),
        "state_2K": (np.float32, (2, own.vector_K.numel() * on_cpu)),
        "velocity_2P": (np.float32, (2, slots[0])),
        "squares_2P": (np.float32, (2, slots[1])),
        "journal_S2J": (np.int64, (partitions, 2, 2 + config.max_distance)),
        "ended_S": (np.float64, (partitions,)),
        "syncing_S": (np.int64, (partitions,)),
        **{name: (dtype, (minibatches,)) for name, dtype in STATE_ARRAYS.items()},
        "cursor": (np.int64, (2,)),
        "order": (np.float64, (5,)),
        "shards_N": (np.float64, (workers, len(Status))),
    }


def private_memory(layout: MemoryLayout) -> ServerMemory:
    """The server's memory in a single process, such as the simulator."""
    return memory_over(layout, bytearray(memory_bytes(layout)))


def memory_over(layout: MemoryLayout, block: object) -> ServerMemory:
    """The server's memory in a block of `memory_bytes` bytes, which processes may share."""
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for name, (dtype, shape) in layout.items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(block, dtype, count, offset).reshape(shape)  # type: ignore[call-overload]
        offset += _aligned(count * np.dtype(dtype).itemsize)
    states = MinibatchStates(**{name: arrays.pop(name) for name in STATE_ARRAYS})
    return ServerMemory(**arrays, states=states)


def memory_bytes(layout: MemoryLayout) -> int:
    return sum(_aligned(int(np.prod(shape)) * np.dtype(dtype).itemsize) for dtype, shape in layout.values())


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


@dataclass(frozen=True, eq=False)
class Partition:
    """A view of one partition of the server; every process that opens the memory has its own view."""

    memory: ServerMemory
    number: int  # the index of its version and journal in `memory`
    buffers: Sequence[ServerVectors]  # the two buffers, in the memory of the CPU or of a GPU
    optimizer: ServerOptimizer
    max_staleness: int | None  # pushes with a greater staleness are dropped; None: no push is too stale
    # How far a push may move the parameters, relative to their norm; a push that moves them further is refused.
    max_push: float

    @property
    def version(self) -> int:
        return int(self.memory.version_S[self.number])

    @property
    def published(self) -> ServerVectors:
        return self.buffers[self.version % 2]

    def sync(self, push: Push) -> int:
        """Apply the push if it is due, and fetch the newest parameters if a fetch is due; call with the lock held.

        `push.pack` must have been called. Returns what became of the push's minibatches in this partition: USED, STALE
        or REFUSED; USED also if nothing was pushed.
        """
        self.mark_published()
        if not (push.push_due and push.numbers):
            push.fetch(self.version, self.published.vector_K, used=False)
            return USED
        numbers, push.numbers = push.numbers, []
        ended = self._step(push, numbers)
        if ended != USED:
            self.memory.states.refuse(numbers, ended, len(self.memory.version_S))
            push.fetch(self.version, self.published.vector_K, used=False)
        elif push.fetch_due:
            push.fetch(self.version, None, used=True)  # the step has written the parameters into the shard's copy
        else:
            push.pushed()
        return ended

    def mark_published(self) -> None:
        """Mark the minibatches of the published version as used: the shard that published it may have died first."""
        count, staleness, *numbers = self.memory.journal_S2J[self.number, self.version % 2].tolist()
        self.memory.states.publish(numbers[:count], staleness)

    def _step(self, push: Push, numbers: list[int]) -> int:
        """Publish the state after the push, unless the push is stale, not finite or moves the parameters too far."""
        staleness = self.version - push.version
        if push.packed is None:
            return REFUSED
        if self.max_staleness is not None and staleness > self.max_staleness:
            return STALE
        # 1. Write the model's buffers (below: its parameters) into the buffer that is not published.
        old, new = self.published, self.buffers[1 - self.version % 2]
        # Running means are not averaged: the server has those of the shard that pushed last.
        buffers = new.vector_K[push.own.num_parameters :]
        # Their sum is finite if all are; the host reads it after the step, when it is there.
        buffers_sum = buffers.copy_(push.own.buffers).sum(dtype=torch.float64) if buffers.numel() else None
        # 2. The push was computed from parameters `staleness` versions old; it is applied to the newest all the same.
        length = self.optimizer.step(  # on a GPU, returns only when everything is written
            old, new, push.packed, staleness=staleness, minibatches=len(numbers)
        )
        finite = math.isfinite(length) and (buffers_sum is None or math.isfinite(buffers_sum))
        if not (finite and length <= self.max_push):
            return REFUSED
        self._publish(push, staleness, numbers)
        return USED

    def _publish(self, push: Push, staleness: int, numbers: list[int]) -> None:
        # 3. Write the journal of the new buffer.
        memory, new = self.memory, 1 - self.version % 2
        journal_J = memory.journal_S2J[self.number, new]
        journal_J[:2] = len(numbers), staleness
        journal_J[2 : 2 + len(numbers)] = numbers
        memory.ended_S[self.number] = time.monotonic()
        if push.own.vector_K.device != self.buffers[new].vector_K.device:
            wait_for_gpus(push.own.vector_K, self.buffers[new].vector_K)
        # 4. Publish both with a single store; then mark the minibatches as used. Nobody reads the buffers without the
        # lock, so the store has to be indivisible only for a kill.
        memory.version_S[self.number] += 1
        self.mark_published()


@dataclass(frozen=True)
class EpochStart:
    """The server's version and its numbers of used, stale and refused minibatches when an epoch began or resumed."""

    version: int
    counts: dict[int, int]


@dataclass(frozen=True, eq=False)
class Server:
    """One process's view of the whole parameter server; its partitions together hold the parameters."""

    memory: ServerMemory
    queue: MinibatchQueue
    partitions: tuple[Partition, ...]
    optimizer: ServerOptimizer

    @property
    def states(self) -> MinibatchStates:
        return self.memory.states

    @property
    def version(self) -> int:
        """Number of updates published so far; with several partitions, the largest of their numbers."""
        return max(partition.version for partition in self.partitions)

    def mark_published(self) -> None:
        """Mark all published minibatches as used, including those of dead shards; call with all locks held."""
        for partition in self.partitions:
            partition.mark_published()

    def tensors(self) -> dict[str, Tensor]:
        """Copies of the published parameters and slots; call with all locks held, or while all shards are idle."""
        published = [partition.published for partition in self.partitions]
        named = {
            "parameters": [buffer.vector_K for buffer in published],
            "server.velocity": [buffer.velocity_P for buffer in published if buffer.velocity_P is not None],
            "server.squares": [buffer.squares_P for buffer in published if buffer.squares_P is not None],
        }
        tensors = {name: torch.cat(stretches) for name, stretches in named.items() if stretches}
        wait_for_gpus(*tensors.values())
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Set the published state; call while all shards are idle. Missing slots become zero.

        After a warm start the server continues with the momentum of plain SGD.
        """
        velocity_P = tensors.get("server.velocity", tensors.get("velocity"))
        begin = 0
        for published in (partition.published for partition in self.partitions):
            parameters = slice(begin, begin + len(published.parameters_P))
            end = begin + len(published.vector_K)
            published.vector_K.copy_(tensors["parameters"][begin:end])
            slots = (published.velocity_P, velocity_P), (published.squares_P, tensors.get("server.squares"))
            for slot_P, saved_P in slots:
                if slot_P is not None:
                    slot_P.zero_() if saved_P is None else slot_P.copy_(saved_P[parameters])
            wait_for_gpus(published.vector_K)
            begin = end

    def begin_epoch(self, states_M: np.ndarray) -> EpochStart:
        """Fill the queue and reset the counts; call while all shards are idle."""
        self.memory.journal_S2J[:] = 0
        self.memory.ended_S[:] = 0
        self.queue.fill(states_M)
        self.memory.shards_N[:, : Status.READY] = 0
        return EpochStart(self.version, self.states.counts())

    def progress(self, before: EpochStart, **more: Any) -> Progress:
        """Progress of the epoch since it began or resumed, from the published state; `more` are further fields."""
        shards_N = self.memory.shards_N
        rows = shards_N.tolist()
        reports = tuple(ShardReport(int(row[0]), row[1], row[2], row[3], int(row[4]), row[5]) for row in rows)
        up, down = shards_N[:, [Status.UP, Status.DOWN]].sum(0).astype(int).tolist()
        done, versions = self.states.progress(before.counts), self.version - before.version
        return replace(done, versions=versions, up=up, down=down, shards=reports, **more)


def tensors_on_gpu(own: Flat, config: AsgdConfig) -> GpuTensors:
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
    memory: ServerMemory, config: AsgdConfig, own: Flat, lock: Lock, on_gpu: GpuTensors = None, rows: Rows = None
) -> Server:
    """Make this process's view of the server, for a model like `own`; `lock` and `rows` are the queue's."""
    arrays = memory.state_2K, memory.velocity_2P, memory.squares_2P
    state_2K, *slots_2P = on_gpu or map(torch.from_numpy, arrays)
    optimizer, partitions = server_optimizer_of(config, len(memory.shards_N)), []
    for number, stretch in enumerate(partition_bounds(own, config.partitions)):
        parameters = slice(stretch.start, min(stretch.stop, own.num_parameters))
        buffers = []
        for index in (0, 1):
            velocity_P, squares_P = (slot[index, parameters] if slot.numel() else None for slot in slots_2P)
            num_parameters = parameters.stop - parameters.start
            buffers.append(ServerVectors(state_2K[index, stretch], velocity_P, squares_P, num_parameters))
        partitions.append(Partition(memory, number, buffers, optimizer, config.max_staleness, config.max_push))
    return Server(memory, MinibatchQueue(memory.states, memory.cursor, lock, rows), tuple(partitions), optimizer)
