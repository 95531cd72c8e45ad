"""GMMs on transformed features: LDA and MLLT (Kaldi's train_lda_mllt.sh), then speaker-adaptive training.

First the features as such GMMs see them and the passes over a share that estimate the transforms, then the training,
then the files of such a model in addition to those of any GMM:

    lda.safetensors             `Projection`
    adapted/model.safetensors   of `sat`: the GMMs on adapted features; those of the model directory are their twin
    adapted/prior.safetensors   of `sat`: how many frames of speech each pdf had (`prior_stats`), and settings
    adapted/decode.json         of `sat`: the settings of the passes after the first

Axes: T frames, F features of a frame, D projected values, J pdfs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from speech3.config import HmmConfig, SatConfig
from speech3.errors import DataError, MismatchError
from speech3.hmm import train
from speech3.hmm.gmm import FrameScorer, Gmm, GmmStats, accumulate, load_gmm, twin_of, zero_stats
from speech3.hmm.model import Hmm
from speech3.hmm.train import NOTHING_ALIGNED, GmmSystem, tied_states
from speech3.hmm.transcript import Alignment
from speech3.hmm.transforms import (
    FmllrStats,
    LdaStats,
    MlltStats,
    Projection,
    accumulate_fmllr,
    accumulate_lda,
    accumulate_mllt,
    applied,
    lda,
    mllt,
    prior_stats,
    speaker_transforms,
    spliced,
    zero_fmllr_stats,
    zero_lda_stats,
    zero_mllt_stats,
)
from speech3.hmm.workers import Workers, WorkerShare
from speech3.io import MODEL_FILE, load_tensors, save_tensors
from speech3.runtime import Metrics, read_json

LDA_FILE = "lda.safetensors"
ADAPTED = "adapted"
PRIOR = "prior.safetensors"
PASSES = "passes.json"  # in `ADAPTED`: the number of passes, if it is not that of the config


class Projected(Mapping[str, np.ndarray]):
    """Features that are projected and then transformed by speaker whenever they are read.

    Parameters
    ----------
    feats
        Features (T, F).
    speaker_of
        The speaker of each utterance.
    projection
        None: the features as they are.
    transforms
        (D, D + 1) of some speakers; those of others are only projected.
    """

    def __init__(
        self,
        feats: Mapping[str, np.ndarray],
        speaker_of: Mapping[str, str],
        projection: Projection | None = None,
        transforms: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.feats, self.speaker_of, self.projection = feats, speaker_of, projection
        self.transforms = dict(transforms or {})

    def unadapted(self, utterance: str) -> np.ndarray:
        """The projected features of an utterance, without its speaker's transform."""
        feats_TF = self.feats[utterance]
        return self.projection(feats_TF) if self.projection else feats_TF

    def adapted(self, utterance: str, unadapted_TD: np.ndarray) -> np.ndarray:
        """The transform of the utterance's speaker applied, if there is one."""
        transform = self.transforms.get(self.speaker_of[utterance])
        return unadapted_TD if transform is None else applied(transform, unadapted_TD)

    def __getitem__(self, utterance: str) -> np.ndarray:
        return self.adapted(utterance, self.unadapted(utterance))

    def __iter__(self) -> Iterator[str]:
        return iter(self.feats)

    def __len__(self) -> int:
        return len(self.feats)


@dataclass(frozen=True, eq=False)
class Estimated:
    """The transforms of the speakers of a share, the reasons of those who have none."""

    transforms: dict[str, np.ndarray]
    without: dict[str, str]
    frames: dict[str, float]  # frames of speech of each speaker, without silence


def features_of(share: WorkerShare) -> Projected:
    assert isinstance(share.feats, Projected)
    return share.feats


def use_projection(share: WorkerShare, projection: Projection | None, transforms: Mapping[str, np.ndarray]) -> None:
    """From now on, features are projected and transformed by these."""
    feats = features_of(share)
    feats.projection, feats.transforms = projection, dict(transforms)


