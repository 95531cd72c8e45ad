"""The world of Sandblaster L-BFGS (Dean et al. 2012, section 4.2): coordinator, workers and server partitions.

The coordinator's algorithm (`lbfgs`) sees no vector. Its workers are a group (`worker_group`): processes on this host,
or virtual workers on a virtual clock.

The objective is the mean loss over a large batch: the whole epoch, or one of `batches` equal parts of it. Each batch in
turn gets `iterations` of L-BFGS. The history is kept across batches and epochs, but both gradients of a pair are of the
same batch. A portion of the gradient is a minibatch, or a row of minibatches where a recurrent model carries its state
along the row.

The counts of a world mean the following here. Each iteration stands for its share of the batch's minibatches, which
become `used` when it is accepted. `frames` and `loss_sum` are those of the accepted points, each over the whole batch;
rejected trials of a line search count only in the seconds and in the workers' minibatches. A version is an accepted
iteration. Progress and state are those of the last accepted iteration. A checkpoint contains the history, so a killed
run resumes with it.

The objective must not change during a line search. It does not: minibatches, augmentation and the seeds of dropout
depend on epoch and number alone. Batch normalisation normalises each minibatch by itself, and the model's running means
are the mean of the workers' at the accepted point.

We depart from the paper in two ways: partitions are slices of shared memory, served by any free worker; and each worker
adds up the gradients of its portions and sends one sum at the end, where the paper sends several.

Axes: M minibatches of an epoch, K values of the model.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speech3.config import LbfgsConfig
from speech3.engine.flat import flatten
from speech3.engine.sandblaster.lbfgs import Accept, Begin, Direct, Dots, History, Point, Request, Try, descend
from speech3.engine.sandblaster.partition import (
    Combine,
    Gather,
    Layout,
    Move,
    Multiply,
    Remember,
    gather_buffers,
    reset_buffers,
)
from speech3.engine.sandblaster.worker_group import Evaluation, WorkerGroup
from speech3.engine.world import USED, WAITING, Parts, Progress, Rate, Snapshot
from speech3.errors import Speech3Error


@dataclass(frozen=True)
class Batch:
    """One objective: its portions, and for each iteration the minibatches that it stands for."""

    portions: tuple[tuple[int, ...], ...]
    stretches: tuple[np.ndarray, ...]


def batches_of(minibatches: int, rows: Sequence[range] | None, config: LbfgsConfig) -> list[Batch]:
    """The objectives of an epoch. Where there are fewer portions than batches, some batches are empty."""
    portions = [tuple(row) for row in rows] if rows is not None else [(number,) for number in range(minibatches)]
    batches = []
    for chosen in np.array_split(np.arange(len(portions)), config.batches):
        mine = tuple(portions[index] for index in chosen)
        numbers = np.array([number for portion in mine for number in portion], np.int64)
        batches.append(Batch(mine, tuple(np.array_split(numbers, config.iterations))))
    return batches


class Sandblaster:
    """The world of L-BFGS.

    Parameters
    ----------
    make_workers
        Makes the worker group, given the layout of its memory.
    parts
        Parts of this process; only the size of the model is used.

    Raises
    ------
    Speech3Error
        Whatever the worker group raises.
    """

    def __init__(
        self, make_workers: Callable[[Layout], WorkerGroup], parts: Parts, config: LbfgsConfig, *, workers: int,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        own = flatten(parts.model)
        layout = Layout(own.vector_K.numel(), own.num_parameters, config.history + 1, workers)
        self.workers = make_workers(layout)
        self.batches = batches_of(len(parts.source), parts.source.rows, config)
        self.weight_decay, self.home, self.codes = weight_decay, own.vector_K.device, own.num_codes
        self.history, self.base, self.began = History(config.history), 0, 0.0
        self.states_M = np.zeros(len(parts.source), np.int32)
        self.progress = Progress()
        self.tried = self.begun = Evaluation()
        self.load({"parameters": own.vector_K})

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress ten times a second, and at the end.

        The learning rate is the initial trial step, as a multiple of the gradient, where there is no history.

        Raises
        ------
        Speech3Error
            The loss or its gradient is not finite where a batch begins; whatever the worker group raises.
        """
        self.states_M, self.progress = states_M.copy(), Progress()
        for _ in self._epoch(epoch, rate):
            yield self._now()
        yield self._now()

    def snapshot(self) -> Snapshot:
        """The base, which is always complete, and the history."""
        tensors = {"parameters": self.workers.vectors.points_2K[self.base].to(self.home, copy=True)}
        if self.history.slots:
            tensors["lbfgs.pairs"] = self.workers.vectors.pairs_2HP[:, self.history.slots].to(self.home, copy=True)
        return Snapshot(tensors, self.states_M.copy(), self._now())

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Set base and history; without a saved history it begins empty."""
        self.began = seconds
        vectors, pairs = self.workers.vectors, tensors.get("lbfgs.pairs")
        vectors.points_2K[self.base].copy_(tensors["parameters"])
        count = 0 if pairs is None else pairs.shape[1]
        self.history.slots = list(range(count))
        if pairs is not None:
            vectors.pairs_2HP[:, :count].copy_(pairs)

    def close(self) -> None:
        """Stop the workers."""
        self.workers.close()

    def _now(self) -> Progress:
        workers = self.workers
        note = self.progress.note or workers.note
        return replace(self.progress, returned=workers.returned, restarts=workers.restarts, note=note)

    def _epoch(self, epoch: int, rate: Rate) -> Generator[None, None, None]:
        yield from self.workers.begin(epoch, self.began)
        for batch in self.batches:
            left = [stretch for stretch in batch.stretches if (self.states_M[stretch] == WAITING).any()]
            if not left:
                continue
            yield from self._descend(batch, left, epoch, rate(int(left[0][0])))

    def _descend(self, batch: Batch, left: list[np.ndarray], epoch: int, first: float) -> Generator[None, None, None]:
        """Run one iteration of L-BFGS for each remaining stretch of minibatches, serving the algorithm's requests."""
        algorithm, stretches = descend(len(left), self.history, first), iter(left)
        answer, accepted, stepped = None, False, False
        while True:
            try:
                request: Request = algorithm.send(answer)
            except StopIteration as end:
                if accepted:
                    yield
                if end.value:
                    self._end_early(f"ended early: {end.value}", left, stepped=stepped)
                return
            if accepted:
                yield  # only now does the history contain the pair of this step
            answer = yield from self._answer(request, batch, epoch)
            accepted = isinstance(request, Accept)
            if accepted:
                self._publish(next(stretches))
                stepped = True

    def _answer(self, request: Request, batch: Batch, epoch: int) -> Generator[None, None, Any]:
        workers, base = self.workers, self.base
        match request:
            case Begin():
                return (yield from self._begin(batch, epoch))
            case Dots(slots):
                return (yield from workers.operate(Multiply(base, slots)))
            case Direct(slots, coefficients_J):
                yield from workers.operate(Combine(base, slots, coefficients_J))
            case Try(step):
                yield from workers.operate(Move(base, step))
                reset_buffers(workers.vectors, base)
                loss, slope, _ = yield from self._evaluate(1 - base, batch)
                return Point(step, loss, slope)
            case Accept(slot):
                if slot is not None:
                    yield from workers.operate(Remember(base, slot))
                self.base = 1 - base
        return None

    def _evaluate(self, at: int, batch: Batch) -> Generator[None, None, tuple[float, float, float]]:
        """Compute the loss, the slope along the direction, and the squared norm of the gradient."""
        self.tried = yield from self.workers.evaluate(at, batch.portions)
        if self.tried.bad is not None or not self.tried.frames:
            return math.inf, math.nan, math.nan
        gather = Gather(at, self.tried.keepers, self.tried.frames, self.weight_decay)
        slope, squared, length = (yield from self.workers.operate(gather)).tolist()
        if at != self.base:
            gather_buffers(self.workers.vectors, self.base, self.tried.keepers, self.codes)
        return self.tried.loss_sum / self.tried.frames + 0.5 * self.weight_decay * length, slope, squared

    def _begin(self, batch: Batch, epoch: int) -> Generator[None, None, float]:
        loss, _, squared = yield from self._evaluate(self.base, batch)
        if not math.isfinite(loss + squared):
            where = f", minibatch {self.tried.bad}" if self.tried.bad is not None else ""
            raise Speech3Error(
                f"epoch {epoch}{where}: the loss or its gradient is not finite before any step is made, so no step "
                f"can be judged: look for NaN in the data (features: speech3 inspect), or begin with another model "
                f"(speech3 train: --init)"
            )
        self.begun = self.tried
        return loss

    def _publish(self, stretch: np.ndarray) -> None:
        """Count an accepted iteration."""
        done, tried = self.progress, self.tried
        ended = int((self.states_M[stretch] == WAITING).sum())
        self.states_M[stretch] = USED
        self.progress = replace(
            done, used=done.used + ended, frames=done.frames + tried.frames, correct=done.correct + tried.correct,
            loss_sum=done.loss_sum + tried.loss_sum, versions=done.versions + 1, seconds=self.workers.seconds(),
            returned=self.workers.returned, restarts=self.workers.restarts, shards=self.workers.reports(),
            up=self.workers.up, down=self.workers.down, left_out=done.left_out + tried.left_out,
        )  # fmt: skip

    def _end_early(self, note: str, stretches: list[np.ndarray], *, stepped: bool) -> None:
        """Count a batch's waiting minibatches as used, since its objective contains them, and note the reason."""
        numbers = np.concatenate(stretches)
        ended = int((self.states_M[numbers] == WAITING).sum())
        self.states_M[numbers] = USED
        seen = Evaluation() if stepped else self.begun  # so that every batch counts for the epoch's loss
        self.progress = replace(
            self.progress, used=self.progress.used + ended, seconds=self.workers.seconds(), note=note,
            frames=self.progress.frames + seen.frames, loss_sum=self.progress.loss_sum + seen.loss_sum,
            correct=self.progress.correct + seen.correct, shards=self.workers.reports(), up=self.workers.up,
            down=self.workers.down, left_out=self.progress.left_out + seen.left_out,
        )  # fmt: skip
