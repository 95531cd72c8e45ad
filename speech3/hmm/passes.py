"""The passes over the data of GMM training and alignment; each runs in every process of `Workers`."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from speech3.hmm import gmm as mixtures
from speech3.hmm.alignment import Alignment, equal_alignment, evened_out, from_path
from speech3.hmm.clustering import ContextStats, merged_stats
from speech3.hmm.gmm import Gmm, GmmStats
from speech3.hmm.model import Hmm
from speech3.hmm.probabilities import Counts, Expected, SilenceAfter, count, expected
from speech3.hmm.stored import StoredAlignments
from speech3.hmm.topology import num_outputs
from speech3.hmm.tree import CENTRE, LEFT, RIGHT
from speech3.hmm.viterbi import best_path
from speech3.hmm.workers import Share
from speech3.lexicon.lexicon import Lexicon

# Pseudo log likelihoods (`Scorer.pseudo_likelihoods`) are clipped to +- this value, in training and after it, so that
# their exponentials, relative to the largest of a frame, do not underflow in float32.
LARGEST_PSEUDO = 30.0


class Scorer(Protocol):
    """Anything that gives log likelihoods: a GMM, or a network's log posteriors minus log priors."""

    @property
    def subsampling(self) -> int:
        """Frames per row of scores."""

    @property
    def pseudo_likelihoods(self) -> bool:
        """Whether the scores were trained to be used at acoustic scale 1, as in LF-MMI."""

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        """(K, U) float32 for the given pdfs (None: all), one row per `subsampling` frames."""


@dataclass(eq=False)
class Pass:
    """The statistics that one pass over a share accumulates."""

    stats: GmmStats
    frames: np.ndarray  # (J,) frames of each pdf
    visits: np.ndarray  # (J,) how often a path enters a state of each pdf


def flat_start(share: Share, lexicon: Lexicon) -> dict[str, str]:
    """Align by equal division; return the utterances that are too short, with the reason."""
    failed = {}
    for utterance, words in share.words.items():
        alignment = equal_alignment(lexicon, words, len(share.feats[utterance]))
        if alignment is None:
            failed[utterance] = f"{len(share.feats[utterance])} frames are fewer than its phones need"
        else:
            share.alignments[utterance] = alignment
    return failed


def divide_equally(share: Share) -> None:
    """Divide the frames of each phone equally among its states."""
    before, share.alignments = share.alignments, StoredAlignments()
    for utterance, alignment in before.items():
        share.alignments[utterance] = evened_out(alignment)


def realign(
    share: Share, hmm: Hmm, scorer: Scorer, beam: float, retry_beam: float, acoustic_scale: float = 0.1, label: str = ""
) -> dict[str, str]:
    """Align by Viterbi; those that fail even at `retry_beam` lose their alignment and are returned with the reasons.

    The progress is shown if it has a `label`.
    """
    failed = {}
    share.alignments.clear()
    for utterance in share.shown(label) if label else share.words:
        found = align_one(share, utterance, hmm, scorer, (beam, retry_beam), acoustic_scale)
        if isinstance(found, Alignment):
            share.alignments[utterance] = found
        else:
            failed[utterance] = found
    return failed


def align_one(
    share: Share, utterance: str, hmm: Hmm, scorer: Scorer, beams: tuple[float, ...], acoustic_scale: float
) -> Alignment | str:
    """Align one utterance with the first of `beams` that succeeds; return the reason if none does."""
    graph, feats_TD = share.graph(utterance, hmm), share.feats[utterance]
    rows = num_outputs(len(feats_TD), scorer.subsampling)
    if rows < graph.min_frames:
        phones = f"its phones, which need at least {graph.min_frames}"
        if scorer.subsampling == 1:
            return f"{rows} frames are too few for {phones}"
        return f"{rows} outputs ({len(feats_TD)} frames / {scorer.subsampling}) are too few for {phones}"
    used, column = np.unique(graph.pdf, return_inverse=True)
    loglikes_TU = scorer.loglikes(feats_TD, used)
    for beam in beams:
        if best := best_path(graph, hmm, loglikes_TU, column.astype(np.int32), beam, acoustic_scale):
            return from_path(graph, *best)
    return f"no path within a beam of {beams[-1]:g}; check that the transcript matches the recording"


def collect(share: Share, hmm: Hmm, gmm: Gmm) -> Pass:
    """Accumulate the statistics of GMMs and transitions along the current alignments."""
    stats = mixtures.zero_stats(gmm)
    frames, visits = np.zeros(gmm.num_pdfs), np.zeros(gmm.num_pdfs)
    for utterance, alignment in share.alignments.items():
        pdf_T = alignment.pdfs(hmm)
        mixtures.accumulate(gmm, stats, share.feats[utterance], pdf_T)
        position = alignment.segment * hmm.topology.states + alignment.states
        entered = np.concatenate([[True], position[1:] != position[:-1]])
        frames += np.bincount(pdf_T, minlength=gmm.num_pdfs)
        visits += np.bincount(pdf_T[entered], minlength=gmm.num_pdfs)
    return Pass(stats, frames, visits)


def context_stats(share: Share) -> list[ContextStats]:
    """Accumulate one Gaussian's statistics per (left, phone, right, state) along the current alignments, if any."""
    return merged_stats(alignment_stats(found, share.feats[utterance]) for utterance, found in share.alignments.items())


def alignment_stats(
    alignment: Alignment, feats_TD: np.ndarray, sides: tuple[int, ...] = (LEFT, CENTRE, RIGHT)
) -> ContextStats:
    """One Gaussian's statistics per context of one utterance; a context may occur more than once.

    In the contexts, phones on other sides than `sides` are 0.
    """
    feats_TD = feats_TD.astype(np.float64)
    windows = alignment.windows()
    windows[:, [side for side in (LEFT, CENTRE, RIGHT) if side not in sides]] = 0
    context = np.column_stack([windows[alignment.segment], alignment.states]).astype(np.int32)
    ones = np.ones((len(feats_TD), 1))
    return _summed(context, np.concatenate([ones, feats_TD, feats_TD * feats_TD], axis=1))


def _summed(context: np.ndarray, rows: np.ndarray) -> ContextStats:
    change = np.flatnonzero(np.concatenate([[True], (context[1:] != context[:-1]).any(1)]))
    return ContextStats(context[change], np.add.reduceat(rows, change))


def pronunciations(share: Share) -> Counts:
    """Count pronunciations and silences along the current alignments."""
    return count(share.alignments, share.words)


def expected_silences(share: Share, after: SilenceAfter) -> Expected:
    """Sum up how probable silence is before each pronunciation, along the current alignments."""
    return expected(share.alignments, share.words, after)
