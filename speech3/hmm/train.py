"""The bootstrap: flat start, monophone GMMs, tied-triphone GMMs (Kaldi's train_mono.sh and train_deltas.sh)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from speech3.config import HmmConfig, MonophoneConfig, TriphoneConfig
from speech3.errors import Speech3Error
from speech3.hmm import passes
from speech3.hmm.clustering import build_tree, merge_stats
from speech3.hmm.gmm import MIN_VARIANCE, Gmm, split, split_targets, update
from speech3.hmm.lexicon import Lexicon
from speech3.hmm.model import Hmm
from speech3.hmm.passes import Pass
from speech3.hmm.tree import monophone_tree
from speech3.hmm.workers import Workers
from speech3.io.progress import Metrics, progress

FIRST_SELF_LOOP = 0.75


@dataclass(frozen=True, eq=False)
class GmmSystem:
    """A GMM-HMM recogniser's acoustic model, and the training utterances it could not align, with reasons."""

    hmm: Hmm
    gmm: Gmm
    failed: dict[str, str]


def train_monophone(
    workers: Workers, lexicon: Lexicon, config: HmmConfig, generator: np.random.Generator, metrics: Metrics
) -> GmmSystem:
    """Train context-independent GMMs from a flat start.

    Raises
    ------
    Speech3Error
        No utterance is long enough for its phones.
    """
    tree = monophone_tree(len(lexicon.phones))
    hmm = Hmm(lexicon, tree, np.full(tree.num_pdfs, FIRST_SELF_LOOP))
    sums = workers.run(passes.total_variance)
    count, first, second = (sum(part[i] for part in sums) for i in range(3))
    mean = first / count
    var = np.maximum(second / count - mean**2, MIN_VARIANCE)
    gmm = _one_gaussian_each(np.tile(mean, (hmm.num_pdfs, 1)), np.tile(var, (hmm.num_pdfs, 1)))
    workers.run(passes.flat_start, hmm)
    system = _reestimate(workers, hmm, gmm)
    return _train(workers, *system, config, config.mono, generator, metrics, "mono")


def train_triphone(
    workers: Workers, mono: GmmSystem, config: HmmConfig, generator: np.random.Generator, metrics: Metrics
) -> GmmSystem:
    """Grow a tree on the monophone's alignments and train a GMM for each of its leaves."""
    if not any(workers.run(passes.alignments)):
        workers.run(passes.realign, mono.hmm, mono.gmm, config.beam, config.retry_beam)
    data = merge_stats(workers.run(passes.context_stats))
    tree = build_tree(data, mono.hmm.lexicon, config.tri.leaves, config.tri.min_leaf_frames)
    hmm = Hmm(mono.hmm.lexicon, tree, np.full(tree.num_pdfs, FIRST_SELF_LOOP))
    dim = (data.stats.shape[1] - 1) // 2
    leaf = np.array([tree.pdf(*context) for context in data.context.tolist()])
    total = np.zeros((tree.num_pdfs, data.stats.shape[1]))
    np.add.at(total, leaf, data.stats)
    everything = total.sum(0)
    total[total[:, 0] < 1] = everything  # a phone that the training data lack gets the average frame's Gaussian
    mean = total[:, 1 : 1 + dim] / total[:, :1]
    var = np.maximum(total[:, 1 + dim :] / total[:, :1] - mean**2, MIN_VARIANCE)
    system = _reestimate(workers, hmm, _one_gaussian_each(mean, var))
    return _train(workers, *system, config, config.tri, generator, metrics, "tri")


def _one_gaussian_each(mean: np.ndarray, var: np.ndarray) -> Gmm:
    return Gmm(np.arange(len(mean) + 1), np.ones(len(mean)), mean, var)


def _reestimate(workers: Workers, hmm: Hmm, gmm: Gmm) -> tuple[Hmm, Gmm, Pass]:
    parts = workers.run(passes.collect, hmm, gmm)
    total = parts[0]
    for part in parts[1:]:
        total.stats += part.stats
        total.frames += part.frames
        total.visits += part.visits
    if not total.stats.frames:
        raise Speech3Error("no utterance could be aligned: are transcripts and recordings of the same data directory?")
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
    for iteration in progress(_upto(stage.iterations), stage.iterations, f"{name} GMM"):
        if iteration in stage.realign:
            failed = _merged(workers.run(passes.realign, hmm, gmm, config.beam, config.retry_beam))
        hmm, gmm, total = _reestimate(workers, hmm, gmm)
        if iteration <= stage.max_iteration_increase:
            grown = first + (stage.gaussians - first) * iteration // stage.max_iteration_increase
            targets = split_targets(total.frames, max(grown, first), config.power)
            gmm = split(gmm, targets, generator)
        metrics.write(
            event="gmm", system=name, iteration=iteration, gaussians=len(gmm.weight),
            loglike_per_frame=total.stats.loglike / total.stats.frames, failed=len(failed),
        )  # fmt: skip
    failed = _merged(workers.run(passes.realign, hmm, gmm, config.beam, config.retry_beam))
    return GmmSystem(hmm, gmm, failed)


def _upto(last: int) -> Sequence[int]:
    return range(1, last + 1)


def _merged(parts: list[dict[str, str]]) -> dict[str, str]:
    return {utterance: reason for part in parts for utterance, reason in part.items()}
