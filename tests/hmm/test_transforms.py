"""LDA, MLLT and fMLLR against literal versions of the papers' equations, and against transforms that made the data."""

import numpy as np
import pytest

from speech3.errors import Speech3Error
from speech3.hmm.gmm import Gmm, normalized
from speech3.hmm.transforms import (
    FmllrStats,
    Projection,
    accumulate_fmllr,
    accumulate_lda,
    accumulate_mllt,
    applied,
    extended,
    fmllr,
    fmllr_gradient,
    fmllr_hessian,
    identity,
    lda,
    mllt,
    packed,
    prior_stats,
    speaker_transforms,
    spliced,
    unpacked,
    zero_fmllr_stats,
    zero_lda_stats,
    zero_mllt_stats,
)


def fmllr_objective(transform_DV: np.ndarray, stats: FmllrStats) -> float:
    quadratic = np.einsum("iv,ivw,iw->", transform_DV, unpacked(stats.products), transform_DV, optimize=True)
    log_det = np.linalg.slogdet(transform_DV[:, :-1])[1]
    return float(stats.count * log_det - 0.5 * quadratic + (transform_DV * stats.linear).sum())


def mllt_objective(matrix: np.ndarray, scatter_DDD: np.ndarray, count: float) -> float:
    quadratic = np.einsum("id,ide,ie->", matrix, scatter_DDD, matrix, optimize=True)
    return float(count * np.linalg.slogdet(matrix)[1] - 0.5 * quadratic)


def a_gmm(seed: int, dim: int, sizes: tuple[int, ...] = (1, 3, 2, 2)) -> Gmm:
    rng = np.random.default_rng(seed)
    offset, total = np.concatenate([[0], np.cumsum(sizes)]), sum(sizes)
    weight = normalized(rng.uniform(0.3, 1, total), offset)
    return Gmm(offset, weight, 3 * rng.standard_normal((total, dim)), rng.uniform(0.3, 2, (total, dim)))


