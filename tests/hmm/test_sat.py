"""LDA, MLLT and speaker-adaptive training on utterances drawn from a known HMM, distorted by speaker."""

from pathlib import Path

import numpy as np
import pytest
from drawn import draw

from speech3.config import HmmConfig
from speech3.errors import Speech3Error
from speech3.hmm import sat as adaptation, train
from speech3.hmm.model import Hmm
from speech3.hmm.sat import (
    Projected,
    ProjectedGmm,
    SatSystem,
    check_transforms,
    load_adapted,
    load_projection,
    merged_estimates,
    save_adapted,
    save_projection,
    train_lda,
    train_sat,
)
from speech3.hmm.train import GmmSystem, sized_transformed, train_monophone, train_triphone
from speech3.hmm.transforms import Projection, identity
from speech3.hmm.workers import Workers
from speech3.language.lexicon import Lexicon
from speech3.runtime import Metrics, read_metrics

STAGE = {
    "iterations": 6,
    "leaves": 18,
    "gaussians": 30,
    "max_iteration_increase": 4,
    "realign": [3],
    "min_leaf_frames": 20,
    "transform": [2, 4],
}
CONFIG = HmmConfig.model_validate(
    {
        "mono": {"iterations": 8, "gaussians": 20, "max_iteration_increase": 6},
        "tri": {key: value for key, value in STAGE.items() if key != "transform"},
        "lda": {**STAGE, "dim": 6, "context": 1},
        "sat": {**STAGE, "min_frames": 100, "prior_frames": 20},
    }
)


def trained(lexicon: Lexicon, hmm: Hmm, tmp_path: Path, jobs: int) -> tuple[GmmSystem, Projection, SatSystem]:
    """Systems of 60 utterances of four speakers, each with an affine distortion of its own, and a fifth with one."""
    drawn, rng = draw(hmm, 60, seed=4), np.random.default_rng(5)
    distortion = {f"s{number}": np.eye(6) + 0.2 * rng.standard_normal((6, 6)) for number in range(5)}
    offset = {speaker: rng.standard_normal(6) for speaker in distortion}
    speaker_of = {name: "s4" if number == 0 else f"s{number % 4}" for number, name in enumerate(drawn.words)}
    feats = {
        name: (each @ distortion[speaker_of[name]].T + offset[speaker_of[name]]).astype(np.float32)
        for name, each in drawn.feats.items()
    }
    metrics = Metrics(tmp_path / "metrics.jsonl")
    with Workers(drawn.words, Projected(feats, speaker_of), jobs, speaker_of) as workers:
        mono = train_monophone(workers, lexicon, CONFIG, rng, metrics)
        tri = train_triphone(workers, mono, CONFIG, rng, metrics)
        lda, projection = train_lda(workers, tri, CONFIG, (6, 6), rng, metrics)
        return lda, projection, train_sat(workers, lda, CONFIG, rng, metrics)


def test_sat_fits_better_and_one_process_gives_what_two_give(lexicon: Lexicon, hmm: Hmm, tmp_path: Path) -> None:
    lda, projection, sat = trained(lexicon, hmm, tmp_path, jobs=1)
    assert projection.matrix.shape == (6, 18) and not lda.failed and not sat.system.failed
    likes = {
        name: [
            r["loglike_per_frame"]
            for r in read_metrics(tmp_path / "metrics.jsonl")
            if r["event"] == "gmm" and r["system"] == name
        ][-1]
        for name in ("lda", "sat")
    }
    assert likes["sat"] > likes["lda"] + 0.5
    assert set(sat.estimated.transforms) == {"s0", "s1", "s2", "s3"}
    assert "fewer than 100" in sat.estimated.without["s4"]
    assert len(sat.twin.weight) == len(sat.system.gmm.weight)
    (tmp_path / "two").mkdir()
    _, projection_2, sat_2 = trained(lexicon, hmm, tmp_path / "two", jobs=2)
    np.testing.assert_allclose(projection_2.matrix, projection.matrix, rtol=1e-4, atol=1e-4)
    for speaker, transform in sat.estimated.transforms.items():
        np.testing.assert_allclose(sat_2.estimated.transforms[speaker], transform, atol=1e-3)


