"""The caller's own `torch.optim` optimizer and learning-rate scheduler, in the engine's form.

The optimizer's parameters are those of the model, which are views of the flat vector. So its steps change the vector in
place, and everything else (pushes, fetches, checkpoints) works as with the engine's own optimizers: a shard's optimizer
steps the shard's own parameters, its push is the parameters that it fetched minus its own, and a fetch does not change
the optimizer's state. As with `AdamW`, that state belongs to one shard: one that is restarted begins with a new one.

A scheduler has a state of its own, but the workers need the learning rate of any minibatch, in any order. So the
scheduler is run once before training, and what it sets is written into a table with a row for each minibatch.

Axes: T minibatches of the whole training.
"""

import io
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speech3.engine.flat import trained
from speech3.engine.sgd import Sgd
from speech3.engine.world import Proximal
from speech3.errors import Speech3Error, listed

STATE = "optimizer"  # its name among the tensors of a state
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclass(frozen=True, eq=False)
class Settings:
    """What a schedule sets for each minibatch: the learning rates, and with some schedulers the momentum or the betas.

    Attributes
    ----------
    groups
        For each parameter group the values that change, by their names: (T,), or (T, 2) for betas.
    """

    groups: tuple[dict[str, np.ndarray], ...]

    def put(self, optimizer: torch.optim.Optimizer, minibatch: int) -> None:
        """Set the values for a minibatch, numbered over all epochs; those of the last minibatch stay."""
        for group, changing in zip(optimizer.param_groups, self.groups, strict=True):
            for name, values in changing.items():
                value = values[min(minibatch, len(values) - 1)].tolist()
                group[name] = tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, eq=False)
class OwnOptimizer:
    """What a worker makes its optimizer of; it can be pickled if `make` can."""

    make: MakeOptimizer
    settings: Settings


