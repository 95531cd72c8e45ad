"""The optimizers with which a worker updates its own parameters p: SGD, AdamW, Muon, or the caller's own.

**SGD** with the mean gradient g of a minibatch: v = momentum v + learning rate (g + weight decay p); p = p - v. Without
weight decay this equals the server's step with the push d = learning rate g; at a constant learning rate it also equals
`torch.optim.SGD`.

**AdamW** (Loshchilov and Hutter 2019, "Decoupled weight decay regularization"). A shard of an asynchronous backend
keeps its own moments, those of the gradients that it computed itself; a fetch does not change them. The server does not
hold them, so a shard that is restarted, or resumed from a checkpoint, begins with moments of zero.

**Muon** (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"), and AdamW for biases,
normalisation and output layers. The update of a hidden layer's matrix is its averaged gradient with all singular values
set to about one, so directions in which gradients are rare or small are learnt as fast as the others, as with the
natural gradient of Kaldi's time-delay networks (Povey et al. 2014). An update has the root mean square of one of
AdamW (Liu et al. 2025, "Muon is scalable for LLM training"), so one learning rate and weight decay serve both.

**The caller's own** `torch.optim` optimizer: its parameters are views of the flat vector, which its steps change. The
workers need the learning rate of any minibatch, in any order, so a scheduler is run once before training, and what it
sets is written into a table with a row for each minibatch.

Axes: N matrices of the same shape, R rows, C columns, of which there are no fewer than rows; T minibatches of the whole
training.
"""

import io
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speech3.engine.flat import Flat, flatten, trained
from speech3.engine.interface import Proximal, WorkerParts
from speech3.errors import SettingError, listed

_EPSILON = 1e-8
SLOTS = ("velocity", "adam.mean", "adam.square", "adam.steps")  # what a state may contain besides the parameters
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c of the polynomial of Jordan et al.
_STEPS = 5
_SMALLEST = 8  # fewest rows, and columns, of a matrix
_LENGTH = 0.2  # root mean square of an update of AdamW at a learning rate of one, as Liu et al. measured it
STATE = "optimizer"  # its name among the tensors of a state
Betas = tuple[float, float]  # decay factors per step of the moving averages of the gradient and of its square
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


class Sgd:
    """The parameters of a model and the SGD step; `proximal` is called after each step with the learning rate."""

    def __init__(
        self, model: nn.Module, *, momentum: float = 0.0, weight_decay: float = 0.0, proximal: Proximal | None = None
    ) -> None:
        self.momentum, self.weight_decay, self.proximal = momentum, weight_decay, proximal
        self.parameters = flatten(model)
        self.velocity: Flat | None = self.parameters.zeros_like() if momentum else None

    @torch.no_grad()
    def step(self, gradient: Iterable[Tensor], learning_rate: float) -> None:
        """Apply one gradient: a tensor for each parameter, as autograd returns them, which saves a copy."""
        if self.velocity is None:
            if self.weight_decay:
                self.parameters.parameters_P.mul_(1 - learning_rate * self.weight_decay)
            torch._foreach_add_(self.parameters.views, tuple(gradient), alpha=-learning_rate)
        else:
            v_P = self.velocity.vector_K.mul_(self.momentum)
            torch._foreach_add_(self.velocity.views, tuple(gradient), alpha=learning_rate)
            if self.weight_decay:
                v_P.add_(self.parameters.parameters_P, alpha=learning_rate * self.weight_decay)
            self.parameters.parameters_P.sub_(v_P)
        if self.proximal:
            self.proximal(learning_rate)

    def state(self) -> dict[str, Tensor]:
        self.parameters.collect()
        slots = {"velocity": self.velocity.vector_K.clone()} if self.velocity else {}
        return {"parameters": self.parameters.vector_K.clone(), **slots}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        self.parameters.load(tensors["parameters"])
        if self.velocity:
            v_P = self.velocity.vector_K
            v_P.copy_(tensors["velocity"]) if "velocity" in tensors else v_P.zero_()


