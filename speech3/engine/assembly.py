"""From a config to a server over a board; its state as a checkpoint has it, and back; the epoch in numbers."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speech3.config import AsgdConfig
from speech3.engine.board import DOWN, READY, SHARD, UP, Board, Sizes
from speech3.engine.flat import Flat, wait_for_gpus
from speech3.engine.pool import Pool
from speech3.engine.rule import Rule, State
from speech3.engine.server import CORRECT, FRAMES, LOSS_SUM, Buffer, Server
from speech3.engine.world import REFUSED, STALE, USED, Progress, ShardReport


def rule_of(config: AsgdConfig, workers: int) -> Rule:
    """The server's step for so many workers."""
    scale = {"1/workers": 1 / workers, "1/accumulated": None}.get(str(config.push_scale), config.push_scale)
    return Rule(
        None if scale is None else float(scale), config.momentum, config.decay, config.staleness_rate,
        config.projection, config.adagrad, config.delay_compensation,
    )  # fmt: skip


def sizes_of(own: Flat, config: AsgdConfig, workers: int, minibatches: int) -> Sizes:
    """The board for a model on the CPU, or on a GPU, where the state lies elsewhere."""
    on_cpu = own.vector_K.device.type == "cpu"
    return Sizes(
        minibatches, workers, push=config.max_distance,
        state=own.vector_K.numel() if on_cpu else 0,
        velocity=own.num_parameters if on_cpu and config.momentum else 0,
        squares=own.num_parameters if on_cpu and config.adagrad else 0,
    )  # fmt: skip


def buffers_on_cpu(board: Board, num_parameters: int) -> tuple[Buffer, Buffer]:
    """The two buffers as tensors over the board's memory."""
    state_2K, velocity_2P, squares_2P = (
        torch.from_numpy(array) for array in (board.state_2K, board.velocity_2P, board.squares_2P)
    )
    return _buffers(state_2K, velocity_2P, squares_2P, num_parameters)


def tensors_on_gpu(own: Flat, config: AsgdConfig) -> tuple[Tensor, Tensor, Tensor] | None:
    """State, velocity and squares on the GPU of `own`, to be handed to other processes (CUDA IPC); none on a CPU."""
    if not own.vector_K.is_cuda:
        return None
    slots = (own.num_parameters if wanted else 0 for wanted in (config.momentum, config.adagrad))
    sizes = (own.vector_K.numel(), *slots)
    state_2K, velocity_2P, squares_2P = (torch.zeros(2, size, device=own.vector_K.device) for size in sizes)
    return state_2K, velocity_2P, squares_2P


def _buffers(state_2K: Tensor, velocity_2P: Tensor, squares_2P: Tensor, num_parameters: int) -> tuple[Buffer, Buffer]:
    def buffer(index: int) -> Buffer:
        slots = (slot_2P[index] if slot_2P.numel() else None for slot_2P in (velocity_2P, squares_2P))
        return Buffer(state_2K[index], State(state_2K[index, :num_parameters], *slots))

    return buffer(0), buffer(1)


def make_server(
    board: Board, config: AsgdConfig, workers: int, num_parameters: int, lock: AbstractContextManager[object],
    on_gpu: tuple[Tensor, Tensor, Tensor] | None = None, rows: Sequence[range] | None = None,
) -> Server:  # fmt: skip
    """A view of the server in this process; `lock` and `rows` are the pool's."""
    buffers = _buffers(*on_gpu, num_parameters) if on_gpu else buffers_on_cpu(board, num_parameters)
    pool = Pool(board.states_M, board.cursor, lock, rows)
    return Server(
        board, pool, buffers, rule_of(config, workers), max_staleness=config.max_staleness, max_push=config.max_push
    )


def published_tensors(server: Server) -> dict[str, Tensor]:
    """Copies of the published parameters and slots; with the lock held, or with no shard at work."""
    published = server.buffers[server.version % 2]
    tensors = {"parameters": published.vector_K.clone()}
    if published.state.velocity_P is not None:
        tensors["server.velocity"] = published.state.velocity_P.clone()
    if published.state.squares_P is not None:
        tensors["server.squares"] = published.state.squares_P.clone()
    wait_for_gpus(published.vector_K)
    return tensors


def load_tensors(server: Server, tensors: dict[str, Tensor]) -> None:
    """Set the published state; while no shard is at work. A slot that is missing is zero."""
    published = server.buffers[server.version % 2]
    published.vector_K.copy_(tensors["parameters"])
    slots = {"server.velocity": published.state.velocity_P, "server.squares": published.state.squares_P}
    for name, slot_P in slots.items():
        if slot_P is not None:
            slot_P.copy_(tensors[name]) if name in tensors else slot_P.zero_()
    wait_for_gpus(published.vector_K)


@dataclass(frozen=True)
class Before:
    """What had happened when an epoch was begun, or taken up again."""

    version: int
    counts: dict[int, int]


def begin_epoch(server: Server, states_M: np.ndarray) -> Before:
    """Fill the pool and count from zero; while no shard is at work."""
    server.begin_epoch()
    server.pool.fill(states_M)
    server.board.shards_N[:, :READY] = 0
    return Before(server.version, server.pool.counts())


def epoch_progress(server: Server, before: Before, *, seconds: float, returned: int, restarts: int) -> Progress:
    """The epoch in numbers since it was taken up, from the published state."""
    board, version = server.board, server.version
    totals, staleness = board.totals_2[version % 2], board.staleness_2[version % 2]
    ended = {state: count - before.counts[state] for state, count in server.pool.counts().items()}
    last = int(np.flatnonzero(staleness).max(initial=-1))
    reports = (dict(zip(SHARD, row, strict=True)) for row in board.shards_N.tolist())
    return Progress(
        used=ended[USED], stale=ended[STALE], refused=ended[REFUSED], frames=int(totals[FRAMES]),
        loss_sum=float(totals[LOSS_SUM]), correct=int(totals[CORRECT]), seconds=seconds,
        versions=version - before.version, returned=returned, restarts=restarts,
        up=int(board.shards_N[:, UP].sum()), down=int(board.shards_N[:, DOWN].sum()),
        staleness=tuple(staleness[: last + 1].tolist()),
        shards=tuple(
            ShardReport(int(r["minibatches"]), r["compute_s"], r["sync_s"], r["wait_s"], int(r["busy"]))
            for r in reports
        ),
    )  # fmt: skip
