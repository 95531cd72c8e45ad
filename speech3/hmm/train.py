"""GMM training: flat start, monophones, tied triphones (Kaldi's train_mono.sh and train_deltas.sh).

First the sizes for an amount of speech, used where the config has 0: powers of the number of hours. Up to two hours,
the curves pass through the best values for fsdd (a quarter of an hour: 80 leaves, 250 Gaussians, 200 for monophones)
and minilibri (2.24 hours: 800, 8,000, 1,000); above that they grow as slowly as in Kaldi's recipes. Then the passes
over the data, each of which runs in every process of `Workers`; then the systems trained by them.

Axes: T frames, D dimensions, J pdfs, U pdfs of a transcript, S its states, K rows of scores.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from speech3.config import HmmConfig, MonophoneConfig, TransformedConfig, TriphoneConfig
from speech3.errors import DataError, counted
from speech3.hmm.clustering import (
    ContextStats,
    alignment_stats,
    build_tree,
    group_numbers,
    merge_stats,
    merged_stats,
    read_phone_sets,
)
from speech3.hmm.gmm import MIN_VARIANCE, Gmm, GmmStats, Sums, accumulate, split, split_targets, update, zero_stats
from speech3.hmm.model import (
    FIRST_AND_LOOP,
    THREE_STATES,
    Hmm,
    Tree,
    context_free_tree,
    monophone_tree,
    num_outputs,
)
from speech3.hmm.pronunciation_probs import estimated_along
from speech3.hmm.transcript import Alignment, TranscriptGraph, best_path, equal_alignment, evened_out, from_path
from speech3.hmm.workers import StoredAlignments, Workers, WorkerShare
from speech3.language import Lexicon
from speech3.runtime import Metrics, progress

_LARGEST_LEAVES, _LARGEST_GAUSSIANS = 6000, 60_000
# Pseudo log likelihoods (`Scorer.pseudo_likelihoods`) are clipped to +- this value, in training and after it, so that
# their exponentials, relative to the largest of a frame, do not underflow in float32.
LARGEST_PSEUDO = 30.0
FIRST_SELF_LOOP = 0.75
# Called before an iteration's re-estimation with its number: may change the features of the workers, and the GMMs.
Adjust = Callable[[int, Hmm, Gmm], Gmm]
NOTHING_ALIGNED = "no utterance could be aligned; check that the transcripts belong to the recordings"


def triphone_leaves(hours: float) -> float:
    """Leaves of the triphone tree, unless its roots need more: 800 for minilibri's two hours, at most 6,000."""
    return min(_LARGEST_LEAVES, 360 * hours, 520 * hours**0.55)


def biphone_leaves(hours: float, groups: int) -> int:
    """Leaves of LF-MMI's left-biphone tree: five eighths of the triphone tree's; 500 for minilibri's two hours."""
    roots = groups * FIRST_AND_LOOP.states
    return max(round(1.2 * roots), round(0.625 * triphone_leaves(hours)))


