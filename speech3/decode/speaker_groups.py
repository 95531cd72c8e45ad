"""Who speaks, where nobody has said so: utterances grouped by what a model of `hmm.sat` hears of their speakers.

The likelihood of the adapted GMMs, as a function of an utterance's fMLLR transform, has a gradient at the identity. For
an utterance of n frames by a speaker with the transform W it is about n H (W - I), where H is the expected negative
Hessian for one frame; divided by a square root of H it becomes n x plus noise of the same variance in every direction,
n times a constant. Between speakers x varies in a few directions, those of the speakers of training, whose transforms
the model keeps. So the utterances of a group and their speaker's x are jointly Gaussian, and two groups become one if
they are more probable under one speaker than under two (Brummer and de Villiers 2010, "The speaker partitioning
problem"), beginning with those for which this is most certain.

Axes: U utterances, G groups, S speakers of training, D values of a frame, V = D + 1, X = D V, K directions.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from speech3.data import DataDir
from speech3.decode.apply import features_for, say_skipped
from speech3.decode.search import without_words
from speech3.decode.speaker_passes import SpeakerModel, read_speakers, speaker_model
from speech3.decode.trained_model import TrainedModel
from speech3.errors import DataError, MismatchError, counted, listed
from speech3.features import silent_in
from speech3.hmm import fmllr_gradient, fmllr_hessian, identity, prior_stats
from speech3.runtime import progress, say

_DIRECTIONS = 20
_FRAMES_PER_SAMPLE = 10.0  # frames with as much information as one independent frame (recipes/minilibri/RESULTS.md)
_RIDGE = 0.01  # of the Hessian's diagonal: of few pdfs alone it may be singular
_AT_A_TIME = 500  # utterances whose statistics are in memory


@dataclass(frozen=True, eq=False)
class Evidence:
    """What utterances tell of their speakers."""

    sums_UK: np.ndarray  # about ``count x`` for a speaker at x, with a variance of `count`
    count_U: np.ndarray  # frames of speech, divided by `_FRAMES_PER_SAMPLE`; 0: nothing is known
    variance_K: np.ndarray  # of x between speakers

    def log_probability(self, sums_GK: np.ndarray, count_G: np.ndarray) -> np.ndarray:
        """Log probability (G,) of groups of one speaker each, up to what does not depend on who speaks."""
        scale_GK = 1.0 + self.variance_K * count_G[:, None]
        found_G: np.ndarray = 0.5 * (sums_GK**2 * self.variance_K / scale_GK - np.log(scale_GK)).sum(1)
        return found_G


def groups_of(evidence: Evidence, number: int | None = None) -> list[int]:
    """The group of each utterance, numbered by their first utterances.

    `number`: most groups: those that are most alike are joined although they rather seem to be of different speakers.
    """
    sums_GK, count_G = evidence.sums_UK.copy(), evidence.count_U.copy()
    group_U, left = np.arange(len(count_G)), len(count_G)
    alone_G = evidence.log_probability(sums_GK, count_G)

    def gains(one: int) -> np.ndarray:
        joined_G = evidence.log_probability(sums_GK + sums_GK[one], count_G + count_G[one])
        gain_G = joined_G - alone_G - alone_G[one]
        gain_G[one] = -np.inf
        return np.asarray(gain_G, np.float32)

    gain_GG = np.stack([gains(one) for one in progress(range(left), left, "speakers")])
    partner_G = gain_GG.argmax(1)
    while left > 1:
        best_G = gain_GG[np.arange(len(group_U)), partner_G]
        one = int(best_G.argmax())
        one, other = sorted((one, int(partner_G[one])))
        if gain_GG[one, other] <= 0 and (number is None or left <= number):
            break
        group_U[group_U == other] = one
        sums_GK[one] += sums_GK[other]
        count_G[one] += count_G[other]
        alone_G[one] = evidence.log_probability(sums_GK[[one]], count_G[[one]])[0]
        gain_G = np.where(np.isneginf(gain_GG[one]), -np.inf, gains(one))
        gain_G[other] = -np.inf
        gain_GG[one], gain_GG[:, one] = gain_G, gain_G
        gain_GG[other], gain_GG[:, other] = -np.inf, -np.inf
        # Whose best partner was one of the two must look for another; others may prefer the new group.
        again_G = np.isin(partner_G, (one, other))
        again_G[one] = True
        partner_G = np.where(gain_G > best_G, one, partner_G)
        partner_G[again_G] = gain_GG[again_G].argmax(1)
        left -= 1
    return np.unique(group_U, return_inverse=True)[1].tolist()


@dataclass(frozen=True, eq=False)
class _Space:
    """The directions in which speakers differ."""

    basis_KX: np.ndarray  # from a gradient, a row of (D, V), to the K directions; noise is white there
    mean_K: np.ndarray  # the mean of the speakers of training
    variance_K: np.ndarray


def _space_of(model: SpeakerModel) -> _Space:
    dim, expected = model.projection.dim, prior_stats(model.adapted.gmm, model.adapted.frames)
    transforms = read_speakers(model.recognizer.directory, dim)
    if len(transforms) < 3:
        raise MismatchError(
            f"{model.recognizer.directory}: has the transforms of {counted(len(transforms), 'speaker')},"
            " which is too few to know how speakers differ; use a model that was trained on more speakers"
        )
    hessian_XX = fmllr_hessian(expected)
    root_XX = np.linalg.cholesky(hessian_XX + np.diag(_RIDGE * hessian_XX.diagonal()))
    x_SX = np.stack([(each - identity(dim)).ravel() for each in transforms.values()]) @ root_XX
    mean_X = x_SX.mean(0)
    _, size_K, rows_KX = np.linalg.svd(x_SX - mean_X, full_matrices=False)
    kept = min(_DIRECTIONS, len(transforms) - 1)
    variance_K = size_K[:kept] ** 2 / len(transforms)
    basis_KX = np.linalg.solve(root_XX.T, rows_KX[:kept].T).T
    return _Space(basis_KX, rows_KX[:kept] @ mean_X, variance_K)


def find_speakers(recognizer: TrainedModel, data: DataDir, jobs: int = 1, number: int | None = None) -> dict[str, str]:
    """The speaker of each utterance, ``speaker1`` and so on, by one pass of the recogniser.

    Every utterance is taken to be of one speaker; what `data` says about speakers is not used. An utterance without
    words is a speaker of its own, unless there are more speakers than `number`.

    `number`: most speakers.

    Raises `Speech3Error`: the model does not adapt to speakers, or knows fewer than three; there is one utterance; none
    has speech.
    """
    model = speaker_model(recognizer)
    if model is None:
        raise MismatchError(
            f"{recognizer.directory}: not trained with adaptation to speakers; use the model `sat` of a recipe"
        )
    if len(data.utterances) < 2:
        raise DataError(f"{data.path}: has one utterance; there is nothing to group")
    model = replace(model, adapted=replace(model.adapted, min_frames=np.inf))  # statistics suffice
    # First pass: words and fMLLR statistics of each utterance, as if it were a speaker of its own.
    space, names = _space_of(model), list(data.utterances)
    own = {key: replace(each, speaker=key) for key, each in data.utterances.items()}
    sums, counts = dict[str, np.ndarray](), dict[str, float]()
    with TemporaryDirectory(prefix="speech3-") as scratch:
        feats, bad = features_for(recognizer, replace(data, utterances=own, cmvn={}), jobs, Path(scratch))
        found = without_words(recognizer.decode(feats, jobs), silent_in(Path(scratch) / "feats"))
        words = {each.utterance: " ".join(each.units) for each in found.hypotheses if each.units}
        spoken = sorted(words)
        for some in (spoken[first : first + _AT_A_TIME] for first in range(0, len(spoken), _AT_A_TIME)):
            said, own_feats = {key: words[key] for key in some}, {key: feats[key] for key in some}
            _, stats = model.transforms(own_feats, dict(zip(some, some, strict=True)), said, {}, jobs)
            for key, each in stats.items():
                counts[key] = each.count / _FRAMES_PER_SAMPLE
                sums[key] = (
                    space.basis_KX @ fmllr_gradient(each).ravel() / _FRAMES_PER_SAMPLE - counts[key] * space.mean_K
                )
    say_skipped({**bad, **found.failed}, "not used")
    if not any(counts.values()):
        raise DataError(f"{data.path}: no utterance has speech that could be recognised, so nothing can be grouped")
    if without := [key for key in names if not counts.get(key)]:
        say(
            f"no speech was recognised in {counted(len(without), 'utterance')}, whose speakers are unknown:"
            f" {listed(without, 3)}"
        )
    # Cluster the utterances by how likely it is that their statistics are of one speaker.
    sums_UK = np.stack([sums.get(key, np.zeros_like(space.mean_K)) for key in names])
    evidence = Evidence(sums_UK, np.array([counts.get(key, 0.0) for key in names]), space.variance_K)
    groups = groups_of(evidence, number)
    width = len(str(max(groups) + 1))
    return {key: f"speaker{group + 1:0{width}d}" for key, group in zip(names, groups, strict=True)}