class AdamW:
    """The parameters of a model and the AdamW step, with the same interface as `Sgd`.

    As in `torch.optim.AdamW`, the weight decay applies to all parameters, including biases and normalisation, and is
    multiplied by the learning rate. `mean` and `square` are the moving averages of the gradient and of its square,
    without bias correction.
    """

    def __init__(
        self, model: nn.Module, betas: Betas, *, weight_decay: float = 0.0, proximal: Proximal | None = None
    ) -> None:
        self.betas, self.weight_decay, self.proximal = betas, weight_decay, proximal
        self.parameters: Flat = flatten(model)
        self.mean, self.square = self.parameters.zeros_like(), self.parameters.zeros_like()
        self._gradient, self._direction = self.parameters.zeros_like(), self.parameters.zeros_like()
        self.steps = 0

    @torch.no_grad()
    def step(self, gradient: Iterable[Tensor], learning_rate: float) -> None:
        torch._foreach_copy_(self._gradient.views, tuple(gradient))
        (first, second), self.steps = self.betas, self.steps + 1
        g_P = self._gradient.vector_K
        self.mean.vector_K.lerp_(g_P, 1 - first)
        self.square.vector_K.mul_(second).addcmul_(g_P, g_P, value=1 - second)
        self._write_direction()
        parameters_P = self.parameters.parameters_P
        parameters_P.mul_(1 - learning_rate * self.weight_decay)
        parameters_P.sub_(self._direction.vector_K, alpha=learning_rate)
        if self.proximal:
            self.proximal(learning_rate)

    def _write_direction(self) -> None:
        """Write the direction of the step, which the learning rate multiplies, from the moments."""
        (first, second), direction_P = self.betas, self._direction.vector_K
        corrected = math.sqrt(1 - second**self.steps)
        torch.sqrt(self.square.vector_K, out=direction_P).add_(_EPSILON * corrected)
        torch.div(self.mean.vector_K, direction_P, out=direction_P).mul_(corrected / (1 - first**self.steps))

    def state(self) -> dict[str, Tensor]:
        self.parameters.collect()
        vectors = {"parameters": self.parameters, "adam.mean": self.mean, "adam.square": self.square}
        tensors = {name: flat.vector_K.clone() for name, flat in vectors.items()}
        return {**tensors, "adam.steps": torch.tensor([float(self.steps)])}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        self.parameters.load(tensors["parameters"])
        self.steps = int(tensors["adam.steps"].item()) if "adam.steps" in tensors else 0
        for name, slot in (("adam.mean", self.mean), ("adam.square", self.square)):
            slot.vector_K.copy_(tensors[name]) if name in tensors else slot.vector_K.zero_()


class Muon(AdamW):
    """The parameters of a model and the Muon step, with the same interface and slots as `AdamW`.

    The first of the betas is also the momentum of the matrices, in Nesterov's form. Each of the `groups` has the
    indices of the matrices of one shape among the trained parameters, and the axis of their rows.
    """

    def __init__(self, model: nn.Module, betas: Betas, **more: Any) -> None:
        super().__init__(model, betas, **more)
        groups: dict[tuple[torch.Size, int], list[int]] = {}
        for index, axis in hidden_matrices(model):
            groups.setdefault((self.parameters.views[index].shape, axis), []).append(index)
        self.groups = [(indices, axis) for (_, axis), indices in groups.items()]

    def _write_direction(self) -> None:
        super()._write_direction()
        for indices, axis in self.groups:
            momenta = [self._gradient.views[index].lerp(self.mean.views[index], self.betas[0]) for index in indices]
            updates_NRC = orthogonalized(torch.stack([each.movedim(axis, 0).flatten(1) for each in momenta]))
            updates_NRC = updates_NRC * (_LENGTH * math.sqrt(max(updates_NRC.shape[1:])))
            for index, update_RC in zip(indices, updates_NRC, strict=True):
                view = self._direction.views[index].movedim(axis, 0)
                view.copy_(update_RC.reshape(view.shape))


