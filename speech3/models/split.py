"""Splits a model over several devices: each member of a group of processes owns some units of every layer.

Dean et al. 2012, "Large scale distributed deep networks" (DistBelief), section 3. A layer's inputs are gathered from
all members (DTensors sharded by units, whose gradients are reduce-scattered), and each computes its own units. Of the
softmax layer a member has its own senones; members exchange the largest logit, the sum of the exponentials, and the
logit of the frame's senone. So each parameter has one owner, who can push it without the others
(`speech3.engine.backends.shared`). LSTMs are not split, whose cells would wait for each other at every step, nor
time-delay networks, whose bottlenecks are constrained as a whole.

Axes: B minibatch, D units of a layer, d a member's units, S senones, s a member's senones.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from speech3.errors import SettingError
from speech3.models.base import AcousticModel
from speech3.models.cnn import Cnn
from speech3.models.dnn import Dnn, Hidden
from speech3.models.tdnn import Tdnn


def check_split(model: AcousticModel, members: int) -> None:
    """Refuse a family that cannot be split, or a layer with too few units for this many members, with its width and
    key.
    """
    family, key = model.family, "training.model_partitions"
    if not isinstance(model, Dnn | Cnn):
        raise SettingError(
            f"{key}={members}: a model of family {family} cannot be split over devices: {_reason(model)}; set {key}=1 "
            f"and more training.workers, or choose family dnn or cnn"
        )
    for layer in _layers(model):
        units = len(model.get_parameter(f"{layer.name}.weight"))
        shares = [len(share) for share in torch.arange(units).chunk(members)]
        if len(shares) < members:
            raise SettingError(
                f"{key}={members}: layer {layer.name} of the {family} has {units} units ({layer.key}), divided into "
                f"{' + '.join(map(str, shares))}, so {members - len(shares)} of the devices would have none; set "
                f"{key}={len(shares)} at most, or widen the layer"
            )


def _reason(model: AcousticModel) -> str:
    if isinstance(model, Tdnn):
        return "a bottleneck (layers.0.linear) is kept semi-orthogonal, which needs all its units in one process"
    return "its cells (layers.0) depend on each other's outputs at every step"


def split_model(model: AcousticModel, member: int, members: int, mesh: DeviceMesh | None) -> AcousticModel:
    """Reduce a model, in place, to a member's units of each layer; its logits (B, S) become the member's, (B, s).

    `member` is its rank in `mesh`, which has one dimension; None: only for the sizes of a member's model, which then
    cannot compute. Errors: `check_split`.
    """
    if members == 1:
        return model
    check_split(model, members)
    layers = _layers(model)
    widths = [len(model.get_parameter(f"{layer.name}.weight")) for layer in layers]
    for layer, width in zip(layers, widths, strict=True):
        norm = model.get_submodule(layer.norm) if layer.norm else None
        if isinstance(norm, nn.LayerNorm):
            norm = SplitLayerNorm(norm, mesh)
            model.set_submodule(layer.norm, norm)
        for module in filter(None, (model.get_submodule(layer.name), norm)):
            _keep(module, width, member, members)
    if mesh is None:
        return model
    for (layer, following), width in zip(itertools.pairwise(layers), widths[:-1], strict=True):
        gather = Gather(mesh, width)
        if layer.maps and not following.maps:  # maps are gathered before they are flattened
            model.get_submodule("convolutions").register_forward_hook(gather.output)
        else:
            model.get_submodule(following.name).register_forward_pre_hook(gather.input)
    return model


@dataclass(frozen=True)
class Gather:
    """Gathers a layer's units from all members; used as a hook."""

    mesh: DeviceMesh
    units: int

    def __call__(self, x: Tensor) -> Tensor:
        """(..., d) to (..., D); in the backward pass the gradients of all members are added up."""
        shape = torch.Size((*x.shape[:-1], self.units))
        stride = torch.empty(shape, device="meta").stride()
        # With an explicit shape: DTensor would otherwise take all parts to be as wide as this member's.
        sharded = DTensor.from_local(
            x.contiguous(), self.mesh, [Shard(x.dim() - 1)], run_check=False, shape=shape, stride=stride
        )
        whole: Tensor = sharded.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return whole

    def input(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return self(args[0]), *args[1:]

    def output(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return self(output)


class SplitLayerNorm(nn.Module):
    """`nn.LayerNorm` over the units of all members: mean and variance are computed from sums over all of them."""

    def __init__(self, norm: nn.LayerNorm, mesh: DeviceMesh | None) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.units, self.group = norm.normalized_shape[0], mesh.get_group() if mesh else None

    def forward(self, x: Tensor) -> Tensor:
        centred = x - self._mean(x)
        return centred * (self._mean(centred.square()) + self.eps).rsqrt() * self.weight + self.bias

    def _mean(self, x: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(x.sum(-1, keepdim=True), self.group)
        return total / self.units


class _Sum(torch.autograd.Function):
    """Sum of all members' tensors. Each member uses it, so its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group, total = group, x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


@dataclass(frozen=True)
class SplitCrossEntropy:
    """`speech3.models.base.cross_entropy` over S senones that are divided among the members.

    `torch.distributed.tensor.parallel.loss_parallel` computes the same loss, but not the number of correctly classified
    frames, for which the largest logit and that of the correct senone would have to be exchanged again.
    """

    mesh: DeviceMesh
    senones: int

    def __call__(self, logits_Bs: Tensor, senones_B: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss and number of correctly classified frames, the same to the last bit for all members."""
        share = -(-self.senones // self.mesh.size())  # of each member but the last
        first = share * self.mesh.get_local_rank()
        loss, correct = _CrossEntropy.apply(logits_Bs, senones_B - first, self.mesh.get_group())
        return loss, correct


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_Bs: Tensor, index_B: Tensor, group: Any) -> tuple[Tensor, Tensor]:
        max_B = logits_Bs.amax(1)
        dist.all_reduce(max_B, dist.ReduceOp.MAX, group)
        posterior_Bs = (logits_Bs - max_B[:, None]).exp_()
        mine_B = (index_B >= 0) & (index_B < logits_Bs.shape[1])
        index_B1 = index_B.where(mine_B, 0)[:, None]
        own_B = logits_Bs.gather(1, index_B1).squeeze(1).where(mine_B, 0.0)
        sums_2B = torch.stack([posterior_Bs.sum(1), own_B])
        dist.all_reduce(sums_2B, group=group)
        sum_B, own_B = sums_2B
        correct = (own_B >= max_B).sum()
        ctx.mark_non_differentiable(correct)
        if ctx.needs_input_grad[0]:
            posterior_Bs.div_(sum_B[:, None])
            ctx.save_for_backward(posterior_Bs.scatter_add_(1, index_B1, -mine_B[:, None].to(posterior_Bs.dtype)))
        return (max_B + sum_B.log() - own_B).mean(), correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        (difference_Bs,) = ctx.saved_tensors
        return difference_Bs * (grad / len(difference_Bs)), None, None


@dataclass(frozen=True)
class _Layer:
    """Names of a layer's modules, and the key that sets its width; `maps`: its units are the maps of a convolution."""

    name: str
    norm: str
    key: str
    maps: bool = False


def _layers(model: AcousticModel) -> list[_Layer]:
    convolutions = len(model.convolutions) if isinstance(model, Cnn) else 0
    hidden = model.get_submodule("layers")
    assert isinstance(hidden, Hidden)
    return [
        *(
            _Layer(f"convolutions.{i}.convolution", f"convolutions.{i}.norm", f"model.convolutions[{i}].maps", True)
            for i in range(convolutions)
        ),
        *(_Layer(f"layers.hidden.{i}", f"layers.norms.{i}", "model.width") for i in range(len(hidden.hidden))),
        _Layer("output", "", "the senones of the HMM"),
    ]


def _keep(module: nn.Module, width: int, member: int, members: int) -> None:
    """Reduce a module's parameters and buffers, which have `width` rows, to a member's rows."""

    def share(tensor: Tensor) -> Tensor:
        return tensor.detach().chunk(members)[member].clone()  # a view would keep the whole one

    for name, parameter in module.named_parameters(recurse=False):
        setattr(module, name, nn.Parameter(share(parameter)))
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.dim():
            setattr(module, name, share(buffer))
