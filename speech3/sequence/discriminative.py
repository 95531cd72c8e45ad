"""MMI, boosted MMI and sMBR of senone sequences, to train a network further after cross-entropy.

The scores of a frame are those of a hybrid decoder, ``acoustic_scale * (output - log prior)``; the competing sequences
are the paths of the graph of `speech3.sequence.senones`.

- **MMI** (Bahl et al. 1986): the log posterior of the alignment, a mean over frames. **Boosted** (Povey et al. 2008):
  each correct frame of a path lowers its score in the denominator by `boost`, so paths with more errors count
  more. Silence on a path is never an error (``LatticeBoost`` in Kaldi's lat/lattice-functions.cc, with its default
  maximum error of silence, 0).
- **sMBR** (Kingsbury 2009; Gibson and Hain 2006): the expected share of frames in the senone of the alignment, over all
  paths. The loss is one minus that. All senones of silence and noise are one class: where the alignment has any of
  them, each of them is right (``--one-silence-class=true`` of Kaldi's nnet-train-mpe-sequential, as its scripts set
  it), so nothing is gained by telling silences apart.

Both tend to make a network more confident than the data warrant, so frame cross-entropy is added with a small weight
(F-smoothing, Su et al. 2013). The numerator of MMI is the alignment, as in Kaldi's nnet1 (Vesely et al. 2013), so its
gradient is the difference between alignment and posteriors, times the acoustic scale.

Axes: B chunks, T frames of a chunk, S senones, N frames of all chunks, one chunk after the other.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from speech3.errors import Speech3Error
from speech3.sequence import passes
from speech3.sequence.graph import Graph
from speech3.sequence.senones import path_log_weights


@dataclass(frozen=True, eq=False)
class Discriminative:
    """The loss of a minibatch of chunks, for any network with an output per frame; picklable.

    Attributes
    ----------
    log_prior_S
        float32, natural logarithms of the senones' relative frequencies.
    smbr
        Whether the criterion is sMBR instead of MMI.
    boost
        Boost of MMI; 0: not boosted.
    leak
        Leak probability of the leaky HMM.
    cross_entropy
        Weight of frame cross-entropy, added to the criterion.
    silence_S
        bool: the senones of silence and noise (`speech3.sequence.senones.silence_senones`); None: none are known.
    """

    graph: Graph
    log_prior_S: np.ndarray
    smbr: bool
    acoustic_scale: float
    boost: float = 0.0
    leak: float = 0.01
    cross_entropy: float = 0.0
    silence_S: np.ndarray | None = None

    def __call__(self, y_BTS: Tensor, senones_N: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss over frames, and in how many of them the largest output is the alignment's senone.

        Parameters
        ----------
        y_BTS
            Outputs of the network.

        Raises
        ------
        Speech3Error
            The number of outputs is not that of the graph's senones.
        """
        senones_BT = senones_N.view(y_BTS.shape[:2])
        if y_BTS.shape[2] != self.graph.num_pdfs:
            raise Speech3Error(
                f"the network has {y_BTS.shape[2]} outputs, but the denominator {self.graph.num_pdfs} senones: it "
                "was made from an alignment with another tree"
            )
        scores_BTS = self.acoustic_scale * (y_BTS - torch.from_numpy(self.log_prior_S).to(y_BTS))
        loss_B = self._smbr(scores_BTS, senones_BT) if self.smbr else self._mmi(scores_BTS, senones_BT)
        loss = loss_B.sum().to(y_BTS.dtype) / len(senones_N)
        if self.cross_entropy:
            loss = loss + self.cross_entropy * functional.cross_entropy(y_BTS.flatten(0, 1), senones_N)
        return loss, (y_BTS.detach().argmax(2) == senones_BT).sum()

    def _mmi(self, scores_BTS: Tensor, senones_BT: Tensor) -> Tensor:
        """Minus the log posterior of each chunk's alignment, (B,) float64."""
        own_BT1 = senones_BT[:, :, None]
        boosted_BTS = scores_BTS.detach()
        if self.boost:
            correct_BTS = torch.zeros_like(boosted_BTS)
            if self.silence_S is not None:
                correct_BTS += torch.from_numpy(self.silence_S).to(correct_BTS)
            boosted_BTS = boosted_BTS - self.boost * correct_BTS.scatter_(2, own_BT1, 1)
        log_z_B, posterior_BTS = passes.total(boosted_BTS, self.graph, self.leak)
        weight_B = path_log_weights(self.graph, senones_BT.cpu().numpy(), self.leak)
        said_B = scores_BTS.gather(2, own_BT1).sum((1, 2), dtype=torch.float64) + torch.from_numpy(weight_B).to(log_z_B)
        return passes.Attached.apply(scores_BTS, log_z_B, posterior_BTS) - said_B

    def _smbr(self, scores_BTS: Tensor, senones_BT: Tensor) -> Tensor:
        """Expected number of wrong frames of each chunk, (B,) float64."""
        right_BTS = torch.zeros_like(scores_BTS)
        if self.silence_S is not None:
            silence_S = torch.from_numpy(self.silence_S).to(scores_BTS)
            right_BTS += silence_S[senones_BT][:, :, None] * silence_S
        right_BTS.scatter_(2, senones_BT[:, :, None], 1)
        right_B, gradient_BTS = passes.accuracy(scores_BTS, right_BTS, self.graph, self.leak)
        return senones_BT.shape[1] - passes.Attached.apply(scores_BTS, right_B, gradient_BTS)