def speech(found: Alignment, hmm: Hmm) -> np.ndarray:
    """(T,) bool: frames that are neither silence nor noise in an alignment."""
    silent_P = np.zeros(len(hmm.lexicon.phones) + 1, bool)
    silent_P[list(hmm.lexicon.context_free)] = True
    return np.asarray(~silent_P[found.phones[found.segment]])


def lda_stats(share: WorkerShare, hmm: Hmm, statics: int, context: int) -> LdaStats:
    """Statistics of spliced features along the current alignments, without silence; the pdfs are the classes."""
    stats = zero_lda_stats(hmm.num_pdfs, statics * (2 * context + 1))
    for utterance, alignment in share.alignments.items():
        spoken_T = speech(alignment, hmm)
        frames_TS = spliced(features_of(share).feats[utterance][:, :statics], context)
        accumulate_lda(stats, frames_TS[spoken_T], alignment.pdfs(hmm)[spoken_T])
    return stats


def mllt_stats(share: WorkerShare, hmm: Hmm, gmm: Gmm) -> MlltStats:
    """Statistics of the projected features along the current alignments, without silence."""
    stats = zero_mllt_stats(gmm)
    for utterance, alignment in share.alignments.items():
        spoken_T = speech(alignment, hmm)
        accumulate_mllt(gmm, stats, share.feats[utterance][spoken_T], alignment.pdfs(hmm)[spoken_T])
    return stats


def pdf_frames(share: WorkerShare, hmm: Hmm) -> np.ndarray:
    frames_J = np.zeros(hmm.num_pdfs)
    for alignment in share.alignments.values():
        spoken_T = speech(alignment, hmm)
        frames_J += np.bincount(alignment.pdfs(hmm)[spoken_T], minlength=hmm.num_pdfs)
    return frames_J


def estimate_transforms(share: WorkerShare, hmm: Hmm, gmm: Gmm, min_frames: float, label: str = "") -> Estimated:
    """Estimate the transforms of the share's speakers along the current alignments, and use them from now on.

    A transform starts from the one before, which it replaces; a speaker with fewer frames than `min_frames`, or whose
    transform cannot be estimated, keeps that.
    """
    feats, found = features_of(share), Estimated({}, {}, {})
    for speaker, stats in _stats_of_speakers(share, hmm, gmm, None, label):
        transforms, without = speaker_transforms({speaker: stats}, None, feats.transforms, min_frames=min_frames)
        found.transforms.update(transforms)
        found.without.update(without)
        found.frames[speaker] = stats.count
    feats.transforms |= found.transforms
    return found


def fmllr_stats(share: WorkerShare, hmm: Hmm, gmm: Gmm, twin: Gmm | None, label: str) -> dict[str, FmllrStats]:
    """The statistics of each of the share's speakers along the current alignments, of the untransformed features.

    Posteriors are those of `gmm` on the features as transformed so far, or of `twin` on the untransformed ones.
    """
    return dict(_stats_of_speakers(share, hmm, gmm, twin, label))


def _stats_of_speakers(
    share: WorkerShare, hmm: Hmm, gmm: Gmm, twin: Gmm | None, label: str
) -> Iterator[tuple[str, FmllrStats]]:
    feats = features_of(share)
    by_speaker: dict[str, list[str]] = {}
    for utterance in share.alignments:
        by_speaker.setdefault(feats.speaker_of[utterance], []).append(utterance)
    for speaker in share.shown_of(by_speaker, label):
        stats = zero_fmllr_stats(gmm.mean.shape[1])
        for utterance in by_speaker[speaker]:
            unadapted_TD = feats.unadapted(utterance)
            seen_TD = unadapted_TD if twin else feats.adapted(utterance, unadapted_TD)
            accumulate_speech(stats, share.alignments[utterance], hmm, gmm, unadapted_TD, seen_TD, twin)
        yield speaker, stats


