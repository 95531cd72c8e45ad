"""All parameters of a model in one flat float32 vector, so that a step, a push or a checkpoint is one operation.

After the parameters come the frozen parameters (``requires_grad=False``) and the model's buffers (such as the running
means of batch normalisation), which no gradient changes. Those that are float32 are views of the vector like the
parameters. The others (counts, masks, float64 statistics), and masks with infinite values, are in the vector only as
codes, so that it is finite and travels in one piece: every two bytes are a whole number from -32,768 to 32,767, which
float32 represents exactly.

Axes: K all values: first the P values of the trained parameters and the padding between them, then the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from speech3.errors import MismatchError, SettingError

_ALIGN = 16  # floats: every parameter starts on a cache line


@dataclass(eq=False)
class UntrainedTensor:
    """A frozen parameter or a buffer. A forward pass may put another tensor in the place of a buffer."""

    module: nn.Module
    name: str
    tensor: Tensor  # as it was when the model was flattened, or a view of the vector

    def now(self) -> Tensor:
        """The model's tensor, or the flattened one if the model's has another shape or type by now."""
        found = self.module._buffers.get(self.name, self.tensor)
        alike = found is not None and found.shape == self.tensor.shape and found.dtype == self.tensor.dtype
        return found if alike and found is not None else self.tensor

    @torch.no_grad()
    def settle(self) -> None:
        """Write the values of a tensor that took the place of the flattened one into that, and put it back."""
        if (found := self.now()) is not self.tensor:
            self.tensor.copy_(found)
            self.module._buffers[self.name] = self.tensor


@dataclass(frozen=True, eq=False)
class UntrainedTensors:
    """The frozen parameters and buffers of a model."""

    views: list[UntrainedTensor]  # those that are views of the vector
    coded: list[UntrainedTensor]  # the others, by descending size of their values, so that all are aligned
    guarded: list[UntrainedTensor]  # buffers among `coded` that must stay finite
    codes: Tensor  # the part with the codes; its first value is 0, or NaN if a guarded buffer is not finite

    @torch.no_grad()
    def collect(self) -> None:
        for place in (*self.views, *self.coded):
            place.settle()
        if self.coded:
            parts = [_bytes(place.tensor) for place in self.coded]
            parts.append(parts[0].new_zeros(sum(map(len, parts)) % 2))
            words = torch.cat(parts).view(torch.int16)
            self.codes[0] = sum((place.tensor * 0).sum().real.float() for place in self.guarded)
            self.codes[1 : 1 + len(words)] = words

    @torch.no_grad()
    def spread(self) -> None:
        for place in (*self.views, *self.coded):
            if place.now() is not place.tensor:
                place.module._buffers[place.name] = place.tensor
        values, start = self.codes[1:].to(torch.int16).view(torch.uint8), 0
        for place in self.coded:
            stop = start + place.tensor.nbytes
            place.tensor.copy_(values[start:stop].view(place.tensor.dtype).view(place.tensor.shape))
            start = stop


@dataclass(frozen=True, eq=False)
class Flat:
    """A flat vector and its views, one for each trained parameter, in its shape. Padding is zero and stays zero."""

    vector_K: Tensor
    views: tuple[Tensor, ...]
    num_parameters: int  # P
    untrained: UntrainedTensors | None = field(default=None, repr=False)

    @property
    def num_codes(self) -> int:
        """Number of values at the end of the vector that are codes, which cannot be averaged."""
        return self.untrained.codes.numel() if self.untrained else 0

    @property
    def parameters_P(self) -> Tensor:
        """The part that gradients change."""
        return self.vector_K[: self.num_parameters]

    @property
    def buffers(self) -> Tensor:
        """The rest, which no gradient changes: (K - P,)."""
        return self.vector_K[self.num_parameters :]

    def collect(self) -> None:
        """Write those buffers of the model that are not views into the vector; call before the vector is read."""
        if self.untrained:
            self.untrained.collect()

    def spread(self) -> None:
        """Write the vector into those buffers of the model that are not views; call after the vector was written."""
        if self.untrained:
            self.untrained.spread()

    @torch.no_grad()
    def load(self, values_K: Tensor) -> None:
        """Replace the values by those of a vector with the same `layout`, of which only the size can be checked here.

        Raises `Speech3Error` if the vector is of another model.
        """
        if values_K.numel() != self.vector_K.numel():
            raise MismatchError(
                f"a state of {values_K.numel():,} values is not one of this model, which has "
                f"{self.vector_K.numel():,}; load it into the model that was trained"
            )
        self.vector_K.copy_(values_K)
        self.spread()

    def part(self, bounds: slice) -> "Flat":
        """The values within `bounds`, without views; the buffers belong to the part that ends the vector."""
        parameters = max(0, min(self.num_parameters - bounds.start, bounds.stop - bounds.start))
        untrained = self.untrained if bounds.stop == self.vector_K.numel() else None
        return Flat(self.vector_K[bounds], (), parameters, untrained)

    def zeros_like(self) -> "Flat":
        """Another vector with the same layout of the parameters, all zero, without buffers: an optimizer slot."""
        vector_P = torch.zeros_like(self.parameters_P)
        views = tuple(_view(vector_P, int(view.storage_offset()), view) for view in self.views)
        return Flat(vector_P, views, self.num_parameters)


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that gradients change, in the order of the flat vector."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _rest(model: nn.Module) -> Iterator[UntrainedTensor]:
    seen = set[int]()
    for kind in ("_parameters", "_buffers"):
        for module in model.modules():
            for name, tensor in getattr(module, kind).items():
                if tensor is None or id(tensor) in seen or (isinstance(tensor, nn.Parameter) and tensor.requires_grad):
                    continue
                seen.add(id(tensor))
                if tensor.layout == torch.strided and not tensor.is_quantized:
                    yield UntrainedTensor(module, name, tensor)


def _in_order(model: nn.Module) -> tuple[list[UntrainedTensor], list[UntrainedTensor]]:
    """The tensors that no gradient changes: first those that become views, then those that are kept as codes."""
    untrained = list(_rest(model))
    viewed = [place for place in untrained if place.tensor.dtype == torch.float32 and _finite(place.tensor)]
    coded = [place for place in untrained if place not in viewed]
    return viewed, sorted(coded, key=lambda place: -place.tensor.element_size())


def layout(model: nn.Module) -> dict[str, list[str]]:
    """Which tensors of a model the flat vector has, in its order: their names, types and shapes.

    Vectors of one size may have different layouts (other frozen parameters, buffers in another order), so whoever loads
    a stored vector compares these.
    """
    prefixes = {module: f"{name}." * bool(name) for name, module in model.named_modules()}
    viewed, coded = _in_order(model)
    named: list[tuple[str, Tensor, str]]
    named = [(name, value, "") for name, value in model.named_parameters() if value.requires_grad]
    for places, how in ((viewed, ""), (coded, " as codes")):
        named += [(prefixes[place.module] + place.name, place.tensor, how) for place in places]
    kinds: dict[str, list[str]] = {"trained parameters": [], "frozen parameters": [], "buffers": []}
    for name, tensor, how in named:
        frozen = "frozen parameters" if isinstance(tensor, nn.Parameter) else "buffers"
        kind = "trained parameters" if tensor.requires_grad else frozen
        kinds[kind].append(f"{name} {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}{how}")
    return kinds


def flatten(model: nn.Module) -> Flat:
    """Move the model's parameters and buffers into one vector, and replace those that are float32 by views of it.

    Raises `ValueError` if a trained parameter is not float32.
    """
    parameters = trained(model)
    if other := {parameter.dtype for parameter in parameters} - {torch.float32}:
        raise ValueError(f"parameters must be float32, not {other.pop()}")
    # Finite float32 buffers are views as well; the bytes of all others follow as codes.
    viewed, coded = _in_order(model)
    tensors = [*parameters, *(place.tensor for place in viewed)]
    code_size = 1 + -(-sum(place.tensor.nbytes for place in coded) // 2) if coded else 0
    # Where each tensor begins: parameters first, aligned to cache lines.
    offsets, size, num_parameters = [], 0, 0
    for index, numel in enumerate([*(tensor.numel() for tensor in tensors), code_size]):
        offsets.append(size)
        size += numel + -numel % _ALIGN
        num_parameters = size if index < len(parameters) else num_parameters
    # The model's tensors become views of the vector.
    vector_K = torch.zeros(size, device=parameters[0].device if parameters else None)
    views = []
    for tensor, offset in zip(tensors, offsets[:-1], strict=True):
        view = _view(vector_K, offset, tensor)
        view.copy_(tensor.detach())
        tensor.data = view
        views.append(view)
    guarded = [place for place in coded if not isinstance(place.tensor, nn.Parameter) and _guard(place.tensor)]
    rest = UntrainedTensors(viewed, coded, guarded, vector_K[offsets[-1] :]) if viewed or coded else None
    flat = Flat(vector_K, tuple(views[: len(parameters)]), num_parameters, rest)
    flat.collect()
    return flat


def partition_bounds(flat: Flat, count: int) -> list[slice]:
    """Divide a vector into partitions of whole cache lines, of nearly equal size; the last also has the buffers.

    Raises `Speech3Error` if there are fewer cache lines of parameters than partitions.
    """
    lines = flat.num_parameters // _ALIGN
    if count > max(1, lines):
        raise SettingError(
            f"training.asgd.partitions={count}: the model has only {flat.num_parameters} parameters, and a partition "
            f"takes at least {_ALIGN}; use {max(1, lines)} at most"
        )
    bounds = [lines * number // count * _ALIGN for number in range(count)]
    return [slice(begin, end) for begin, end in zip(bounds, [*bounds[1:], flat.vector_K.numel()], strict=True)]


def wait_for_gpus(*tensors: Tensor) -> None:
    """Wait until the work that made these tensors has finished, so that other processes may see its results.

    The engine does everything on the current stream of each GPU; it does not wait for copies on other streams.
    """
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def _view(vector: Tensor, offset: int, like: Tensor) -> Tensor:
    return vector[offset : offset + like.numel()].view(like.shape)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.detach().isfinite().all())


def _guard(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and _finite(tensor)
