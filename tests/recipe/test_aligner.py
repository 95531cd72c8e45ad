"""The aligner of the digits recipe against the synthesiser's own phone times: the issue's 90 % within 20 ms."""

from pathlib import Path

import numpy as np
import pytest

from speech3.config import FeatureConfig, HmmConfig, RecipeConfig, load_config, load_preset, shipped
from speech3.corpus import digits
from speech3.corpus.datadir import read_datadir
from speech3.features.extract import extract
from speech3.hmm.align import align, usable_transcripts
from speech3.hmm.lexicon import read_lexicon
from speech3.hmm.times import frame_clock, phone_stretches, read_ctm
from speech3.hmm.train import train_monophone
from speech3.hmm.workers import Workers
from speech3.io.ark import ArkReader
from speech3.io.progress import Metrics
from speech3.scoring.borders import compare_borders

pytest.importorskip("espeakng_loader", reason="the built-in corpus needs espeakng-loader")


def test_nine_of_ten_phone_borders_lie_within_20_ms(tmp_path: Path) -> None:
    hmm = load_config(RecipeConfig, shipped("recipes") / "digits" / "recipe.yaml").hmm
    features = load_preset(FeatureConfig, "features", hmm.aligner_features)
    digits.prepare(None, tmp_path, seed=1, jobs=2, dev=6)
    lexicon = read_lexicon(tmp_path / "lexicon.txt")
    feats, texts = {}, {}
    for split in ("train", "test"):
        data = read_datadir(tmp_path / split)
        extract(data, tmp_path / "feats" / split, features, jobs=2)
        feats[split] = ArkReader(tmp_path / "feats" / split / "feats.scp")
        texts[split] = {key: utterance.text for key, utterance in data.utterances.items()}
    config = HmmConfig(mono=hmm.aligner)
    words = usable_transcripts(texts["train"], lexicon, feats["train"]).words
    with Workers(words, feats["train"], 2) as workers:
        system = train_monophone(workers, lexicon, config, np.random.default_rng(1), Metrics(tmp_path / "metrics"))
    transcripts = usable_transcripts(texts["test"], lexicon, feats["test"])
    aligned = align(system.hmm, system.gmm, transcripts, feats["test"], beam=15, retry_beam=60, jobs=1)
    assert not aligned.bad
    found = {key: phone_stretches(a, lexicon, frame_clock(features)) for key, a in aligned.alignments.items()}
    conditions = dict(line.split() for line in (tmp_path / "test" / "conditions").read_text().splitlines())
    reference = read_ctm(tmp_path / "test" / "reference.ctm")
    clean = {key: track for key, track in reference.items() if conditions[key] == "clean"}
    borders = compare_borders(clean, found, digits.one_vowel, digits.unmarked_border)
    assert not borders.mismatched and len(borders.differences_s) > 500
    assert borders.within(0.020) >= 0.90
    # The clock is right: borders are neither early nor late on the whole.
    assert abs(np.median(borders.differences_s)) < 0.005
