"""Boosted MMI of GMMs, lattice-free: extended Baum-Welch over a graph of senones (Povey et al. 2008).

The criterion is that of networks (`speech3.sequence.discriminative`). Its derivative with respect to the log likelihood
of a senone in a frame is the acoustic scale times the posterior in the numerator minus that in the denominator. The
positive part of this difference weights the frame in the statistics of the numerator, the negative part in those of the
denominator (``--cancel`` in Kaldi's train_mmi.sh). Then `speech3.hmm.gmm` updates the Gaussians.

Utterances are cut into chunks of about 1.5 s; a chunk may begin in any state. Unknown words are left out, also from the
graph: no decoding graph contains the phone that stands for them, and it fits everything a little.

Axes: B chunks, T frames of a chunk, D dimensions, S senones, N frames of all chunks.
"""

import math
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import torch

from speech3.config import BmmiConfig
from speech3.errors import DataError, MismatchError, TrainingError
from speech3.hmm import (
    Gmm,
    GmmStats,
    Hmm,
    Sums,
    Workers,
    WorkerShare,
    accumulate_weighted,
    extended_baum_welch,
    zero_stats,
)
from speech3.io import IntArkReader
from speech3.language import UNKNOWN
from speech3.runtime import Metrics, say
from speech3.sequence.discriminative import Discriminative, senone_graph, senones_of

_FRAMES = 150  # of a chunk, about
_BATCH = 16  # chunks
_MIN_WEIGHT = 1e-3  # smaller differences of posteriors are left out of the statistics


@dataclass(frozen=True)
class FrameSpan:
    """Frames of an utterance, from `first` up to `end`."""

    utterance: str
    first: int
    end: int

    @property
    def frames(self) -> int:
        return self.end - self.first


@dataclass(eq=False)
class Statistics(Sums):
    """What a pass accumulates; `log_posterior` is that of the alignment among boosted paths, summed over `frames`."""

    numerator: GmmStats
    denominator: GmmStats
    log_posterior: float = 0.0
    frames: int = 0


def unknown_senones(hmm: Hmm) -> np.ndarray:
    """(S,) bool: the senones of phones that occur only in the pronunciation of unknown words."""
    lexicon = hmm.lexicon
    others = {phone for pron in lexicon.pronunciations if pron.word != UNKNOWN for phone in pron.phones}
    noises = [phone for pron in lexicon.by_word.get(UNKNOWN, ()) for phone in pron.phones if phone not in others]
    return senones_of(hmm, {lexicon.phone_ids[phone] for phone in noises} - {lexicon.silence})


