"""The bootstrap: flat start, monophone GMMs, tied-triphone GMMs (Kaldi's train_mono.sh and train_deltas.sh)."""

from dataclasses import dataclass, replace

import numpy as np

from speech3.config import HmmConfig, MonophoneConfig, TriphoneConfig
from speech3.errors import Speech3Error
from speech3.hmm import passes
from speech3.hmm.clustering import ContextStats, build_tree, group_numbers, merge_stats, read_phone_sets
from speech3.hmm.gmm import MIN_VARIANCE, Gmm, split, split_targets, update
from speech3.hmm.model import Hmm
from speech3.hmm.passes import Pass
from speech3.hmm.probabilities import Counts, Expected, estimate
from speech3.hmm.topology import THREE_STATES
from speech3.hmm.tree import Tree, context_free_tree, monophone_tree
from speech3.hmm.workers import Workers
from speech3.io.progress import Metrics, progress
from speech3.lexicon.lexicon import Lexicon

FIRST_SELF_LOOP = 0.75
NOTHING_ALIGNED = "no utterance could be aligned; check that the transcripts belong to the recordings"


@dataclass(frozen=True, eq=False)
class GmmSystem:
    """A GMM-HMM acoustic model, and the training utterances that it could not align, with the reasons."""

    hmm: Hmm
    gmm: Gmm
    failed: dict[str, str]


def train_monophone(
    workers: Workers, lexicon: Lexicon, config: HmmConfig, generator: np.random.Generator, metrics: Metrics
) -> GmmSystem:
    """Train context-independent GMMs from a flat start.

    Kaldi's flat start divides each utterance's frames equally among the states of its phones and trains from there.
    With a small vocabulary that ends in a poor optimum, because nothing distinguishes the states of neighbouring
    phones. So the phones are trained first, with one Gaussian each, then their states.

    Raises
    ------
    Speech3Error
        No utterance is long enough for its phones, or none can be aligned.
    """
    number_P = group_numbers(lexicon)
    short = _merged(workers.run(passes.flat_start, lexicon))
    one_pdf_each = context_free_tree(np.repeat(number_P[:, None], THREE_STATES.states, axis=1))
    hmm, gmm = _single_gaussians(_context_stats(workers, short), lexicon, one_pdf_each)
    iterations = config.mono.phone_iterations
    for _ in progress(range(iterations), iterations, "mono GMM, phones as a whole"):
        workers.run(passes.realign, hmm, gmm, config.beam, config.retry_beam)
        hmm, gmm, _ = _reestimate(workers, hmm, gmm)
    workers.run(passes.divide_equally)
    hmm, gmm = _single_gaussians(_context_stats(workers), lexicon, monophone_tree(number_P))
    return _train(workers, *_reestimate(workers, hmm, gmm), config, config.mono, generator, metrics, "mono")


def _context_stats(workers: Workers, failed: dict[str, str] | None = None) -> ContextStats:
    parts = [part for parts in workers.run(passes.context_stats) for part in parts]
    if not parts:
        reasons = [f"\n  {utterance}: {reason}" for utterance, reason in sorted((failed or {}).items())[:5]]
        raise Speech3Error(NOTHING_ALIGNED + "".join(reasons))
    return merge_stats(parts)


def _single_gaussians(data: ContextStats, lexicon: Lexicon, tree: Tree) -> tuple[Hmm, Gmm]:
    """Estimate one Gaussian for each leaf of the tree."""
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

    Raises
    ------
    Speech3Error
        No utterance is aligned, the questions cannot be read, or ``tri.leaves`` is smaller than the number of roots.
    """
    data = _context_stats(workers)
    lexicon = mono.hmm.lexicon
    extra = read_phone_sets(config.extra_questions, lexicon) if config.extra_questions else []
    tree = build_tree(data, lexicon, config.tri.leaves, config.tri.min_leaf_frames, extra)
    hmm, gmm = _single_gaussians(data, lexicon, tree)
    system = _train(workers, *_reestimate(workers, hmm, gmm), config, config.tri, generator, metrics, "tri")
    if not config.lexicon_probs:
        return system
    counts = Counts()
    for part in workers.run(passes.pronunciations):
        counts += part
    expected: Expected = {}
    for found in workers.run(passes.expected_silences, counts.silence_after()):
        expected |= {key: expected.get(key, 0.0) + silences for key, silences in found.items()}
    return replace(system, hmm=replace(system.hmm, lexicon=estimate(lexicon, counts, expected)))


def _reestimate(workers: Workers, hmm: Hmm, gmm: Gmm) -> tuple[Hmm, Gmm, Pass]:
    parts = workers.run(passes.collect, hmm, gmm)
    total = parts[0]
    for part in parts[1:]:
        total.stats += part.stats
        total.frames += part.frames
        total.visits += part.visits
    if not total.stats.frames:
        raise Speech3Error(NOTHING_ALIGNED)
    self_loop = np.where(total.frames > 0, 1.0 - total.visits / np.maximum(total.frames, 1), FIRST_SELF_LOOP)
    return replace(hmm, self_loop=np.clip(self_loop, 0.01, 0.99)), update(gmm, total.stats), total


def _train(
    workers: Workers,
    hmm: Hmm,
    gmm: Gmm,
    total: Pass,
    config: HmmConfig,
    stage: MonophoneConfig | TriphoneConfig,
    generator: np.random.Generator,
    metrics: Metrics,
    name: str,
) -> GmmSystem:
    first = len(gmm.weight)
    failed: dict[str, str] = {}
    last = stage.iterations + 1  # after the iterations, only the alignment with their result
    for iteration in progress(range(1, last + 1), last, f"{name} GMM"):
        if iteration in (*stage.realign, last):
            failed = _merged(workers.run(passes.realign, hmm, gmm, config.beam, config.retry_beam))
        if iteration == last:
            break
        hmm, gmm, total = _reestimate(workers, hmm, gmm)
        if iteration <= stage.max_iteration_increase:
            grown = first + (stage.gaussians - first) * iteration // stage.max_iteration_increase
            targets = split_targets(total.frames, max(grown, first), config.power)
            gmm = split(gmm, targets, generator)
        metrics.write(
            event="gmm", system=name, iteration=iteration, gaussians=len(gmm.weight),
            loglike_per_frame=total.stats.loglike / total.stats.frames, failed=len(failed),
        )  # fmt: skip
    return GmmSystem(hmm, gmm, failed)


def _merged(parts: list[dict[str, str]]) -> dict[str, str]:
    return {utterance: reason for part in parts for utterance, reason in part.items()}