def lfmmi_passes(hours: float, *, started: bool = False) -> int:
    """Passes of LF-MMI over the speech: 50 over an hour or less, 40 over two hours.

    With Muon, 40 were better than 20 on two hours (`recipes/minilibri`). On 10, 20 and 40 minutes only 50 were tried
    (`recipes/any`); on ten they were as good as 100 with AdamW. The formula was not tested on larger amounts; it gives
    5 for 100 hours, about as many as in Kaldi's recipes.

    `started`: the network starts from a trained one: half as many.
    """
    passes = min(50, max(4, round(40 * (2 / hours) ** 0.53)))
    return -(-passes // 2) if started else passes


def with_sizes(config: HmmConfig, hours: float, groups: int) -> HmmConfig:
    """Fill in ``mono.gaussians``, ``aligner.gaussians``, ``tri.leaves`` and ``tri.gaussians`` where they are 0.

    `groups`: number of groups of phones that share a root (`phone_groups`): each needs a leaf and a Gaussian per state.
    """
    roots = groups * THREE_STATES.states
    mono = config.mono.gaussians or max(roots, min(1000, round(545 * hours**0.75)))
    aligner = config.aligner.gaussians or max(roots, min(1000, round(400 * hours**0.5)))
    leaves = config.tri.leaves or max(round(1.2 * roots), round(triphone_leaves(hours)))
    gaussians = config.tri.gaussians or max(
        leaves, round(min(_LARGEST_GAUSSIANS, 2500 * hours**1.45, 5000 * hours**0.6))
    )
    return config.model_copy(
        update={
            "mono": config.mono.model_copy(update={"gaussians": mono}),
            "aligner": config.aligner.model_copy(update={"gaussians": aligner}),
            "tri": config.tri.model_copy(update={"leaves": leaves, "gaussians": gaussians}),
        }
    )


def sized_transformed(config: HmmConfig, hours: float) -> HmmConfig:
    """Fill in the sizes of ``lda`` and ``sat`` where they are 0, when those of ``tri`` are known.

    LDA has those of `tri`. SAT has those, too, up to an hour (fsdd, digits), and a quarter more from two hours
    (minilibri) on, since its pdfs are compact enough for them.
    """
    tri, more = config.tri, min(1.25, max(1.0, 1.25 * (hours / 2) ** 0.32))
    changed = {}
    for name, stage, factor in (("lda", config.lda, 1.0), ("sat", config.sat, more)):
        if stage:
            sizes = {
                "leaves": stage.leaves or round(factor * tri.leaves),
                "gaussians": stage.gaussians or round(factor * tri.gaussians),
            }
            changed[name] = stage.model_copy(update=sizes)
    return config.model_copy(update=changed)


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
class Pass(Sums):
    """The statistics that one pass over a share accumulates."""

    stats: GmmStats
    frames: np.ndarray  # (J,) frames of each pdf
    visits: np.ndarray  # (J,) how often a path enters a state of each pdf


def flat_start(share: WorkerShare, lexicon: Lexicon) -> dict[str, str]:
    """Align by equal division; return the utterances that are too short, with the reason."""
    failed = {}
    for utterance, words in share.words.items():
        alignment = equal_alignment(lexicon, words, len(share.feats[utterance]))
        if alignment is None:
            failed[utterance] = f"{counted(len(share.feats[utterance]), 'frame')}: fewer than its phones need"
        else:
            share.alignments[utterance] = alignment
    return failed


def divide_equally(share: WorkerShare) -> None:
    before, share.alignments = share.alignments, StoredAlignments()
    for utterance, alignment in before.items():
        share.alignments[utterance] = evened_out(alignment)


def realign(
    share: WorkerShare,
    hmm: Hmm,
    scorer: Scorer,
    beam: float,
    retry_beam: float,
    acoustic_scale: float = 0.1,
    label: str = "",
) -> dict[str, str]:
    """Align by Viterbi; those that fail even at `retry_beam` lose their alignment and are returned with the reasons.

    The progress is shown if it has a `label`.
    """
    failed = {}
    share.alignments.clear()
    for utterance in share.shown(label):
        scored = score_one(share, utterance, hmm, scorer)
        found = scored if isinstance(scored, str) else search_one(scored, hmm, (beam, retry_beam), acoustic_scale)
        if isinstance(found, Alignment):
            share.alignments[utterance] = found
        else:
            failed[utterance] = found
    return failed


@dataclass(frozen=True, eq=False)
class Scored:
    """The HMM of an utterance's transcript, and the log likelihoods (T, U) of its U pdfs, which `pdf_U` lists."""

    graph: TranscriptGraph
    pdf_U: np.ndarray
    loglikes_TU: np.ndarray

    def columns(self, pdfs: np.ndarray) -> np.ndarray:
        """The columns of `loglikes_TU` that belong to these pdfs, int32 of the same shape."""
        return np.searchsorted(self.pdf_U, pdfs).astype(np.int32)


def score_one(share: WorkerShare, utterance: str, hmm: Hmm, scorer: Scorer) -> Scored | str:
    """Score one utterance for its alignment; return the reason if it is too short for its phones."""
    graph, feats_TD = share.graph(utterance, hmm), share.feats[utterance]
    rows = num_outputs(len(feats_TD), scorer.subsampling)
    if rows < graph.min_frames:
        phones = f"its phones, which need at least {graph.min_frames}"
        if scorer.subsampling == 1:
            return f"{counted(rows, 'frame')}: too few for {phones}"
        return (
            f"{counted(rows, 'output')} ({counted(len(feats_TD), 'frame')} / {scorer.subsampling}): too"
            f" few for {phones}"
        )
    used = np.unique(graph.pdf)
    return Scored(graph, used, scorer.loglikes(feats_TD, used))


def search_one(scored: Scored, hmm: Hmm, beams: tuple[float, ...], acoustic_scale: float) -> Alignment | str:
    """Find the best path with the first of `beams` that has one; return the reason if none does."""
    column_S = scored.columns(scored.graph.pdf)
    for beam in beams:
        if best := best_path(scored.graph, hmm, scored.loglikes_TU, column_S, beam, acoustic_scale):
            return from_path(scored.graph, *best)
    return f"no path within a beam of {beams[-1]:g}; check that the transcript matches the recording"


def collect(share: WorkerShare, hmm: Hmm, gmm: Gmm) -> Pass:
    """Accumulate the statistics of GMMs and transitions along the current alignments."""
    stats = zero_stats(gmm)
    frames, visits = np.zeros(gmm.num_pdfs), np.zeros(gmm.num_pdfs)
    for utterance, alignment in share.alignments.items():
        pdf_T = alignment.pdfs(hmm)
        accumulate(gmm, stats, share.feats[utterance], pdf_T)
        position = alignment.segment * hmm.topology.states + alignment.states
        entered = np.concatenate([[True], position[1:] != position[:-1]])
        frames += np.bincount(pdf_T, minlength=gmm.num_pdfs)
        visits += np.bincount(pdf_T[entered], minlength=gmm.num_pdfs)
    return Pass(stats, frames, visits)


def context_stats(share: WorkerShare) -> list[ContextStats]:
    """Accumulate one Gaussian's statistics per (left, phone, right, state) along the current alignments, if any."""
    return merged_stats(alignment_stats(found, share.feats[utterance]) for utterance, found in share.alignments.items())


@dataclass(frozen=True, eq=False)
class GmmSystem:
    """A GMM-HMM acoustic model, and the training utterances that it could not align, with the reasons."""

    hmm: Hmm
    gmm: Gmm
    failed: dict[str, str]


def train_monophone(
    workers: Workers,
    lexicon: Lexicon,
    config: HmmConfig,
    generator: np.random.Generator,
    metrics: Metrics,
    first: GmmSystem | None = None,
) -> GmmSystem:
    """Train context-independent GMMs from a flat start, or from the alignment that the system `first` makes.

    `first`: with the phones of `lexicon`.
    Raises Speech3Error: no utterance is long enough for its phones, or none can be aligned.
    """
    if first:
        failed = merged(workers.run(realign, first.hmm, first.gmm, config.beam, config.retry_beam))
    else:
        failed = _align_flat(workers, lexicon, config)
    hmm, gmm = _single_gaussians(_context_stats(workers, failed), lexicon, monophone_tree(group_numbers(lexicon)))
    return _train(workers, *reestimate(workers, hmm, gmm), config, config.mono, generator, metrics, "mono")


def _align_flat(workers: Workers, lexicon: Lexicon, config: HmmConfig) -> dict[str, str]:
    """Align with phones that were trained from nothing; return the utterances that are too short, with the reason.

    Kaldi's flat start divides each utterance's frames equally among the states of its phones and trains from there.
    With a small vocabulary that ends in a poor optimum, because nothing distinguishes the states of neighbouring
    phones. So the phones are trained first, with one Gaussian each, then their states.
    """
    number_P = group_numbers(lexicon)
    short = merged(workers.run(flat_start, lexicon))
    one_pdf_each = context_free_tree(np.repeat(number_P[:, None], THREE_STATES.states, axis=1))
    hmm, gmm = _single_gaussians(_context_stats(workers, short), lexicon, one_pdf_each)
    iterations = config.mono.phone_iterations
    for _ in progress(range(iterations), iterations, "mono GMM, phones as a whole"):
        workers.run(realign, hmm, gmm, config.beam, config.retry_beam)
        hmm, gmm, _ = reestimate(workers, hmm, gmm)
    workers.run(divide_equally)
    return short


def _context_stats(workers: Workers, failed: dict[str, str] | None = None) -> ContextStats:
    parts = [part for parts in workers.run(context_stats) for part in parts]
    if not parts:
        reasons = [f"\n  {utterance}: {reason}" for utterance, reason in sorted((failed or {}).items())[:5]]
        raise DataError(NOTHING_ALIGNED + "".join(reasons))
    return merge_stats(parts)


def _single_gaussians(data: ContextStats, lexicon: Lexicon, tree: Tree) -> tuple[Hmm, Gmm]:
    hmm = Hmm(lexicon, tree, np.full(tree.num_pdfs, FIRST_SELF_LOOP))
    leaf = np.array([tree.pdf(*context) for context in data.context.tolist()])
    total = np.zeros((tree.num_pdfs, data.stats.shape[1]))
    np.add.at(total, leaf, data.stats)
    total[total[:, 0] < 1] = total.sum(0)  # a leaf without training data gets the Gaussian of all frames
    dim = (data.stats.shape[1] - 1) // 2
    mean = total[:, 1 : 1 + dim] / total[:, :1]
    var = np.maximum(total[:, 1 + dim :] / total[:, :1] - mean**2, MIN_VARIANCE)
    return hmm, Gmm(np.arange(len(mean) + 1), np.ones(len(mean)), mean, var)


def train_triphone(
    workers: Workers, mono: GmmSystem, config: HmmConfig, generator: np.random.Generator, metrics: Metrics
) -> GmmSystem:
    """Grow a tree from the monophone alignments, which the workers hold, and train a GMM for each of its leaves.

    Raises Speech3Error: no utterance is aligned, the questions cannot be read, or ``tri.leaves`` is smaller than the
    number of roots.
    """
    system = tied_states(workers, mono.hmm.lexicon, config, config.tri, generator, metrics, "tri")
    if not config.lexicon_probs:
        return system
    return replace(system, hmm=replace(system.hmm, lexicon=estimated_along(workers, mono.hmm.lexicon)))


def tied_states(
    workers: Workers,
    lexicon: Lexicon,
    config: HmmConfig,
    stage: TriphoneConfig | TransformedConfig,
    generator: np.random.Generator,
    metrics: Metrics,
    name: str,
    adjust: Adjust | None = None,
) -> GmmSystem:
    """Grow a tree from the alignments and features that the workers hold, and train GMMs for its leaves.

    `name`: the system, for messages and metrics; its config is ``hmm.NAME``.
    """
    data = _context_stats(workers)
    extra = read_phone_sets(config.extra_questions, lexicon) if config.extra_questions else []
    tree = build_tree(data, lexicon, stage.leaves, stage.min_leaf_frames, extra, key=f"hmm.{name}.leaves")
    hmm, gmm = _single_gaussians(data, lexicon, tree)
    return _train(workers, *reestimate(workers, hmm, gmm), config, stage, generator, metrics, name, adjust)


def reestimate(workers: Workers, hmm: Hmm, gmm: Gmm) -> tuple[Hmm, Gmm, Pass]:
    """One update of Gaussians and transitions along the alignments that the workers hold, and its statistics."""
    total = workers.total(collect, hmm, gmm)
    if not total.stats.frames:
        raise DataError(NOTHING_ALIGNED)
    self_loop = np.where(total.frames > 0, 1.0 - total.visits / np.maximum(total.frames, 1), FIRST_SELF_LOOP)
    return replace(hmm, self_loop=np.clip(self_loop, 0.01, 0.99)), update(gmm, total.stats), total


def _train(
    workers: Workers,
    hmm: Hmm,
    gmm: Gmm,
    total: Pass,
    config: HmmConfig,
    stage: MonophoneConfig | TriphoneConfig | TransformedConfig,
    generator: np.random.Generator,
    metrics: Metrics,
    name: str,
    adjust: Adjust | None = None,
) -> GmmSystem:
    first = len(gmm.weight)
    failed: dict[str, str] = {}
    last = stage.iterations + 1  # after the iterations, only the alignment with their result
    for iteration in progress(range(1, last + 1), last, f"{name} GMM"):
        if iteration in (*stage.realign, last):
            failed = merged(workers.run(realign, hmm, gmm, config.beam, config.retry_beam))
        if iteration == last:
            break
        gmm = adjust(iteration, hmm, gmm) if adjust else gmm
        hmm, gmm, total = reestimate(workers, hmm, gmm)
        if iteration <= stage.max_iteration_increase:
            grown = first + (stage.gaussians - first) * iteration // stage.max_iteration_increase
            targets = split_targets(total.frames, max(grown, first), config.power)
            gmm = split(gmm, targets, generator)
        loglike = total.stats.loglike / total.stats.frames
        found = {"gaussians": len(gmm.weight), "loglike_per_frame": loglike, "failed": len(failed)}
        metrics.write(event="gmm", system=name, iteration=iteration, **found)
    return GmmSystem(hmm, gmm, failed)


def merged(parts: list[dict[str, str]]) -> dict[str, str]:
    return {utterance: reason for part in parts for utterance, reason in part.items()}
