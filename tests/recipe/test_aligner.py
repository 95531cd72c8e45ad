"""The aligner of the recipes, on hand-corrected boundaries of real speech if available, otherwise on synthesised ones.

The best settings for synthesised speech are not the best for real speech: without derivatives, 93 % of the boundaries
of digits are within 20 ms, but the errors on the words in ../shared/corpora/borders are a third larger.
"""

from pathlib import Path

import numpy as np
import pytest

from speech3.config import FeatureConfig, HmmConfig, RecipeConfig, load_config, load_preset, shipped
from speech3.corpora import digits
from speech3.data.datadir import DataDir, read_datadir
from speech3.evaluate.boundaries import compare_boundaries
from speech3.features.extraction import extract
from speech3.hmm.alignment.align import align_utterances, usable_transcripts
from speech3.hmm.alignment.boundaries import DataWaves, Refinement, along_boundaries
from speech3.hmm.alignment.times import Segment, frame_clock, phone_segments, read_ctm
from speech3.hmm.clustering import phone_groups
from speech3.hmm.train import train_monophone, with_sizes
from speech3.hmm.workers import Workers
from speech3.io.ark import ArkReader
from speech3.language.lexicon import SILENCE, read_lexicon
from speech3.runtime.files import Metrics

BOUNDARIES = Path(__file__).resolve().parents[3] / "shared" / "corpora" / "borders"


def _recipe(name: str) -> HmmConfig:
    return load_config(RecipeConfig, shipped("recipes") / name / "recipe.yaml").hmm


def _aligned(
    hmm: HmmConfig, lexicon_file: Path, train: DataDir, test: DataDir, out: Path, jobs: int
) -> dict[str, list[Segment]]:
    """The phones of `test`, by the recipe's aligner trained on `train`."""
    features = load_preset(FeatureConfig, "features", hmm.aligner_features)
    lexicon, feats, words = read_lexicon(lexicon_file), {}, {}
    for data in {train.path: train, test.path: test}.values():
        extract(data, out / data.path.name, features, jobs)
        feats[data.path] = ArkReader(out / data.path.name / "feats.scp")
        texts = {key: utterance.text for key, utterance in data.utterances.items()}
        words[data.path] = usable_transcripts(texts, lexicon, feats[data.path])
    config, clock = hmm.model_copy(update={"mono": hmm.aligner}), frame_clock(features)
    with Workers(words[train.path].words, feats[train.path], jobs) as workers:
        system = train_monophone(workers, lexicon, config, np.random.default_rng(1), Metrics(out / "metrics"))
        system = along_boundaries(workers, system, config, Refinement(clock, DataWaves(train)))
    aligned = align_utterances(
        system.hmm,
        system.gmm,
        words[test.path],
        feats[test.path],
        beam=15,
        retry_beam=60,
        jobs=1,
        refinement=Refinement(clock, DataWaves(test)),
    )
    assert len(aligned.bad) <= 0.01 * len(feats[test.path])
    return {key: phone_segments(a, lexicon, clock) for key, a in aligned.alignments.items()}


@pytest.mark.slow
@pytest.mark.skipif(not BOUNDARIES.exists(), reason="../shared/corpora/borders is not here")
def test_boundaries_that_people_corrected(tmp_path: Path) -> None:
    data, lexicon = read_datadir(BOUNDARIES), BOUNDARIES / "lang" / "lexicon.txt"
    # The sizes that recipe `any` chooses for 0.30 hours.
    hmm = with_sizes(_recipe("any"), 0.30, len(phone_groups(read_lexicon(lexicon))))
    found, reference = _aligned(hmm, lexicon, data, data, tmp_path, 2), read_ctm(BOUNDARIES / "ref.ctm")
    off_s = []
    for word, truth in reference.items():
        phones = [stretch for stretch in found[word] if stretch.label != SILENCE]
        assert [s.label for s in phones] and len(phones) == len(truth)
        off_s += [ours.start_s - true.start_s for ours, true in zip(phones[1:], truth[1:], strict=True)]
    assert len(off_s) > 3500
    # 14.2 ms; 18.4 by the Viterbi path alone, and 26.5 without derivatives.
    assert np.abs(off_s).mean() < 0.0155
    assert abs(np.median(off_s)) < 0.010


@pytest.mark.slow
@pytest.mark.skipif(BOUNDARIES.exists(), reason="the aligner is measured on ../shared/corpora/borders")
def test_boundaries_that_the_synthesiser_marks(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="the built-in corpus needs espeakng-loader")
    digits.prepare(None, tmp_path, seed=1, jobs=2, dev=6)
    train, test = (read_datadir(tmp_path / split) for split in ("train", "test"))
    found = _aligned(_recipe("digits"), tmp_path / "lexicon.txt", train, test, tmp_path / "feats", 2)
    conditions = dict(line.split() for line in (tmp_path / "test" / "conditions").read_text().splitlines())
    reference = read_ctm(tmp_path / "test" / "reference.ctm")
    clean = {key: track for key, track in reference.items() if conditions[key] == "clean"}
    assert clean.keys() <= found.keys()
    boundaries = compare_boundaries(clean, found, digits.one_vowel, digits.unmarked_boundary)
    assert not boundaries.mismatched and len(boundaries.differences_s) > 500
    assert boundaries.within(0.020) >= 0.60 and boundaries.within(0.050) >= 0.90  # 0.69, 0.96
    # The frame clock is right: on average, boundaries are neither early nor late.
    assert abs(np.median(boundaries.differences_s)) < 0.005
