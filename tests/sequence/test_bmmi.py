"""Boosted MMI of GMMs against enumeration of all paths, and what its iterations must do."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from denominators import enumerated_paths, toy_senones

from speech3.config import BmmiConfig, RecipeConfig, load_config, shipped
from speech3.errors import Speech3Error
from speech3.hmm.gmm import Gmm, accumulate_weighted, extended_baum_welch, zero_stats
from speech3.hmm.model import Hmm, monophone_tree
from speech3.hmm.workers import Workers, WorkerShare
from speech3.io.ark import read_int_ark, write_ark
from speech3.language.lexicon import UNKNOWN, Lexicon, Pronunciation
from speech3.runtime import Metrics, read_metrics
from speech3.sequence import bmmi
from speech3.sequence.bmmi import Statistics, batches, collect, cut, stretches, train, unknown_senones, weights
from speech3.sequence.discriminative import Discriminative, senone_graph

SENONES, DIM, LEAK = 4, 2, 0.1
NOTHING = np.zeros(SENONES, bool)
DIGITS = shipped("recipes") / "digits" / "recipe.yaml"


def toy_gmm(seed: int = 0) -> Gmm:
    """Close together, so that there is something to learn; senones 1 and 3 have two Gaussians."""
    rng = np.random.default_rng(seed)
    weight = np.array([1, 0.4, 0.6, 1, 0.7, 0.3])
    return Gmm(np.array([0, 1, 3, 4, 6]), weight, rng.standard_normal((6, DIM)), rng.uniform(0.5, 1.5, (6, DIM)))


def toy_criterion(boost: float, scale: float = 0.5) -> Discriminative:
    graph = senone_graph(*toy_senones(0, SENONES), SENONES, 3)
    return Discriminative(graph, np.zeros(SENONES, np.float32), False, scale, boost, LEAK)


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[dict[str, np.ndarray], Path]:
    """Utterances of which the senones are known but for the noise, and their alignment."""
    rng, centre_SD = np.random.default_rng(3), 1.2 * np.random.default_rng(0).standard_normal((SENONES, DIM))
    senones = {f"u{n}": rng.integers(0, SENONES, rng.integers(5, 15)).repeat(3) for n in range(12)}
    write_ark(tmp_path / "ali.ark", ((key, each.astype(np.int32)) for key, each in senones.items()))
    feats = {
        key: (centre_SD[each] + rng.standard_normal((len(each), DIM))).astype(np.float32)
        for key, each in senones.items()
    }
    return feats, tmp_path / "ali.ark"


def share_of(feats: dict[str, np.ndarray], *utterances: str) -> WorkerShare:
    return WorkerShare({utterance: [] for utterance in utterances or feats}, feats)


def enumerated_criterion(criterion: Discriminative, gmm: Gmm, feats_TD: np.ndarray, said: tuple[int, ...]) -> float:
    """Log posterior of the alignment among all paths one by one, with densities in float64."""
    x_T1D = feats_TD[:, None].astype(np.float64)
    log_TG = np.log(gmm.weight) - 0.5 * (np.log(2 * np.pi * gmm.var) + (x_T1D - gmm.mean) ** 2 / gmm.var).sum(2)
    scores_TS = criterion.acoustic_scale * np.logaddexp.reduceat(log_TG, gmm.offset[:-1], axis=1)
    right = sum(w for w, pdfs in enumerated_paths(scores_TS, criterion.graph, LEAK) if pdfs == said)
    for t, senone in enumerate(said):
        scores_TS[t, senone] -= criterion.boost
    return math.log(right) - math.log(sum(w for w, _ in enumerated_paths(scores_TS, criterion.graph, LEAK)))


@pytest.mark.parametrize("boost", [0.0, 0.7])
def test_statistics_give_the_gradient_of_the_enumerated_criterion(boost: float) -> None:
    """By one dimension of each mean, by finite differences; and the value is that of the enumeration."""
    gmm, criterion, said_T = toy_gmm(), toy_criterion(boost), np.array([2, 2, 1])
    feats_TD = np.random.default_rng(5).standard_normal((3, DIM)).astype(np.float32)
    value, weight_TS = weights(gmm, criterion, feats_TD, said_T, 3)
    assert value == pytest.approx(enumerated_criterion(criterion, gmm, feats_TD, tuple(said_T)), abs=1e-5)
    net = zero_stats(gmm)
    accumulate_weighted(gmm, net, feats_TD, *np.divmod(np.arange(weight_TS.size), SENONES), weight_TS.ravel())
    gradient_GD = criterion.acoustic_scale * (net.first - net.count[:, None] * gmm.mean) / gmm.var
    numeric_G, step = np.zeros(len(gmm.mean)), 1e-5
    for g in range(len(gmm.mean)):
        for sign in (1, -1):
            moved = gmm.mean.copy()
            moved[g, g % DIM] += sign * step
            there = enumerated_criterion(criterion, replace(gmm, mean=moved), feats_TD, tuple(said_T))
            numeric_G[g] += sign * there / (2 * step)
    each = np.arange(len(gmm.mean))
    np.testing.assert_allclose(gradient_GD[each, each % DIM], numeric_G, atol=1e-5)
    assert abs(numeric_G).max() > 0.01


def test_what_numerator_and_denominator_have_in_common_is_cancelled(corpus) -> None:
    feats, alignment = corpus
    found = collect(share_of(feats), toy_gmm(), toy_criterion(0.0), alignment, NOTHING, "toy")
    frames = sum(map(len, feats.values()))
    assert found.frames == frames
    assert 0 < found.numerator.count.sum() < frames
    assert found.numerator.count.sum() == pytest.approx(found.denominator.count.sum(), rel=0.02)


@pytest.mark.parametrize("boost", [0.0, 0.1])
def test_each_iteration_raises_the_criterion(corpus, boost: float) -> None:
    (feats, alignment), gmm, values = corpus, toy_gmm(), []
    for _ in range(6):
        found = collect(share_of(feats), gmm, toy_criterion(boost), alignment, NOTHING, "toy")
        values.append(found.log_posterior / found.frames)
        gmm = extended_baum_welch(gmm, found.numerator, found.denominator, tau=20)
    assert all(after > before for before, after in pairwise(values)), values
    assert values[-1] > values[0] + 0.05


def test_shares_add_up_to_the_whole(corpus) -> None:
    """So the result does not depend on the number of processes, but for the rounding of sums."""
    feats, alignment = corpus
    names = list(feats)
    whole, total, part = (
        collect(share_of(feats, *some), toy_gmm(), toy_criterion(0.1), alignment, NOTHING, "toy")
        for some in (names, names[::2], names[1::2])
    )
    total += part
    assert isinstance(total, Statistics) and total.frames == whole.frames
    assert total.log_posterior == pytest.approx(whole.log_posterior)
    for side in ("numerator", "denominator"):
        for name in ("count", "first", "second"):
            np.testing.assert_allclose(*(getattr(getattr(s, side), name) for s in (total, whole)), atol=1e-4)


def test_chunks_cover_every_frame_of_known_words_once(monkeypatch) -> None:
    senones = {"short": np.array([1, 0, 0]), "long": np.repeat([0, 3, 1, 2, 3], [700, 40, 300, 60, 5])}
    unknown_S = np.arange(SENONES) == 3
    chunks = [c for key, each in senones.items() for span in stretches(each, unknown_S) for c in cut(key, *span)]
    seen = {key: [t for c in chunks if c.utterance == key for t in range(c.first, c.end)] for key in senones}
    assert seen == {key: np.flatnonzero(each != 3).tolist() for key, each in senones.items()}
    assert max(chunk.frames for chunk in chunks) <= 1.5 * 150
    monkeypatch.setattr(bmmi, "_BATCH", 2)
    found = batches(chunks)
    assert all(len({chunk.frames for chunk in batch}) == 1 and len(batch) <= 2 for batch in found)
    assert sum(map(len, found)) == len(chunks)


def test_the_senones_of_unknown_words_are_those_of_the_phone_that_only_they_have() -> None:
    prons = [Pronunciation("ab", ("a", "b")), Pronunciation(UNKNOWN, ("SPN",)), Pronunciation("hm", ("HM",))]
    for words, phones in ((prons, {"SPN"}), ([*prons, Pronunciation("uh", ("SPN",))], set()), (prons[::2], set())):
        lexicon = Lexicon(tuple(words))
        tree = monophone_tree(np.arange(len(lexicon.phones)))
        found_S = unknown_senones(Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5)))
        expected = [3 * (lexicon.phone_ids[phone] - 1) + state for phone in phones for state in range(3)]
        assert np.flatnonzero(found_S).tolist() == expected


def test_what_is_left_out_is_not_in_the_graph_and_remains_as_it_is(corpus, tmp_path: Path) -> None:
    (feats, alignment), unknown_S = corpus, np.arange(SENONES) == 3
    config = BmmiConfig(iterations=1, acoustic_scale=0.5)
    with Workers({key: [] for key in feats}, feats, 1) as workers:
        new = train(workers, toy_gmm(), config, alignment, unknown_S, Metrics(tmp_path / "metrics.jsonl"))
    moved_G = (new.mean != toy_gmm().mean).all(1)
    assert moved_G.tolist() == [True] * 4 + [False] * 2
    known = sum(int((each != 3).sum()) for each in read_int_ark(alignment).values())
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["frames"] == known


def test_training_writes_its_criterion_and_gets_better(corpus, tmp_path: Path) -> None:
    feats, alignment = corpus
    config = BmmiConfig(iterations=3, acoustic_scale=0.5, tau=20, extra_lm_states=3)
    with Workers({key: [] for key in feats}, feats, 1) as workers:
        new = train(workers, toy_gmm(), config, alignment, NOTHING, Metrics(tmp_path / "metrics.jsonl"))
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [record["iteration"] for record in records] == [1, 2, 3]
    values = [record["log_posterior_per_frame"] for record in records]
    assert values == sorted(values) and values[0] < values[-1]
    assert not np.allclose(new.mean, toy_gmm().mean)


def test_bad_input_is_named(corpus, tmp_path: Path) -> None:
    (feats, alignment), config = corpus, BmmiConfig(iterations=1)
    metrics = Metrics(tmp_path / "metrics.jsonl")
    with Workers({key: [] for key in feats}, feats, 1) as workers:
        smaller = Gmm(np.array([0, 1, 3]), *(getattr(toy_gmm(), name)[:3] for name in ("weight", "mean", "var")))
        with pytest.raises(Speech3Error, match=r"ali\.ark: has senone 3, but the GMMs only 2"):
            train(workers, smaller, config, alignment, NOTHING, metrics)
        write_ark(tmp_path / "none.ark", ())
        with pytest.raises(Speech3Error, match=r"none\.ark: no known word is aligned"):
            train(workers, toy_gmm(), config, tmp_path / "none.ark", NOTHING, metrics)
    feats["u7"][2, 1] = np.nan
    with pytest.raises(Speech3Error, match=r"criterion of boosted MMI is nan.* one of .*u7"):
        collect(share_of(feats), toy_gmm(), toy_criterion(0.1), alignment, NOTHING, "toy")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["hmm.tri.discriminative=mpe"], r"hmm\.tri\.discriminative: .*'bmmi'.*mpe"),
        (["hmm.mono.discriminative=bmmi"], r"unknown key 'hmm\.mono\.discriminative'"),
        (["hmm.bmmi.tau=-1"], r"hmm\.bmmi\.tau"),
        (["hmm.tri.discriminative=bmmi", "hmm.flat_start=lfmmi", "lfmmi={}"], "no GMMs .*set it to null"),
    ],
)
def test_wrong_keys_are_named(overrides: list[str], message: str) -> None:
    with pytest.raises(Speech3Error, match=message):
        load_config(RecipeConfig, DIGITS, overrides)