def test_a_model_is_what_was_saved(lexicon: Lexicon, hmm: Hmm, tmp_path: Path) -> None:
    _, projection, sat = trained(lexicon, hmm, tmp_path, jobs=1)
    sized = sized_transformed(CONFIG, 1.0)
    assert sized.sat
    save_projection(tmp_path, projection)
    save_adapted(tmp_path, sat, sized.sat, {"features": "x"})
    back, adapted = load_projection(tmp_path), load_adapted(tmp_path)
    assert back and (back.statics, back.context, back.inputs) == (6, 1, 6)
    np.testing.assert_array_equal(back.matrix, projection.matrix)
    np.testing.assert_array_equal(adapted.gmm.mean, sat.system.gmm.mean)
    assert (adapted.min_frames, adapted.prior_frames, adapted.passes) == (100.0, 20.0, 4)
    scorer = ProjectedGmm(sat.twin, back)
    feats_TF = np.random.default_rng(1).standard_normal((9, 6)).astype(np.float32)
    np.testing.assert_allclose(scorer.score_inside(feats_TF), scorer.loglikes(feats_TF)[1:-1], rtol=1e-5)
    assert load_projection(tmp_path / "nowhere") is None
    with pytest.raises(Speech3Error, match="adaptation to speakers"):
        load_adapted(tmp_path / "nowhere")


def test_a_known_transform_of_a_speaker_is_undone(lexicon: Lexicon, hmm: Hmm) -> None:
    drawn, rng = draw(hmm, 40, seed=6), np.random.default_rng(7)
    matrix = np.eye(6) + 0.2 * rng.standard_normal((6, 6))
    from speech3.hmm.gmm import Gmm

    gmm = Gmm(np.arange(hmm.num_pdfs + 1), np.ones(hmm.num_pdfs), drawn.means, np.ones_like(drawn.means))
    speaker_of = {name: ("plain", "other")[number % 2] for number, name in enumerate(drawn.words)}
    feats = {
        name: each @ matrix.T.astype(np.float32) if speaker_of[name] == "other" else each
        for name, each in drawn.feats.items()
    }
    projection = Projection(np.eye(6), statics=6, context=0, inputs=6)
    with Workers(drawn.words, Projected(feats, speaker_of, projection), 1, speaker_of) as workers:
        for _ in range(4):
            workers.run(train.realign, hmm, gmm, 15.0, 60.0)
            found = workers.run(adaptation.estimate_transforms, hmm, gmm, 100.0)
    transforms = merged_estimates(found).transforms
    np.testing.assert_allclose(transforms["plain"], identity(6), atol=0.2)
    np.testing.assert_allclose(transforms["other"][:, :-1] @ matrix, np.eye(6), atol=0.2)


def test_transforms_that_do_not_fit_are_named() -> None:
    check_transforms({"a": identity(4)}, 4, "trans.scp")
    with pytest.raises(Speech3Error, match=r"trans.scp: a: a transform of 4 x 5, but .* 6 x 7"):
        check_transforms({"a": identity(4)}, 6, "trans.scp")
    with pytest.raises(Speech3Error, match="not finite"):
        check_transforms({"a": identity(4) * np.nan}, 4, "trans.scp")


def test_sizes_follow_those_of_the_triphones() -> None:
    config = HmmConfig.model_validate({"tri": {"leaves": 80, "gaussians": 250}})
    small, large = sized_transformed(config, 0.25), sized_transformed(config, 2.24)
    assert small.lda and small.sat and large.lda and large.sat
    assert (small.lda.leaves, small.lda.gaussians, small.sat.leaves, small.sat.gaussians) == (80, 250, 80, 250)
    assert (large.lda.leaves, large.sat.leaves, large.sat.gaussians) == (80, 100, 312)
    given = HmmConfig.model_validate({"lda": {"leaves": 7}, "sat": {"gaussians": 9}})
    assert sized_transformed(given, 1.0).lda.leaves == 7 and sized_transformed(given, 1.0).sat.gaussians == 9  # type: ignore[union-attr]
