"""Mixtures against PyTorch's distributions, and EM against what it must do."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from speech3.errors import Speech3Error
from speech3.hmm import gmm as mixtures
from speech3.hmm.gmm import (
    MIN_VARIANCE,
    Gmm,
    accumulate,
    load_gmm,
    normalized,
    split,
    split_targets,
    update,
    zero_stats,
)


def random_gmm(seed: int, sizes: tuple[int, ...] = (1, 3, 2), dim: int = 4) -> Gmm:
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    weights = np.concatenate([rng.dirichlet(np.ones(size)) for size in sizes])
    offset = np.concatenate([[0], np.cumsum(sizes)])
    return Gmm(offset, weights, rng.standard_normal((total, dim)) * 2, rng.uniform(0.3, 2, (total, dim)))


def torch_loglikes(gmm: Gmm, feats: np.ndarray) -> np.ndarray:
    columns = []
    for begin, end in zip(gmm.offset[:-1], gmm.offset[1:], strict=True):
        parts = Normal(torch.tensor(gmm.mean[begin:end]), torch.tensor(gmm.var[begin:end]).sqrt())
        mixture = MixtureSameFamily(Categorical(torch.tensor(gmm.weight[begin:end])), Independent(parts, 1))
        columns.append(mixture.log_prob(torch.tensor(feats, dtype=torch.float64)))
    return torch.stack(columns, 1).numpy()


def test_few_gaussians_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(5)
    offset = np.concatenate([[0], np.cumsum(generator.integers(1, 9, 50))])
    total, feats_TD = int(offset[-1]), generator.standard_normal((70, 6)).astype(np.float32)
    gmm = Gmm(
        offset,
        normalized(generator.uniform(0.1, 1, total), offset),
        generator.standard_normal((total, 6)),
        generator.uniform(0.5, 2, (total, 6)),
    )
    chosen = np.array([3, 49, 0, 7, 8])
    whole, some = gmm.loglikes(feats_TD), gmm.loglikes(feats_TD, chosen)
    np.testing.assert_allclose(some, whole[:, chosen], atol=1e-5)
    most, score = [], Gmm._score
    monkeypatch.setattr(Gmm, "_score", lambda self, wide, pdfs, out: (most.append(pdfs), score(self, wide, pdfs, out)))
    for limit in (1, 300, 2000, 10**9):
        monkeypatch.setattr(mixtures, "_SCORES", limit)
        most.clear()
        np.testing.assert_allclose(gmm.loglikes(feats_TD), whole, atol=1e-5)
        np.testing.assert_allclose(gmm.loglikes(feats_TD, chosen), some, atol=1e-5)
        largest = max(int(np.diff(offset)[pdfs].sum()) * len(feats_TD) for pdfs in most)
        assert largest <= max(limit, 0) + 2 * 8 * len(feats_TD)
    assert gmm.loglikes(feats_TD[:0]).shape == (0, 50)


def test_loglikes_equal_torch() -> None:
    gmm, feats = random_gmm(0), np.random.default_rng(1).standard_normal((50, 4)).astype(np.float32)
    np.testing.assert_allclose(gmm.loglikes(feats), torch_loglikes(gmm, feats), atol=2e-4)
    np.testing.assert_allclose(gmm.loglikes(feats, np.array([2, 0])), torch_loglikes(gmm, feats)[:, [2, 0]], atol=2e-4)


def test_statistics_equal_posteriors_of_torch() -> None:
    gmm = random_gmm(2)
    rng = np.random.default_rng(3)
    feats, pdfs = rng.standard_normal((60, 4)).astype(np.float32), rng.integers(0, 3, 60)
    stats = zero_stats(gmm)
    accumulate(gmm, stats, feats, pdfs)
    count, first, second = np.zeros(6), np.zeros((6, 4)), np.zeros((6, 4))
    for x, j in zip(feats.astype(np.float64), pdfs, strict=True):
        rows = slice(gmm.offset[j], gmm.offset[j + 1])
        parts = Normal(torch.tensor(gmm.mean[rows]), torch.tensor(gmm.var[rows]).sqrt())
        joint = parts.log_prob(torch.tensor(x)).sum(1) + torch.tensor(gmm.weight[rows]).log()
        gamma = joint.softmax(0).numpy()
        count[rows] += gamma
        first[rows] += gamma[:, None] * x
        second[rows] += gamma[:, None] * x * x
    np.testing.assert_allclose(stats.count, count, atol=1e-4)
    np.testing.assert_allclose(stats.first, first, atol=1e-4)
    np.testing.assert_allclose(stats.second, second, atol=1e-4)
    expected = torch_loglikes(gmm, feats)[np.arange(60), pdfs].sum()
    assert stats.loglike == pytest.approx(expected, rel=1e-5) and stats.frames == 60


def test_em_never_lowers_the_likelihood_and_finds_the_mixture() -> None:
    truth = Gmm(np.array([0, 2]), np.array([0.3, 0.7]), np.array([[-3.0, 0], [3, 1]]), np.ones((2, 2)))
    rng = np.random.default_rng(0)
    which = rng.random(4000) < 0.7
    feats = (truth.mean[which.astype(int)] + rng.standard_normal((4000, 2))).astype(np.float32)
    pdfs = np.zeros(4000, np.int64)
    gmm = Gmm(np.array([0, 1]), np.ones(1), feats.mean(0, keepdims=True).astype(float), np.ones((1, 2)))
    last = -np.inf
    for iteration in range(30):
        stats = zero_stats(gmm)
        accumulate(gmm, stats, feats, pdfs)
        if iteration != 1:  # splitting may lower it
            assert stats.loglike >= last - 1e-6 * abs(last)  # float32 scores
        last = stats.loglike
        gmm = update(gmm, stats)
        if iteration == 0:
            gmm = split(gmm, np.array([2]), rng)
    order = np.argsort(gmm.mean[:, 0])
    np.testing.assert_allclose(gmm.mean[order], truth.mean, atol=0.1)
    np.testing.assert_allclose(gmm.weight[order], truth.weight, atol=0.03)
    np.testing.assert_allclose(gmm.var, 1, atol=0.15)


def test_update_floors_variances_removes_the_rare_and_keeps_the_last() -> None:
    gmm = random_gmm(4, sizes=(2, 2))
    stats = zero_stats(gmm)
    stats.count[:] = [100, 1, 0, 0]
    stats.first[0], stats.second[0] = 100 * 5.0, 100 * 25.0
    new = update(gmm, stats)
    assert new.offset.tolist() == [0, 1, 2]
    np.testing.assert_allclose(new.mean[0], 5.0)
    np.testing.assert_allclose(new.var[0], MIN_VARIANCE)
    assert new.weight.tolist() == [1.0, 1.0]
    kept = 2 + int(np.argmax(gmm.weight[2:]))
    np.testing.assert_allclose(new.mean[1], gmm.mean[kept])


def test_split_targets_follow_the_power_and_the_count() -> None:
    counts = np.array([10000.0, 625.0, 30.0])
    targets = split_targets(counts, 30, power=0.25)
    assert targets.sum() == 30 and targets[2] == 1
    assert targets[0] / targets[1] == pytest.approx(10 / 5, rel=0.15)


def test_split_keeps_mean_and_weight() -> None:
    gmm = random_gmm(5)
    new = split(gmm, np.array([4, 3, 2]), np.random.default_rng(0))
    assert np.diff(new.offset).tolist() == [4, 3, 2]
    np.testing.assert_allclose(np.add.reduceat(new.weight, new.offset[:-1]), 1)
    np.testing.assert_allclose((new.weight[:4, None] * new.mean[:4]).sum(0), gmm.mean[0], atol=1e-9)


def test_round_trip_and_other_files(tmp_path) -> None:
    gmm = random_gmm(6)
    gmm.save(tmp_path / "m.safetensors")
    back = load_gmm(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(back.mean, gmm.mean)
    (tmp_path / "m.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(Speech3Error, match=r"m\.safetensors"):
        load_gmm(tmp_path / "m.safetensors")