class TorchOptimizer(Sgd):
    """The parameters of a model and the step of the caller's optimizer, with the same interface as `Sgd`.

    Its learning rate is that of the optimizer's groups; in its place, `step` is given the number of the minibatch.
    """

    def __init__(self, model: nn.Module, own: OwnOptimizer, *, proximal: Proximal | None = None) -> None:
        super().__init__(model, proximal=proximal)
        self.settings, self.trained = own.settings, trained(model)
        self.optimizer = made(own.make, model)

    @torch.no_grad()
    def step(self, gradient: Iterable[Tensor], learning_rate: float) -> None:
        """Apply one gradient: a tensor for each parameter."""
        self.settings.put(self.optimizer, int(learning_rate))
        for parameter, g in zip(self.trained, gradient, strict=True):
            parameter.grad = g
        self.optimizer.step()
        for parameter in self.trained:
            parameter.grad = None
        if self.proximal:
            self.proximal(float(self.optimizer.param_groups[0]["lr"]))

    def state(self) -> dict[str, Tensor]:
        """Copies of parameters and optimizer state, for a checkpoint; the latter as bytes, whatever it contains."""
        stream = io.BytesIO()
        torch.save(self.optimizer.state_dict()["state"], stream)
        return {**super().state(), STATE: torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load parameters and optimizer state; if the latter is missing, the optimizer begins anew."""
        super().load(tensors)
        self.optimizer.state.clear()
        if STATE in tensors:
            state = torch.load(io.BytesIO(tensors[STATE].numpy().tobytes()), map_location="cpu", weights_only=True)
            # The groups are those of the caller's factory, which may set another learning rate than the last time.
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})


def made(make: MakeOptimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Make the caller's optimizer for the trained parameters of a model.

    Raises
    ------
    Speech3Error
        What was made is not an optimizer, or not one of exactly these parameters.
    """
    names = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    try:
        optimizer = make([parameter for _, parameter in names])
    except Exception as error:
        raise Speech3Error(
            f"optimizer: raised {type(error).__name__}: {error}; give a function that takes a list of parameters and "
            f"returns an optimizer of them, such as functools.partial(torch.optim.AdamW, lr=1e-3)"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise Speech3Error(
            f"optimizer: returned a {type(optimizer).__name__}, not a torch.optim.Optimizer; give a function that "
            f"takes a list of parameters and returns an optimizer of them"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Speech3Error(
            "optimizer: LBFGS evaluates the loss several times in a step, which the workers cannot do; use "
            "strategy='sandblaster', which is L-BFGS on all the data"
        )
    inside = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if inside - {id(parameter) for _, parameter in names}:
        raise Speech3Error(
            "optimizer: has parameters that it was not given, such as those of your own `model`; every worker has its "
            "own copy of the model, so make the groups of the list of parameters that is passed to your function"
        )
    if missing := [name for name, parameter in names if id(parameter) not in inside]:
        raise Speech3Error(
            f"optimizer: {listed(missing, 5)} of the model are in none of its groups and would not be trained; put "
            f"them into one, or freeze them (requires_grad_(False))"
        )
    return optimizer


def settings_of(
    optimizer: torch.optim.Optimizer, minibatches: int, *, factor: Callable[[int], float] | None = None,
    make: MakeSchedule | None = None,
) -> Settings:  # fmt: skip
    """Run a schedule before training, and note what it sets for each of `minibatches` minibatches.

    Parameters
    ----------
    optimizer
        One of the caller's, which must not be used again.
    factor
        Maps the number of a minibatch to a factor of the learning rates.
    make
        In place of `factor`, makes a scheduler, of which each minibatch is a step.

    Raises
    ------
    Speech3Error
        The scheduler needs something that is not known before training.
    """
    groups = optimizer.param_groups
    if make is None:
        factors_T = np.array([factor(number) if factor else 1.0 for number in range(minibatches)])
        return _changing(tuple({"lr": float(group["lr"]) * factors_T} for group in groups))
    scheduler = _scheduler(make, optimizer)
    names = [[name for name, value in group.items() if _numbers(value)] for group in groups]
    noted = tuple(
        {name: np.empty((minibatches, *np.shape(group[name]))) for name in each}
        for group, each in zip(groups, names, strict=True)
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the optimizer has taken no step
            for minibatch in range(minibatches):
                if minibatch:
                    scheduler.step()
                for group, arrays in zip(groups, noted, strict=True):
                    for name, array in arrays.items():
                        array[minibatch] = group[name]
    except Exception as error:
        raise Speech3Error(
            f"schedule: raised {type(error).__name__}: {error}; every minibatch is a step of the scheduler, and there "
            f"are {minibatches} of them in all epochs together"
        ) from error
    return _changing(noted)


def _numbers(value: Any) -> bool:
    values = value if isinstance(value, tuple) and value else (value,)
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _changing(groups: tuple[dict[str, np.ndarray], ...]) -> Settings:
    """Without what never changes, except learning rates, of which one value is kept."""
    return Settings(tuple(
        {name: values if (values != values[0]).any() else values[:1]
         for name, values in group.items() if name == "lr" or (values != values[0]).any()}
        for group in groups
    ))  # fmt: skip


def _scheduler(make: Callable[[Any], Any], optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    try:
        scheduler = make(optimizer)
    except Exception as error:
        raise Speech3Error(
            f"schedule: raised {type(error).__name__}: {error}; give a function that takes the optimizer and returns a "
            f"scheduler, such as functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1000)"
        ) from error
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise Speech3Error(
            "schedule: ReduceLROnPlateau depends on a loss, but the workers must know the learning rate of every "
            "minibatch before training; use another scheduler, or stop by on_epoch and train again with a lower rate"
        )
    if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        raise Speech3Error(
            f"schedule: returned a {type(scheduler).__name__}, not a torch.optim.lr_scheduler.LRScheduler; give a "
            f"function that takes the optimizer and returns a scheduler"
        )
    return scheduler