def stretches(senones_T: np.ndarray, left_out_S: np.ndarray) -> list[tuple[int, int]]:
    """First frame and end of each stretch of an utterance without the senones that are left out."""
    edges = np.flatnonzero(np.diff(~left_out_S[senones_T], prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def cut(utterance: str, first: int, end: int) -> list[FrameSpan]:
    """Cut a stretch into chunks of nearly equal length, about `_FRAMES`."""
    edges = np.linspace(first, end, max(1, round((end - first) / _FRAMES)) + 1).astype(int).tolist()
    return [FrameSpan(utterance, *each) for each in pairwise(edges)]


def batches(chunks: list[FrameSpan]) -> list[list[FrameSpan]]:
    """Chunks of the same length together, `_BATCH` at most."""
    ordered = sorted(chunks, key=lambda chunk: (chunk.frames, chunk.utterance, chunk.first))
    groups = [list(group) for _, group in groupby(ordered, key=lambda chunk: chunk.frames)]
    return [group[i : i + _BATCH] for group in groups for i in range(0, len(group), _BATCH)]


def collect(
    share: WorkerShare, gmm: Gmm, criterion: Discriminative, alignment: Path, left_out_S: np.ndarray, label: str
) -> Statistics:
    """Accumulate both statistics over a share; `alignment`: an archive with the senone of each frame."""
    senones, found = IntArkReader(alignment), Statistics(zero_stats(gmm), zero_stats(gmm))
    chunks = [c for key in share.words for each in stretches(senones[key], left_out_S) for c in cut(key, *each)]
    for batch in share.shown_of(batches(chunks), label):
        feats_ND, senones_N = (
            np.concatenate([arrays[chunk.utterance][chunk.first : chunk.end] for chunk in batch])
            for arrays in (share.feats, senones)
        )
        log_posterior, weight_NS = weights(gmm, criterion, feats_ND, senones_N, batch[0].frames)
        if not math.isfinite(log_posterior):
            names = ", ".join(sorted({chunk.utterance for chunk in batch}))
            raise TrainingError(
                f"the criterion of boosted MMI is {log_posterior}: the features of one of these utterances are not"
                f" finite, or so far from all GMMs that no path is left: {names}"
            )
        for stats, sign in ((found.numerator, 1), (found.denominator, -1)):
            frame_N, pdf_N = np.nonzero(sign * weight_NS > _MIN_WEIGHT)
            accumulate_weighted(gmm, stats, feats_ND, frame_N, pdf_N, sign * weight_NS[frame_N, pdf_N])
        found.log_posterior += log_posterior
        found.frames += len(feats_ND)
    return found


def weights(
    gmm: Gmm, criterion: Discriminative, feats_ND: np.ndarray, senones_N: np.ndarray, frames: int
) -> tuple[float, np.ndarray]:
    """Log posterior of the chunks' alignment; its gradient with respect to log likelihoods, over the acoustic scale.

    `feats_ND` and `senones_N` have all chunks, of `frames` frames each, one after the other. The gradient is (N, S)
    float32: the posterior in the numerator minus that in the denominator.
    """
    y_BTS = torch.from_numpy(np.ascontiguousarray(gmm.loglikes(feats_ND))).view(-1, frames, gmm.num_pdfs)
    y_BTS.requires_grad_()
    loss, _ = criterion(y_BTS, torch.from_numpy(senones_N.astype(np.int64)))
    loss.backward()
    assert y_BTS.grad is not None
    weight_NS = y_BTS.grad.numpy().reshape(len(feats_ND), -1) * np.float32(-len(feats_ND) / criterion.acoustic_scale)
    return -len(feats_ND) * loss.item(), weight_NS


def train(
    workers: Workers,
    gmm: Gmm,
    config: BmmiConfig,
    alignment: Path,
    left_out_S: np.ndarray,
    metrics: Metrics,
    silence_S: np.ndarray | None = None,
) -> Gmm:
    """Train GMMs further; the graph is estimated on the alignment of the training data.

    Parameters
    ----------
    left_out_S
        bool: senones whose frames are left out, such as `unknown_senones`; their GMMs remain as they are.
    silence_S
        bool: the senones of silence and noise, which on a path are never errors.

    Raises
    ------
    Speech3Error
        The alignment is empty or has other senones, or the criterion is not finite.
    """
    senones = IntArkReader(alignment)
    if (largest := max((int(each.max()) for each in senones.values()), default=0)) >= gmm.num_pdfs:
        raise MismatchError(f"{alignment}: has senone {largest}, but the GMMs only {gmm.num_pdfs}; align again")
    said = [each[first:end] for each in senones.values() for first, end in stretches(each, left_out_S)]
    if not said:
        raise DataError(f"{alignment}: no known word is aligned, so there is nothing to learn from")
    frames, known = sum(map(len, senones.values())), sum(map(len, said))
    if known < frames:
        say(f"  {frames - known:,} of {frames:,} frames ({1 - known / frames:.1%}) are unknown words and are left out")
    offsets_U1 = np.append(0, np.cumsum([len(each) for each in said]))
    graph = senone_graph(np.concatenate(said), offsets_U1, gmm.num_pdfs, config.extra_lm_states)
    say(f"  denominator: {graph.num_states:,} states, {len(graph.in_src_A):,} arcs")
    no_prior_S = np.zeros(gmm.num_pdfs, np.float32)
    criterion = Discriminative(
        graph, no_prior_S, False, config.acoustic_scale, config.boost, config.leaky_hmm_coefficient, silence_S=silence_S
    )
    for iteration in range(1, config.iterations + 1):
        label = f"boosted MMI {iteration}/{config.iterations}"
        total = workers.total(collect, gmm, criterion, alignment, left_out_S, label)
        gmm = extended_baum_welch(gmm, total.numerator, total.denominator, config.tau, config.e)
        value, cancelled = total.log_posterior / total.frames, 1 - total.numerator.count.sum() / total.frames
        measured = {"log_posterior_per_frame": value, "frames": total.frames, "cancelled": cancelled}
        metrics.write(event="bmmi", iteration=iteration, **measured)
        say(f"  iteration {iteration}: log posterior {value:.4f} per frame before the update")
    return gmm