def accumulate_speech(
    stats: FmllrStats, found: Alignment, hmm: Hmm, gmm: Gmm, feats_TD: np.ndarray, seen_TD: np.ndarray, by: Gmm | None
) -> None:
    """Add the frames of an aligned utterance, without silence (see `accumulate_fmllr`)."""
    spoken_T = speech(found, hmm)
    accumulate_fmllr(stats, gmm, feats_TD[spoken_T], found.pdfs(hmm)[spoken_T], seen_TD[spoken_T], by)


def likelihood_gains(
    share: WorkerShare, hmm: Hmm, gmm: Gmm, twin: Gmm, transforms: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """By how much adapting raises the log likelihood of the aligned speech of each speaker, per frame.

    Both are densities of the same unadapted frames: those of `gmm` after the transform have its log determinant added.
    """
    feats, sums = features_of(share), dict[str, np.ndarray]()
    for utterance, alignment in share.alignments.items():
        if (transform := transforms.get(speaker := feats.speaker_of[utterance])) is not None:
            gain, frames = likelihood_gain(alignment, hmm, gmm, twin, feats.unadapted(utterance), transform)
            sums[speaker] = sums.get(speaker, np.zeros(2)) + np.array([gain, frames])
    return {speaker: float(gain / max(frames, 1)) for speaker, (gain, frames) in sums.items()}


def likelihood_gain(
    found: Alignment, hmm: Hmm, gmm: Gmm, twin: Gmm, feats_TD: np.ndarray, transform_DV: np.ndarray
) -> tuple[float, int]:
    """By how much the transform raises the log likelihood of the speech of an utterance, and how many frames it has."""
    spoken_T = speech(found, hmm)
    frames_TD, pdf_T = feats_TD[spoken_T], found.pdfs(hmm)[spoken_T]
    before, after = zero_stats(twin), zero_stats(gmm)
    accumulate(twin, before, frames_TD, pdf_T)
    accumulate(gmm, after, applied(transform_DV, frames_TD), pdf_T)
    log_det = float(np.linalg.slogdet(transform_DV[:, :-1])[1])
    return float(after.loglike) - float(before.loglike) + len(pdf_T) * log_det, len(pdf_T)


def merged_estimates(parts: list[Estimated]) -> Estimated:
    return Estimated(
        dict(sorted((speaker, each) for part in parts for speaker, each in part.transforms.items())),
        {speaker: why for part in parts for speaker, why in part.without.items()},
        {speaker: frames for part in parts for speaker, frames in part.frames.items()},
    )


def twin_stats(share: WorkerShare, hmm: Hmm, gmm: Gmm) -> GmmStats:
    """Statistics for a speaker-independent twin: posteriors of the transformed features, sums of the untransformed."""
    stats, feats = zero_stats(gmm), features_of(share)
    for utterance, alignment in share.alignments.items():
        unadapted_TD = feats.unadapted(utterance)
        accumulate(gmm, stats, unadapted_TD, alignment.pdfs(hmm), feats.adapted(utterance, unadapted_TD))
    return stats


_SMALLEST_SCALE, _LARGEST_SCALE = 0.01, 100.0  # singular values of a transform


def check_transforms(transforms: Mapping[str, np.ndarray], dim: int, path: object) -> None:
    """Raise `Speech3Error` unless all transforms are (dim, dim + 1), finite and regular; `path`: where they are from.

    Those of speakers change the scale of features by factors from about 0.5 to 4.
    """
    for speaker, transform in transforms.items():
        if transform.shape != (dim, dim + 1):
            raise DataError(
                f"{path}: {speaker}: a transform of {' x '.join(map(str, transform.shape))}, but the model's features"
                f" have {dim} values and need {dim} x {dim + 1}; use the transforms that were made with this model"
            )
        if not np.isfinite(transform).all():
            raise DataError(f"{path}: {speaker}: the transform is not finite; estimate it again")
        scales = np.linalg.svd(transform[:, :-1].astype(np.float64), compute_uv=False)
        if scales[-1] < _SMALLEST_SCALE or scales[0] > _LARGEST_SCALE:
            raise DataError(
                f"{path}: {speaker}: the transform is singular or out of scale: it changes features by factors from"
                f" {scales[-1]:.2g} to {scales[0]:.2g}; estimate it again, or leave this speaker out"
            )


@dataclass(frozen=True, eq=False)
class ProjectedGmm(FrameScorer):
    """GMMs that score features through a projection and, if given, a speaker's transform (D, D + 1): a `Scorer`."""

    gmm: Gmm
    projection: Projection
    transform: np.ndarray | None = None

    def loglikes(self, feats_TF: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        """Log likelihoods (T, U) float32 of all pdfs, or of the given ones."""
        return self.of_projected(self.projection(feats_TF), pdfs)

    def of_projected(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        """The same of projected features, without the transform."""
        return self.gmm.loglikes(feats_TD if self.transform is None else applied(self.transform, feats_TD), pdfs)

    def score_inside(self, feats_TF: np.ndarray) -> np.ndarray:
        """Log likelihoods of the frames that have all their neighbours."""
        return self.of_projected(self.projection.inside(feats_TF))


@dataclass(frozen=True, eq=False)
class SatSystem:
    """A speaker-adaptively trained system."""

    system: GmmSystem  # the GMMs on adapted features
    twin: Gmm  # speaker-independent GMMs, one Gaussian for each of `system`, for unadapted features
    frames: np.ndarray  # (J,) frames of speech of each pdf
    estimated: Estimated  # transforms of the speakers of training


def train_lda(
    workers: Workers,
    tri: GmmSystem,
    config: HmmConfig,
    values: tuple[int, int],
    generator: np.random.Generator,
    metrics: Metrics,
) -> tuple[GmmSystem, Projection]:
    """Train GMMs on features after LDA and MLLT, from the alignments of the triphones, which the workers hold.

    `workers`: their features are `Projected`, still without projection; it is set here.
    `values`: how many values of a frame are spliced (the static ones), and how many there are.
    Raises Speech3Error: nothing is aligned, or LDA or MLLT fails.
    """
    stage = config.lda
    assert stage is not None
    statics, inputs = values
    dim = min(stage.dim, statics * (2 * stage.context + 1))
    total = workers.total(lda_stats, tri.hmm, statics, stage.context)
    if not total.count.sum():
        raise DataError(NOTHING_ALIGNED)
    projection = Projection(lda(total, dim), statics, stage.context, inputs)
    workers.run(use_projection, projection, {})

    def adjust(iteration: int, hmm: Hmm, gmm: Gmm) -> Gmm:
        nonlocal projection
        if iteration not in stage.transform:
            return gmm
        stats = workers.total(mllt_stats, hmm, gmm)
        matrix = mllt(stats.scatter(gmm), float(stats.sums.frames))
        projection = replace(projection, matrix=matrix @ projection.matrix)
        workers.run(use_projection, projection, {})
        metrics.write(event="mllt", system="lda", iteration=iteration, log_det=float(np.linalg.slogdet(matrix)[1]))
        return Gmm(gmm.offset, gmm.weight, gmm.mean @ matrix.T, gmm.var)

    system = tied_states(workers, tri.hmm.lexicon, config, stage, generator, metrics, "lda", adjust)
    return system, projection


def train_sat(
    workers: Workers, first: GmmSystem, config: HmmConfig, generator: np.random.Generator, metrics: Metrics
) -> SatSystem:
    """Speaker-adaptive training from the system `lda`, on whose features and alignments the workers are.

    The transforms are estimated from the GMMs of `first`, utterances are aligned with them, and the transforms are
    estimated again; then a tree is grown on the adapted features, whose GMMs and transforms are trained in turn.
    """
    stage = config.sat
    assert stage is not None
    estimated = Estimated({}, {}, {})

    def transforms(hmm: Hmm, gmm: Gmm, iteration: int) -> None:
        nonlocal estimated
        label = "transforms of speakers" if not iteration else ""
        estimated = merged_estimates(workers.run(estimate_transforms, hmm, gmm, stage.min_frames, label))
        counts = {"speakers": len(estimated.transforms), "without": len(estimated.without)}
        metrics.write(event="fmllr", system="sat", iteration=iteration, **counts)

    transforms(first.hmm, first.gmm, 0)
    workers.run(train.realign, first.hmm, first.gmm, config.beam, config.retry_beam)
    transforms(first.hmm, first.gmm, 0)

    def adjust(iteration: int, hmm: Hmm, gmm: Gmm) -> Gmm:
        if iteration in stage.transform:
            transforms(hmm, gmm, iteration)
        return gmm

    system = tied_states(workers, first.hmm.lexicon, config, stage, generator, metrics, "sat", adjust)
    transforms(system.hmm, system.gmm, stage.iterations + 1)
    twin = twin_of(system.gmm, workers.total(twin_stats, system.hmm, system.gmm))
    frames_J = workers.total(pdf_frames, system.hmm)
    return SatSystem(system, twin, frames_J, estimated)


def save_projection(directory: Path, projection: Projection) -> None:
    about = {"kind": "lda", "statics": projection.statics, "context": projection.context, "inputs": projection.inputs}
    save_tensors(directory / LDA_FILE, {"matrix": projection.matrix}, about)


def load_projection(directory: Path) -> Projection | None:
    """The projection of a model; None if it has none."""
    if not (directory / LDA_FILE).exists():
        return None
    arrays, about = load_tensors(directory / LDA_FILE, "lda")
    return Projection(arrays["matrix"], about["statics"], about["context"], about["inputs"])


@dataclass(frozen=True, eq=False)
class Adapted:
    """What decoding in passes needs besides the twin."""

    gmm: Gmm  # GMMs on adapted features, one Gaussian for each of the twin
    frames: np.ndarray  # (J,) frames of speech of each pdf in training
    # `min_frames`, `prior_frames`: as in `speaker_transforms`, for decoding
    min_frames: float
    prior_frames: float
    passes: int  # passes over a data set

    @cached_property
    def prior(self) -> FmllrStats | None:
        """The statistics of one frame that pull towards the identity."""
        return prior_stats(self.gmm, self.frames) if self.prior_frames else None


def save_adapted(directory: Path, found: SatSystem, config: SatConfig, about: Mapping[str, object]) -> None:
    """Write what a model directory of `sat` has more than others; its own GMMs are the twin."""
    found.twin.save(directory / MODEL_FILE, dict(about))
    found.system.gmm.save(directory / ADAPTED / MODEL_FILE, dict(about))
    decoding = {
        "least_frames": config.decode_min_frames,
        "prior_frames": config.prior_frames,
        "passes": config.passes,
    }
    save_tensors(directory / ADAPTED / PRIOR, {"frames": found.frames}, {"kind": "prior", **decoding})


def load_adapted(directory: Path) -> Adapted:
    """Read what `save_adapted` wrote, without the twin.

    Raises Speech3Error: the model does not adapt to speakers.
    """
    if not (directory / ADAPTED / MODEL_FILE).exists():
        raise MismatchError(f"{directory}: not trained with adaptation to speakers; use the model `sat` of a recipe")
    arrays, about = load_tensors(directory / ADAPTED / PRIOR, "prior")
    gmm = load_gmm(directory / ADAPTED / MODEL_FILE)
    settled = directory / ADAPTED / PASSES
    passes = read_json(settled)["passes"] if settled.exists() else about["passes"]
    return Adapted(gmm, arrays["frames"], about["least_frames"], about["prior_frames"], passes)
