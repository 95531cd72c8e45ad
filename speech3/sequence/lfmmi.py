"""Lattice-free maximum mutual information (Povey et al. 2016, "Purely sequence-trained neural networks for ASR").

The criterion of a chunk is the log probability of its transcript, summed over the paths of the numerator, minus that of
everything that could have been said, summed over the paths of the denominator. Its gradient with respect to the outputs
is the difference of the two posteriors. The loss is minus the criterion, plus the squares of the outputs (l2) and, if
the network has a second output, its cross-entropy against the posteriors of the numerator.

Axes: B chunks, T output frames of a chunk, S pdfs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speech3.errors import Speech3Error
from speech3.hmm.passes import LARGEST_PSEUDO
from speech3.sequence import passes
from speech3.sequence.denominator import Denominator
from speech3.sequence.numerators import Numerators, numerator_posteriors

_MANY_CHUNKS = 4  # of which none fits its transcript: no longer chance, but a mistake


@dataclass(frozen=True, eq=False)
class LfMmi:
    """The loss of a minibatch of chunks, for any network; picklable.

    Attributes
    ----------
    leak
        Leak probability of the leaky HMM.
    cross_entropy
        Weight of the second output's cross-entropy.
    l2
        Weight of half the sum of squares of a frame's outputs.
    """

    denominator: Denominator
    leak: float = 0.1
    cross_entropy: float = 0.1
    l2: float = 5e-5

    def __call__(self, outputs: Tensor | tuple[Tensor, Tensor], numerators: Numerators) -> tuple[Tensor, Tensor]:
        """Mean loss over frames of chunks that fit their transcript, and how many predict the numerator's best pdf.

        Parameters
        ----------
        outputs
            (B, T, S), or two such tensors: the second is trained by cross-entropy.

        Raises
        ------
        Speech3Error
            The number of the network's outputs differs from that of the denominator's pdfs; none of many chunks fits
            its transcript (of a few, as in an epoch's last minibatch, that may be chance: their loss is zero).
        """
        y_BTS, second_BTS = outputs if isinstance(outputs, tuple) else (outputs, None)
        if y_BTS.shape[2] != self.denominator.num_pdfs:
            raise Speech3Error(
                f"the network has {y_BTS.shape[2]} outputs, but the denominator {self.denominator.num_pdfs} pdfs: it "
                "was made for another tree; build the denominator again"
            )
        clipped_BTS = y_BTS.clamp(-LARGEST_PSEUDO, LARGEST_PSEUDO)
        objective, posterior_BTS = _Criterion.apply(clipped_BTS, numerators, self.denominator, self.leak)
        loss = -objective + 0.5 * self.l2 * y_BTS.square().sum()
        judged_BTS = y_BTS.detach()
        if second_BTS is not None:
            loss = loss - self.cross_entropy * (second_BTS.log_softmax(2) * posterior_BTS).sum()
            judged_BTS = second_BTS.detach()
        best_BT = posterior_BTS.amax(2)
        said_BT = best_BT > 0
        if not said_BT.any() and loss.isfinite():  # the engine refuses a loss that is not finite
            if len(said_BT) < _MANY_CHUNKS:
                return 0.0 * loss, said_BT.sum()
            raise Speech3Error(
                "LF-MMI: no chunk matches its transcript: the labels are those of another alignment, "
                "or training.lfmmi.tolerance is too small for training.speeds; pack the frames again or raise it"
            )
        found_BT1 = judged_BTS.argmax(2, keepdim=True)  # argmax is slow: one instead of two
        correct = ((posterior_BTS.gather(2, found_BT1).squeeze(2) == best_BT) & said_BT).sum()
        return loss / said_BT.sum(), correct


class _Criterion(torch.autograd.Function):
    """The sum over chunks of numerator minus denominator; chunks without a path in the numerator contribute zero."""

    @staticmethod
    def forward(
        ctx: Any, y_BTS: Tensor, numerators: Numerators, graph: Denominator, leak: float
    ) -> tuple[Tensor, Tensor]:
        y = y_BTS.detach().cpu().numpy()
        numerator_B, said_BTS = numerator_posteriors(y, numerators)
        fits_B = numerator_B > -np.inf
        denominator_B, all_BTS = passes.total(y_BTS, graph, leak)
        said = torch.from_numpy(said_BTS).to(y_BTS)
        fits = torch.from_numpy(fits_B | np.isnan(numerator_B)).to(y_BTS.device)
        objective = (torch.from_numpy(numerator_B).to(y_BTS.device) - denominator_B)[fits].sum().to(y_BTS.dtype)
        ctx.save_for_backward(torch.where(fits[:, None, None], said - all_BTS, 0.0))
        ctx.mark_non_differentiable(said)
        return objective, said

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (difference_BTS,) = ctx.saved_tensors
        return grad * difference_BTS, None, None, None