def drawn(gmm: Gmm, frames: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames that the GMMs produce, and their pdfs."""
    rng = np.random.default_rng(seed)
    pdf_T = rng.integers(0, gmm.num_pdfs, frames)
    rows = [rng.choice(np.arange(gmm.offset[j], gmm.offset[j + 1]), p=_weights(gmm, j)) for j in pdf_T]
    noise = rng.standard_normal((frames, gmm.mean.shape[1]))
    return gmm.mean[rows] + noise * np.sqrt(gmm.var[rows]), pdf_T


def _weights(gmm: Gmm, j: int) -> np.ndarray:
    return gmm.weight[gmm.offset[j] : gmm.offset[j + 1]]


def posteriors(gmm: Gmm, x_D: np.ndarray, j: int) -> dict[int, float]:
    """The posterior of each Gaussian of a pdf, from the definition."""
    density = {}
    for g in range(gmm.offset[j], gmm.offset[j + 1]):
        exponent = -0.5 * ((x_D - gmm.mean[g]) ** 2 / gmm.var[g]).sum()
        density[g] = gmm.weight[g] * np.exp(exponent) / np.sqrt(np.prod(2 * np.pi * gmm.var[g]))
    return {g: value / sum(density.values()) for g, value in density.items()}


def test_lda_whitens_within_classes_and_diagonalises_between_them() -> None:
    rng = np.random.default_rng(1)
    mixing, means = rng.standard_normal((6, 6)), 3 * rng.standard_normal((5, 6))
    class_T = rng.integers(0, 5, 4000)
    x_TS = (means[class_T] + rng.standard_normal((4000, 6))) @ mixing.T
    stats = zero_lda_stats(5, 6)
    for part in np.array_split(np.arange(4000), 3):
        accumulate_lda(stats, x_TS[part], class_T[part])
    matrix = lda(stats, 4)
    y_TD = x_TS @ matrix.T
    mean_C = np.stack([y_TD[class_T == c].mean(0) for c in range(5)])
    within = (y_TD - mean_C[class_T]).T @ (y_TD - mean_C[class_T]) / 4000
    between = np.cov(mean_C[class_T].T, bias=True)
    np.testing.assert_allclose(within, np.eye(4), atol=1e-8)
    np.testing.assert_allclose(between, np.diag(np.diag(between)), atol=1e-8)
    assert (np.diff(np.diag(between)) < 0).all()


def test_lda_names_what_is_wrong() -> None:
    rng = np.random.default_rng(1)
    stats, x_TS = zero_lda_stats(3, 4), rng.standard_normal((100, 4))
    x_TS[:, 3] = x_TS[:, 2]
    accumulate_lda(stats, x_TS, rng.integers(0, 3, 100))
    with pytest.raises(Speech3Error, match="singular"):
        lda(stats, 2)
    few = zero_lda_stats(3, 4)
    accumulate_lda(few, rng.standard_normal((6, 4)), np.array([0, 1, 2, 0, 1, 2]))
    with pytest.raises(Speech3Error, match="6 frames"):
        lda(few, 2)
    with pytest.raises(Speech3Error, match="to 9 of 4"):
        lda(stats, 9)


def test_splicing_is_that_of_the_features() -> None:
    import torch

    from speech3.features.context import splice

    feats_TF = np.random.default_rng(2).standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_array_equal(spliced(feats_TF, 3), splice(torch.from_numpy(feats_TF), 3, 3).numpy())
    projection = Projection(np.eye(2, 6), statics=2, context=1, inputs=3)
    np.testing.assert_allclose(projection.inside(feats_TF), projection(feats_TF)[1:4])
    assert projection(feats_TF[:0]).shape == (0, 2)
    with pytest.raises(Speech3Error, match="3 values"):
        projection(feats_TF[:, :2])


def test_mllt_statistics_equal_the_definition() -> None:
    gmm = a_gmm(3, 3)
    x_TD, pdf_T = drawn(gmm, 40, 4)
    stats = zero_mllt_stats(gmm)
    accumulate_mllt(gmm, stats, x_TD.astype(np.float32), pdf_T)
    expected = np.zeros((3, 3, 3))
    for x_D, j in zip(x_TD, pdf_T, strict=True):
        for g, gamma in posteriors(gmm, x_D, j).items():
            away = x_D - gmm.mean[g]
            for i in range(3):
                expected[i] += gamma / gmm.var[g, i] * np.outer(away, away)
    np.testing.assert_allclose(stats.scatter(gmm), expected, rtol=1e-4, atol=1e-4)


def test_mllt_never_gets_worse_and_finds_the_mixing() -> None:
    dim, rng = 5, np.random.default_rng(5)
    sources, mixing = a_gmm(6, dim, (1, 1, 1)), rng.standard_normal((dim, dim))
    y_TD, pdf_T = drawn(sources, 20000, 7)
    x_TD = y_TD @ mixing.T
    # One Gaussian a pdf, with the diagonal covariance of the mixed data.
    mean = np.stack([x_TD[pdf_T == j].mean(0) for j in range(3)])
    var = np.stack([x_TD[pdf_T == j].var(0) for j in range(3)])
    matrix = np.eye(dim)
    for _ in range(30):  # variances and matrix in turn, as in training
        mean = np.stack([(x_TD @ matrix.T)[pdf_T == j].mean(0) for j in range(3)])
        var = np.stack([(x_TD @ matrix.T)[pdf_T == j].var(0) for j in range(3)])
        gmm = Gmm(np.arange(4), np.ones(3), mean, var)
        stats = zero_mllt_stats(gmm)
        accumulate_mllt(gmm, stats, (x_TD @ matrix.T).astype(np.float32), pdf_T)
        scatter, count = stats.scatter(gmm), float(len(x_TD))
        values = [mllt_objective(mllt(scatter, count, sweeps), scatter, count) for sweeps in range(6)]
        assert (np.diff(values) >= -1e-9 * count).all()
        matrix = mllt(scatter, count) @ matrix
    # Three covariances determine the axes up to order and scale: each row takes one source out of the mixture.
    shares = np.abs(matrix @ mixing)
    shares /= shares.max(1, keepdims=True)
    assert sorted(shares.argmax(1)) == list(range(dim))
    assert np.sort(shares, axis=1)[:, -2].max() < 0.1


def test_mllt_names_what_is_wrong() -> None:
    with pytest.raises(Speech3Error, match="3 frames"):
        mllt(np.stack([np.eye(4)] * 4), 3)
    with pytest.raises(Speech3Error, match="singular"):
        mllt(np.ones((4, 4, 4)), 100)


def test_fmllr_statistics_equal_the_definition() -> None:
    gmm, other = a_gmm(8, 3), a_gmm(9, 3)
    x_TD, pdf_T = drawn(gmm, 30, 10)
    stats = zero_fmllr_stats(3)
    accumulate_fmllr(stats, other, x_TD.astype(np.float32), pdf_T, posteriors_by=gmm)
    products, linear = np.zeros((3, 4, 4)), np.zeros((3, 4))
    for x_D, j in zip(x_TD, pdf_T, strict=True):
        xi = np.append(x_D, 1.0)
        for g, gamma in posteriors(gmm, x_D, j).items():
            for i in range(3):
                products[i] += gamma / other.var[g, i] * np.outer(xi, xi)
                linear[i] += gamma * other.mean[g, i] / other.var[g, i] * xi
    np.testing.assert_allclose(unpacked(stats.products), products, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(stats.linear, linear, rtol=1e-4, atol=1e-3)
    assert stats.count == 30
    np.testing.assert_allclose(packed(unpacked(stats.products)), stats.products)


def literal_fmllr(stats: FmllrStats, sweeps: int) -> np.ndarray:
    """Gales 1998, equations (A.2) to (A.8), with cofactors by minors; both roots are tried in the whole objective."""
    dim, products = len(stats.linear), unpacked(stats.products)
    transform = np.eye(dim, dim + 1)
    for _ in range(sweeps):
        for i in range(dim):
            matrix = transform[:, :-1]
            cofactors = np.zeros(dim + 1)
            for d in range(dim):
                minor = np.delete(np.delete(matrix, i, 0), d, 1)
                cofactors[d] = (-1) ** (i + d) * np.linalg.det(minor)
            inverse = np.linalg.inv(products[i])
            a, b = cofactors @ inverse @ cofactors, cofactors @ inverse @ stats.linear[i]
            candidates = []
            for alpha in np.roots([a, b, -stats.count]).real:
                other = transform.copy()
                other[i] = (alpha * cofactors + stats.linear[i]) @ inverse
                candidates.append(other)
            transform = max(candidates, key=lambda each: fmllr_objective(each, stats))
    return transform


def test_fmllr_equals_the_literal_equations_and_never_gets_worse() -> None:
    gmm = a_gmm(11, 4)
    y_TD, pdf_T = drawn(gmm, 500, 12)
    x_TD = y_TD @ np.random.default_rng(13).standard_normal((4, 4)).T + 1.0
    stats = zero_fmllr_stats(4)
    accumulate_fmllr(stats, gmm, x_TD.astype(np.float32), pdf_T)
    for sweeps in (1, 2, 7):
        np.testing.assert_allclose(fmllr(stats, sweeps=sweeps), literal_fmllr(stats, sweeps), rtol=1e-6, atol=1e-8)
    values = [fmllr_objective(fmllr(stats, sweeps=sweeps), stats) for sweeps in range(8)]
    assert (np.diff(values) >= -1e-9 * stats.count).all()
    again = fmllr(stats, fmllr(stats, sweeps=3), sweeps=4)
    np.testing.assert_allclose(again, fmllr(stats, sweeps=7), rtol=1e-6)


def test_the_objective_is_the_likelihood() -> None:
    gmm = a_gmm(14, 3, (1, 1, 1))
    x_TD, pdf_T = drawn(gmm, 50, 15)
    x_TD = x_TD.astype(np.float32)
    stats = zero_fmllr_stats(3)
    accumulate_fmllr(stats, gmm, x_TD, pdf_T)
    one, other = identity(3), np.random.default_rng(1).standard_normal((3, 4))

    def likelihood(transform: np.ndarray) -> float:
        y_TD = x_TD.astype(np.float64) @ transform[:, :-1].T + transform[:, -1]
        exponents = -0.5 * ((y_TD - gmm.mean[pdf_T]) ** 2 / gmm.var[pdf_T]).sum()
        return float(exponents + len(x_TD) * np.linalg.slogdet(transform[:, :-1])[1])

    difference = fmllr_objective(other, stats) - fmllr_objective(one, stats)
    assert difference == pytest.approx(likelihood(other) - likelihood(one), rel=1e-6)


def test_a_random_transform_is_recovered() -> None:
    gmm = a_gmm(16, 4, (2, 3, 2, 1, 2, 1))
    y_TD, pdf_T = drawn(gmm, 30000, 17)
    true = identity(4) + 0.15 * np.random.default_rng(18).standard_normal((4, 5))
    x_TD = ((y_TD - true[:, -1]) @ np.linalg.inv(true[:, :-1]).T).astype(np.float32)
    transform = identity(4)
    for _ in range(5):
        stats = zero_fmllr_stats(4)
        accumulate_fmllr(stats, gmm, x_TD, pdf_T, seen_by_TD=applied(transform, x_TD))
        transform = fmllr(stats, transform)
    np.testing.assert_allclose(transform, true, atol=0.03)
    np.testing.assert_allclose(applied(transform, x_TD), y_TD, atol=0.3)
    assert extended(x_TD).shape == (30000, 5)


def test_frames_of_the_gmms_themselves_pull_towards_the_identity() -> None:
    gmm, frames_J = a_gmm(19, 4), np.array([10.0, 40.0, 30.0, 20.0])
    prior = prior_stats(gmm, frames_J)
    np.testing.assert_allclose(fmllr(prior * 100), identity(4), atol=1e-9)
    # The same as very many frames drawn from the GMMs, with the true Gaussians as posteriors.
    single = a_gmm(20, 2, (1, 1))
    y_TD, pdf_T = drawn(single, 100_000, 21)
    stats = zero_fmllr_stats(2)
    accumulate_fmllr(stats, single, y_TD.astype(np.float32), pdf_T)
    expected = prior_stats(single, np.bincount(pdf_T).astype(float)) * stats.count
    np.testing.assert_allclose(expected.products, stats.products, rtol=0.02, atol=0.005 * np.abs(stats.products).max())
    np.testing.assert_allclose(expected.linear, stats.linear, rtol=0.02, atol=0.005 * np.abs(stats.linear).max())
    few_TD, few_T = drawn(gmm, 6, 22)
    few = zero_fmllr_stats(4)
    accumulate_fmllr(few, gmm, few_TD.astype(np.float32), few_T)
    distances = [np.abs(fmllr(few + prior * frames) - identity(4)).max() for frames in (20.0, 200.0, 2000.0, 20000.0)]
    assert (np.diff(distances) < 0).all()
    assert distances[-1] < 0.01


def test_speakers_without_enough_speech_are_named() -> None:
    gmm = a_gmm(23, 3)
    stats = {}
    for speaker, frames in (("much", 400), ("little", 3), ("none", 0)):
        x_TD, pdf_T = drawn(gmm, frames, 24)
        stats[speaker] = zero_fmllr_stats(3)
        accumulate_fmllr(stats[speaker], gmm, x_TD.astype(np.float32), pdf_T)
    with pytest.raises(Speech3Error, match="little: 3 frames of speech"):
        fmllr(stats["little"], speaker="little")
    constant = zero_fmllr_stats(3)
    accumulate_fmllr(constant, gmm, np.ones((400, 3), np.float32), np.zeros(400, int))
    stats["constant"] = constant
    with pytest.raises(Speech3Error, match=r"constant: .*singular"):
        fmllr(constant, speaker="constant")
    found, without = speaker_transforms(stats, None, {}, min_frames=1)
    assert list(found) == ["much"]
    assert set(without) == {"little", "none", "constant"}
    found, without = speaker_transforms(stats, prior_stats(gmm, np.ones(4)), {}, min_frames=1)
    assert set(found) == {"much", "little", "constant"}
    assert set(without) == {"none"}


def test_gradient_and_hessian_at_the_identity_are_those_of_the_objective() -> None:
    gmm, stats, step = a_gmm(5, 3), zero_fmllr_stats(3), 1e-4
    accumulate_fmllr(stats, gmm, *drawn(gmm, 200, seed=6))
    changes = step * np.eye(12).reshape(12, 3, 4)

    def objective(change_DV: np.ndarray) -> float:
        return fmllr_objective(identity(3) + change_DV, stats)

    slope = [(objective(each) - objective(-each)) / (2 * step) for each in changes]
    np.testing.assert_allclose(fmllr_gradient(stats).ravel(), slope, rtol=1e-5, atol=1e-4)
    bent = [
        [objective(a + b) - objective(a - b) - objective(b - a) + objective(-a - b) for a in changes] for b in changes
    ]
    np.testing.assert_allclose(fmllr_hessian(stats), -np.array(bent) / (4 * step**2), rtol=1e-3, atol=0.05)