def orthogonalized(matrices_NRC: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices, approximately: singular values become 0.7 to 1.2, tiny ones less.

    The Newton-Schulz iteration X = a X + (b G + c G G) X with G = X X^T, from X of norm one. Its steps are collected in
    one product of R x R matrices, since G can be updated without X, so the wide matrix is multiplied only twice. This
    needs float32: bf16, in which Jordan et al. iterate on X itself, loses the small singular values in G, which has
    their squares, and training hardly begins.
    """
    if matrices_NRC.shape[1] > matrices_NRC.shape[2]:
        return orthogonalized(matrices_NRC.mT).mT
    x_NRC = matrices_NRC / matrices_NRC.flatten(1).norm(dim=1).clamp(min=1e-30)[:, None, None]
    a, b, c = _COEFFICIENTS
    gram_NRR, product_NRR = x_NRC @ x_NRC.mT, None
    for step in range(_STEPS):
        factor_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=b, alpha=c)
        factor_NRR.diagonal(dim1=1, dim2=2).add_(a)
        product_NRR = factor_NRR if product_NRR is None else factor_NRR @ product_NRR
        if step + 1 < _STEPS:
            gram_NRR = factor_NRR @ gram_NRR @ factor_NRR
    return product_NRR @ x_NRC


def hidden_matrices(model: nn.Module) -> Iterator[tuple[int, int]]:
    """Index among the trained parameters, and axis of the rows, of each matrix that Muon is meant for.

    These are the parameters whose names begin with weight (weight_ih_l0, ...) and that have two or more axes; the axes
    other than that of the rows are combined, as for a convolution. Excluded are embeddings, matrices with few rows or
    columns (peepholes are three rows of diagonals), and the output layers: those named in the model's attribute
    ``logit_layers``, or else the last one. A module whose rows are not the first axis has the attribute ``rows_axis``.
    """
    found, index = [], 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        path, _, own_name = name.rpartition(".")
        module = model.get_submodule(path)
        axis = int(getattr(module, "rows_axis", 0))
        rows = parameter.shape[axis] if parameter.ndim >= 2 else 0
        matrix = own_name.startswith("weight") and not isinstance(module, nn.Embedding)
        if matrix and rows and min(rows, parameter.numel() // rows) >= _SMALLEST:
            found.append((path, index, axis))
        index += 1
    outputs = getattr(model, "logit_layers", None) or [path for path, _, _ in found[-1:]]
    yield from ((index, axis) for path, index, axis in found if path not in outputs)


@dataclass(frozen=True, eq=False)
class Settings:
    """What a schedule sets for each minibatch: the learning rates, and with some schedulers the momentum or the betas.

    `groups` has for each parameter group the values that change, by their names: (T,), or (T, 2) for betas.
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
        self.settings.put(self.optimizer, int(learning_rate))
        for parameter, g in zip(self.trained, gradient, strict=True):
            parameter.grad = g
        try:
            self.optimizer.step()
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            raise SettingError(
                f"optimizer: the step of {type(self.optimizer).__name__} raised {type(error).__name__}: {error}; use "
                f"an optimizer that takes dense gradients and needs nothing else in its step"
            ) from error
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

    Raises `Speech3Error`: what was made is not an optimizer, or not one of exactly these parameters.
    """
    names = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    try:
        optimizer = make([parameter for _, parameter in names])
    except Exception as error:
        raise SettingError(
            f"optimizer: raised {type(error).__name__}: {error}; pass a function that takes a list of parameters and "
            f"returns an optimizer of them, such as functools.partial(torch.optim.AdamW, lr=1e-3)"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SettingError(
            f"optimizer: returned a {type(optimizer).__name__}, not a torch.optim.Optimizer; pass a function that "
            f"takes a list of parameters and returns an optimizer of them"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SettingError(
            "optimizer: LBFGS evaluates the loss several times in a step, which the workers cannot do; use "
            "strategy='sandblaster', which is L-BFGS on all the data"
        )
    inside = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if inside - {id(parameter) for _, parameter in names}:
        raise SettingError(
            "optimizer: has parameters that it was not given, such as those of your own `model`; every worker has its "
            "own copy of the model, so make the groups of the list of parameters that is passed to your function"
        )
    if missing := [name for name, parameter in names if id(parameter) not in inside]:
        raise SettingError(
            f"optimizer: {listed(missing, 5)} of the model are in none of its groups and would not be trained; put "
            f"them into one, or freeze them (requires_grad_(False))"
        )
    return optimizer


def settings_of(
    optimizer: torch.optim.Optimizer,
    minibatches: int,
    *,
    factor: Callable[[int], float] | None = None,
    make: MakeSchedule | None = None,
) -> Settings:
    """Run a schedule before training, and note what it sets for each of `minibatches` minibatches.

    `optimizer` is one of the caller's, which must not be used again. `factor` maps the number of a minibatch to a
    factor of the learning rates; in its place, `make` makes a scheduler, of which each minibatch is a step.

    Raises `Speech3Error` if the scheduler needs something that is not known before training.
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
        raise SettingError(
            f"schedule: raised {type(error).__name__}: {error}; every minibatch is a step of the scheduler, and there "
            f"are {minibatches} of them in all epochs together"
        ) from error
    return _changing(noted)


def _numbers(value: Any) -> bool:
    values = value if isinstance(value, tuple) and value else (value,)
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _changing(groups: tuple[dict[str, np.ndarray], ...]) -> Settings:
    """Without what never changes, except learning rates, of which one value is kept."""
    kept: list[dict[str, np.ndarray]] = []
    for group in groups:
        changing = {name: values for name, values in group.items() if (values != values[0]).any()}
        kept.append({"lr": group["lr"][:1], **changing} if "lr" in group else changing)
    return Settings(tuple(kept))


def _scheduler(make: Callable[[Any], Any], optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    try:
        scheduler = make(optimizer)
    except Exception as error:
        raise SettingError(
            f"schedule: raised {type(error).__name__}: {error}; pass a function that takes the optimizer and returns a "
            f"scheduler, such as functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1000)"
        ) from error
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise SettingError(
            "schedule: ReduceLROnPlateau depends on a loss, but the workers must know the learning rate of every "
            "minibatch before training; use another scheduler, or stop by on_epoch and train again with a lower rate"
        )
    if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        raise SettingError(
            f"schedule: returned a {type(scheduler).__name__}, not a torch.optim.lr_scheduler.LRScheduler; pass a "
            f"function that takes the optimizer and returns a scheduler"
        )
    return scheduler


def optimizer_of(parts: WorkerParts, *, momentum: float = 0.0) -> Sgd | AdamW:
    """The optimizer of a worker, for the parameters of ``parts.model``; `momentum` is that of SGD."""
    proximal = parts.proximal(parts.model) if parts.proximal else None
    if isinstance(parts.optimizer, OwnOptimizer):
        return TorchOptimizer(parts.model, parts.optimizer, proximal=proximal)
    if parts.optimizer == "sgd":
        return Sgd(parts.model, momentum=momentum, weight_decay=parts.weight_decay, proximal=proximal)
    kind = Muon if parts.optimizer == "muon" else AdamW
    return kind(parts.model, parts.betas, weight_decay=parts.weight_decay, proximal=proximal)
