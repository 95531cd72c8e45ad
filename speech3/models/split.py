"""A model larger than one device: each member of a group of processes owns some units of every layer.

Dean et al. 2012, "Large scale distributed deep networks" (DistBelief), section 3: the nodes of each layer are assigned
to machines, which compute them; the state of a node is sent to a machine, once, if one that it feeds is there. Here the
layers are fully connected, or convolutions that see all maps, so a layer's inputs are gathered from all members, and
each computes its own units of it: product, normalisation, activation, dropout. In the softmax layer, too, a member has
but its own senones; what goes around are three numbers a frame: the largest logit, the sum of the exponentials, and the
logit of the frame's senone.

So each parameter has one owner, and only the shift and scale of the input are held by all. That is where this is not
Megatron's split (Shoeybi et al. 2019), by outputs of one layer and inputs of the next: that sends as much in half as
many messages, but leaves biases and normalisation behind the sum with all members. Here an owner's parameters, gradient
and running means never leave it, which is what lets it push them, alone, to the server partitions that hold them (the
paper's figure 2; `speech3.engine.replicas.world`).

Activations travel as PyTorch's DTensors: sharded by units, redistributed to be whole (all-gather), and their gradient,
to which every member adds its part, back to the owners (reduce-scatter). Shares are DTensor's as well, those of
`torch.chunk`. In between, layers are handed plain tensors, and stay what they are: what differs is how much of their
parameters they have, and a hook that gathers. Each member draws dropout for its own units.

An LSTM is not split: its cells see each other's outputs at every step of a chunk, so members would wait for each other
hundreds of times a minibatch. Nor is a time-delay network, whose bottlenecks are narrow and constrained as a whole.

Axes: B minibatch, D units of a layer, d those of a member, S senones, s those of a member.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from speech3.errors import Speech3Error
from speech3.models.base import AcousticModel
from speech3.models.cnn import Cnn
from speech3.models.dnn import Dnn
from speech3.models.layers import Hidden
from speech3.models.tdnn import Tdnn


def check_split(model: AcousticModel, members: int) -> None:
    """Refuse to split a model that cannot be, or into more parts than one of its layers has units.

    Raises
    ------
    Speech3Error
        Names the family, the layer, its width and the keys.
    """
    family, key = type(model).__name__.lower(), "training.model_partitions"
    if not isinstance(model, Dnn | Cnn):
        raise Speech3Error(
            f"{key}={members}: a model of family {family} cannot be split over devices: {_reason(model)}; set {key}=1 "
            f"and more training.workers, or choose family dnn or cnn"
        )
    for layer in _layers(model):
        units = len(model.get_parameter(f"{layer.name}.weight"))
        shares = [len(share) for share in torch.arange(units).chunk(members)]
        if len(shares) < members:
            raise Speech3Error(
                f"{key}={members}: layer {layer.name} of the {family} has {units} units ({layer.key}), shared out as "
                f"{' + '.join(map(str, shares))}, so {members - len(shares)} of the devices would have none; set "
                f"{key}={len(shares)} at most, or widen the layer"
            )


def _reason(model: AcousticModel) -> str:
    if isinstance(model, Tdnn):
        return "a bottleneck (layers.0.linear) is kept semi-orthogonal, for which all its units must be in one place"
    return "its cells (layers.0) see each other's outputs at every step"


def split(model: AcousticModel, member: int, members: int, mesh: DeviceMesh | None) -> AcousticModel:
    """Leave a member its units of each layer, in place; the whole model's logits (B, S) become its own, (B, s).

    Parameters
    ----------
    member
        From 0, its rank in `mesh`.
    mesh
        Of one dimension, the group's; None: the model is not to compute, only to have the sizes of a member's.

    Raises
    ------
    Speech3Error
        As `check_split`.
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
        if layer.maps and not following.maps:  # maps are gathered before they become a row of values
            model.get_submodule("convolutions").register_forward_hook(gather.output)
        else:
            model.get_submodule(following.name).register_forward_pre_hook(gather.input)
    return model


@dataclass(frozen=True)
class Gather:
    """A layer's units, of all members; a hook."""

    mesh: DeviceMesh
    units: int

    def __call__(self, x: Tensor) -> Tensor:
        """(..., d) to (..., D); the gradient of the one is what all members' gradients of the other add up to."""
        shape = torch.Size((*x.shape[:-1], self.units))
        # Made from the parts that it has: DTensor would take them all to be as wide as this member's.
        sharded = DTensor.from_local(
            x.contiguous(), self.mesh, [Shard(x.dim() - 1)], run_check=False, shape=shape, stride=_strides(shape)
        )  # fmt: skip
        whole: Tensor = sharded.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return whole

    def input(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """As a forward pre-hook."""
        return self(args[0]), *args[1:]

    def output(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """As a forward hook."""
        return self(output)


class SplitLayerNorm(nn.Module):
    """`nn.LayerNorm` over units of which this member has some: mean and variance are sums over all members."""

    def __init__(self, norm: nn.LayerNorm, mesh: DeviceMesh | None) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.units, self.group = norm.normalized_shape[0], mesh.get_group() if mesh else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) to (..., d)."""
        centred = x - self._mean(x)
        return centred * (self._mean(centred.square()) + self.eps).rsqrt() * self.weight + self.bias

    def _mean(self, x: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(x.sum(-1, keepdim=True), self.group)
        return total / self.units


class _Sum(torch.autograd.Function):
    """Of all members' tensors. Each member goes on with it, so its gradient is the sum of theirs."""

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
    """`speech3.models.loss.cross_entropy` over senones of which each member has some.

    `torch.distributed.tensor.parallel.loss_parallel` computes the same loss, but not how many frames have no better
    senone than their own, for which the largest logit and the own one are needed once more.

    Parameters
    ----------
    senones
        S.
    """

    mesh: DeviceMesh
    senones: int

    def __call__(self, logits_Bs: Tensor, senones_B: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss and frames classified right, the same for all members, to the last bit."""
        share = -(-self.senones // self.mesh.size())  # of all members but the last
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
    """Names of the modules of a layer, and the key that sets its width; `maps`: its units are maps of a convolution."""

    name: str
    norm: str
    key: str
    maps: bool = False


def _layers(model: AcousticModel) -> list[_Layer]:
    """In the order of computation."""
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
    """Leave of a module's parameters and buffers, which have `width` rows, those of a member."""

    def share(tensor: Tensor) -> Tensor:
        return tensor.detach().chunk(members)[member].clone()  # a view would keep the whole one

    for name, parameter in module.named_parameters(recurse=False):
        setattr(module, name, nn.Parameter(share(parameter)))
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.dim():
            setattr(module, name, share(buffer))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a tensor that lies in memory row by row."""
    return tuple(itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1))[::-1]
