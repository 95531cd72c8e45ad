"""Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"), and AdamW for the rest.

The update of a hidden layer's matrix is its averaged gradient with all singular values set to about one: the nearest
semi-orthogonal matrix. So directions in which gradients are rare or small are learnt as fast as the others, as with the
natural gradient of Kaldi's time-delay networks (Povey et al. 2014), but without statistics to keep. A pass over the
data then gains what two passes of AdamW do (recipes/minilibri/RESULTS.md).

An update is as long as one of AdamW (Liu et al. 2025, "Muon is scalable for LLM training"), so one learning rate
and weight decay serve both. Biases, normalisation and the output layers are left to AdamW.

Axes: N matrices of the same shape, R rows, C columns, of which there are no fewer than rows.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from speech3.engine.adamw import AdamW
from speech3.engine.world import Proximal

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c of the polynomial of Jordan et al.
_STEPS = 5
_SMALLEST = 8  # fewest rows, and columns, of a matrix
_LENGTH = 0.2  # root mean square of an update of AdamW at a learning rate of one, as Liu et al. measured it


class Muon(AdamW):
    """The parameters of a model and the Muon step, with the same interface and slots as `AdamW`.

    The first of the betas is also the momentum of the matrices, in Nesterov's form.

    Attributes
    ----------
    groups
        Indices of the matrices among the trained parameters, and the axis of their rows; those of a group have one
        shape.
    """

    def __init__(
        self, model: nn.Module, betas: tuple[float, float], *, weight_decay: float = 0.0,
        proximal: Proximal | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model, betas, weight_decay=weight_decay, proximal=proximal)
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
