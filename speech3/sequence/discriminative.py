"""MMI, boosted MMI and sMBR of senone sequences, to train a network further after cross-entropy.

The scores of a frame are those of a hybrid decoder, ``acoustic_scale * (output - log prior)``; the competing sequences
are the paths of the denominator graph (`senone_graph`).

- **MMI** (Bahl et al. 1986): the log posterior of the alignment, a mean over frames. **Boosted** (Povey et al. 2008):
  each correct frame of a path lowers its score in the denominator by `boost`, so paths with more errors count
  more. Silence on a path is never an error (``LatticeBoost`` in Kaldi's lat/lattice-functions.cc).
- **sMBR** (Kingsbury 2009; Gibson and Hain 2006): the expected share of frames in the senone of the alignment, over all
  paths. The loss is one minus that. All senones of silence and noise are one class (``--one-silence-class=true`` of
  Kaldi's nnet-train-mpe-sequential), so nothing is gained by telling silences apart.

Both tend to make a network more confident than the data warrant, so frame cross-entropy is added with a small weight
(F-smoothing, Su et al. 2013). The numerator of MMI is the alignment (Vesely et al. 2013).

The denominator graph is an n-gram of senones without back-off, estimated on the alignment of the packed frames alone.
Each state is a senone after some history. Its loop has the probability of staying in the senone, an arc into the next
senone the probability of leaving times that of the n-gram. Unlike Kaldi's word lattices, it needs no decoding of the
training data and is always searched with the current network (Kanda, Fujita and Nagamatsu 2018).

Axes: N frames of all chunks, one chunk after the other (or of all utterances), S senones, U utterances (U1: and the end
of the last), J states, A arcs, B chunks, T frames of a chunk.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from speech3.errors import MismatchError
from speech3.hmm import Hmm
from speech3.sequence.forward_backward import Attached, value_and_gradient
from speech3.sequence.graph import (
    START,
    UNSEEN,
    SequenceGraph,
    average_occupancy,
    estimate_phone_lm,
    graph_arrays,
    sources,
)

_INITIAL_FRAMES = 300  # as many seconds as in `speech3.sequence.lfmmi`


def senone_graph(
    senones_N: np.ndarray, offsets_U1: np.ndarray, num_senones: int, extra_lm_states: int
) -> SequenceGraph:
    """The graph of the alignment of a corpus.

    Parameters
    ----------
    senones_N, offsets_U1
        The senone of each frame, and the first frame of each utterance and the end.
    extra_lm_states
        How many pairs of senones, the most frequent ones, are histories; all other histories are single senones.
    """
    said = [runs(senones_N[a:b]) for a, b in pairwise(offsets_U1.tolist())]
    lm = estimate_phone_lm(((senones + 1).tolist() for senones in said), extra_lm_states, history=1)
    frames_S = np.bincount(senones_N, minlength=num_senones)
    runs_S = np.bincount(np.concatenate(said), minlength=num_senones)
    stay_S = 1 - runs_S / np.maximum(1, frames_S)
    pdf_J = np.maximum(lm.phone_J - 1, 0)
    stay_J = stay_S[pdf_J]
    stay_J[START] = 0
    weight_A = lm.prob_A * (1 - stay_J)[sources(lm)]
    initial_J = average_occupancy(lm, stay_J, _INITIAL_FRAMES)
    return SequenceGraph(**graph_arrays(lm, num_senones, pdf_J, pdf_J, stay_J, weight_A, initial_J))


def silence_senones(hmm: Hmm) -> np.ndarray:
    """(S,) bool: the senones of silence and noise, the phones without context (Kaldi's list of silence phones)."""
    return senones_of(hmm, hmm.lexicon.context_free)


def senones_of(hmm: Hmm, phones: Iterable[int]) -> np.ndarray:
    """(S,) bool: the senones that the phones have in any context."""
    found_S, sides = np.zeros(hmm.num_pdfs, np.bool_), range(len(hmm.lexicon.phones) + 1)
    for phone in phones:
        found_S[hmm.tree.pdfs_of(np.array([(left, phone, right) for left in sides for right in sides]))] = True
    return found_S


def runs(senones_T: np.ndarray) -> np.ndarray:
    """The senones of an utterance, with one frame for each run of the same senone."""
    return senones_T[np.flatnonzero(np.diff(senones_T, prepend=-1))]


def path_log_weights(graph: SequenceGraph, senones_BT: np.ndarray, leak: float) -> np.ndarray:
    """Log of the total weight, without scores, of the paths through these senones, (B,) float64.

    A senone that the graph lacks has the weight of an unseen phone, and any state may follow it.
    """
    order_J = np.argsort(graph.first_J, kind="stable").astype(np.int32)
    ptr_S1 = np.searchsorted(graph.first_J[order_J], np.arange(graph.num_pdfs + 1))
    arcs = graph.in_ptr_J1, graph.in_src_A, graph.in_weight_A
    return _path_log_weights(senones_BT, ptr_S1, order_J, graph.loops_J, *arcs, graph.initial_J, leak)


@numba.njit(cache=True, nogil=True)
def _path_log_weights(senones, of_senone, order, loops, ptr, src, weight, initial, leak):  # type: ignore[no-untyped-def]
    chunks, frames = senones.shape
    log_weight = np.zeros(chunks)
    alpha, new = np.zeros(len(loops)), np.zeros(len(loops))  # without the leak, as in `forward_backward`
    for c in range(chunks):
        alpha[:] = 0
        anywhere, before = 1.0, order[:0]
        for t in range(frames):
            states, total = order[of_senone[senones[c, t]] : of_senone[senones[c, t] + 1]], 0.0
            for j in states:
                new[j] = loops[j] * (alpha[j] + anywhere * initial[j])
                for k in range(ptr[j], ptr[j + 1]):
                    new[j] += weight[k] * (alpha[src[k]] + anywhere * initial[src[k]])
                total += new[j]
            alpha[before] = 0
            if total > 0:
                for j in states:
                    alpha[j] = new[j] / total
                log_weight[c] += math.log(total)
            else:
                log_weight[c] += math.log(UNSEEN)
            anywhere, before = leak, states
    return log_weight


@dataclass(frozen=True, eq=False)
class Discriminative:
    """The loss of a minibatch of chunks, for any network with an output per frame; picklable."""

    graph: SequenceGraph
    log_prior_S: np.ndarray  # float32, natural logarithms of the senones' relative frequencies
    smbr: bool  # whether the criterion is sMBR instead of MMI
    acoustic_scale: float
    boost: float = 0.0  # boost of MMI; 0: not boosted
    leaky_hmm_coefficient: float = 0.01  # leak probability of the leaky HMM
    cross_entropy: float = 0.0  # weight of frame cross-entropy, added to the criterion
    # bool: the senones of silence and noise (`silence_senones`); None: none are known
    silence_S: np.ndarray | None = None

    def __call__(self, y_BTS: Tensor, senones_N: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss over frames, and in how many of them the network's largest output is the alignment's senone."""
        senones_BT = senones_N.view(y_BTS.shape[:2])
        if y_BTS.shape[2] != self.graph.num_pdfs:
            raise MismatchError(
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
        log_z_B, posterior_BTS = value_and_gradient(boosted_BTS, self.graph, self.leaky_hmm_coefficient)
        weight_B = path_log_weights(self.graph, senones_BT.cpu().numpy(), self.leaky_hmm_coefficient)
        said_B = scores_BTS.gather(2, own_BT1).sum((1, 2), dtype=torch.float64) + torch.from_numpy(weight_B).to(log_z_B)
        return Attached.apply(scores_BTS, log_z_B, posterior_BTS) - said_B

    def _smbr(self, scores_BTS: Tensor, senones_BT: Tensor) -> Tensor:
        """Expected number of wrong frames of each chunk, (B,) float64."""
        right_BTS = torch.zeros_like(scores_BTS)
        if self.silence_S is not None:
            silence_S = torch.from_numpy(self.silence_S).to(scores_BTS)
            right_BTS += silence_S[senones_BT][:, :, None] * silence_S
        right_BTS.scatter_(2, senones_BT[:, :, None], 1)
        right_B, gradient_BTS = value_and_gradient(scores_BTS, self.graph, self.leaky_hmm_coefficient, right_BTS)
        return senones_BT.shape[1] - Attached.apply(scores_BTS, right_B, gradient_BTS)
