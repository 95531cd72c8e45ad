"""A model like those of LF-MMI on recordings: an output for every third frame, used as log likelihoods at scale 1."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import toys
from whistles import FEATURES, HMM, SAID, features_of_file, write_network

from speech3.config import DecodeConfig, ModelConfig
from speech3.corpora.tiers import read_textgrid
from speech3.data.datadir import read_datadir
from speech3.decode.align import align_datadir
from speech3.decode.apply import features_for, write_loglikes
from speech3.decode.graph import build_graph
from speech3.decode.recognizer import load_recognizer, transcribe
from speech3.decode.trained_model import LARGEST_PSEUDO, DecodeSettings, NetworkScorer
from speech3.decode.tune import tune_recognizer
from speech3.errors import MismatchError
from speech3.hmm.alignment.times import frame_clock, read_ctm
from speech3.hmm.gmm import load_gmm
from speech3.hmm.model import FIRST_AND_LOOP, Hmm, monophone_tree
from speech3.io.ark import read_int_ark
from speech3.io.checkpoint import load_tensors, save_tensors
from speech3.models.registry import build

# Where the audio of each word begins and ends.
WORDS_S = {"ab": [("AB", 0.3, 0.7)], "a-bb": [("A", 0.25, 0.55), ("BB", 0.75, 1.05)]}
DIM = FEATURES.num_mel_bins
NEAR = 0.0275  # half an output (30 ms) and half a window (25 ms), which is loud as soon as its last samples are


@pytest.fixture
def model(gmm: Path, tmp_path: Path) -> Path:
    """The Gaussians of the whistles as a linear network, in place of one that learnt from whole sentences."""
    model = tmp_path / "model"
    shutil.copytree(gmm, model)
    phones = len(HMM.lexicon.phones)
    hmm = Hmm(HMM.lexicon, monophone_tree(np.arange(phones), 2), np.full(2 * phones, 0.5), FIRST_AND_LOOP, 3)
    hmm.save(model)
    gaussians = load_gmm(model / "model.safetensors")
    mean, var = (array[::3].repeat(2, axis=0) for array in (gaussians.mean, gaussians.var))
    config = ModelConfig.model_validate({"layers": 0, "left_context": 1, "right_context": 1, "subsampling": 3})
    network = build(config, mean.shape[1], len(mean), seed=0)
    network.output.weight.data = torch.from_numpy(np.pad(0.3 * mean / var, ((0, 0), (DIM, DIM)))).float()
    network.output.bias.data = torch.from_numpy(-0.15 * (mean**2 / var).sum(1)).float()
    write_network(model, config, network, np.linspace(-9, 0, len(mean), dtype=np.float32), objective="lfmmi")
    build_graph(hmm, toys.estimate_lm([["A"], ["AB"], ["BB"], ["A", "BB"]], 2), model / "graph", 1.0)
    DecodeSettings(acoustic_scale=1.0, word_penalty=0.0, beam=30.0, max_active=1000).save(model)
    return model


def test_outputs_are_log_likelihoods_as_they_are(model: Path) -> None:
    recognizer = load_recognizer(model)
    scorer = recognizer.scorer
    assert isinstance(scorer, NetworkScorer)
    assert scorer.pseudo_likelihoods and scorer.subsampling == 3 and recognizer.alignment_scale == 1.0
    feats_TF = np.random.default_rng(0).normal(0, 2, (8, FEATURES.num_mel_bins)).astype(np.float32)
    network = scorer.network
    weight, bias = (each.detach().numpy() for each in (network.output.weight, network.output.bias))
    expected = feats_TF[[1, 4, 7]] @ weight[:, DIM : 2 * DIM].T + bias
    np.testing.assert_allclose(scorer.loglikes(feats_TF), expected.clip(-30, 30), atol=1e-4)
    pdfs = np.array([3, 0])
    np.testing.assert_array_equal(scorer.loglikes(feats_TF, pdfs), scorer.loglikes(feats_TF)[:, pdfs])
    assert np.abs(scorer.loglikes(1e4 * feats_TF)).max() == LARGEST_PSEUDO


def test_words_and_their_times(model: Path, sounds: dict[str, Path]) -> None:
    results = list(transcribe(load_recognizer(model), list(sounds.values()), times=True))
    for result, (name, expected) in zip(results, WORDS_S.items(), strict=True):
        assert tuple(result.text.split()) == SAID[name][0]
        for found, (label, start_s, end_s) in zip(result.words, expected, strict=True):
            assert found.label == label
            assert (found.start_s, found.end_s) == pytest.approx((start_s, end_s), abs=NEAR)


def test_files_of_the_alignment(model: Path, data: Path, tmp_path: Path) -> None:
    recognizer = load_recognizer(model)
    align_datadir(recognizer, read_datadir(data), tmp_path / "out", 1)
    words, phones = (read_ctm(tmp_path / "out" / f"{name}.ctm") for name in ("words", "phones"))
    for name, expected in WORDS_S.items():
        for found, (label, start_s, end_s) in zip(words[name], expected, strict=True):
            assert found.label == label and found.confidence is not None
            assert (found.start_s, found.end_s) == pytest.approx((start_s, end_s), abs=NEAR)
        _, segments = SAID[name]
        assert phones[name][0].start_s == 0.0 and phones[name][-1].end_s == pytest.approx(sum(s for _, s in segments))
    assert [s.label for s in phones["ab"]] == ["SIL", "a", "b", "SIL"]
    assert phones["ab"][2].start_s == pytest.approx(0.5, abs=NEAR)
    grid = {tier.name: tier for tier in read_textgrid(tmp_path / "out" / "textgrid" / "ab.TextGrid")}
    assert grid["phones"].annotations[2].start_s == pytest.approx(phones["ab"][2].start_s, abs=6e-4)
    feats, _ = features_for(recognizer, read_datadir(data), 1, tmp_path / "again")
    pdfs = read_int_ark(tmp_path / "out" / "ali.ark")
    assert {name: len(pdf_K) for name, pdf_K in pdfs.items()} == {n: -(-len(feats[n]) // 3) for n in WORDS_S}
    assert write_loglikes(recognizer, feats, tmp_path / "forward", {}) == 2


def test_tuning_at_scale_one(model: Path, sounds: dict[str, Path]) -> None:
    recognizer = load_recognizer(model)
    feats = {name: features_of_file(recognizer, path) for name, path in sounds.items()}
    config = DecodeConfig(acoustic_scales=(0.8, 1.0, 1.3), word_penalties=(0.0,), beam=30.0)
    tuned = tune_recognizer(recognizer, feats, {name: SAID[name][0] for name in sounds}, config)
    assert tuned.best.acoustic_scale == 1.0 and tuned.best.error_rate == 0.0


def test_times_of_outputs_are_those_of_their_first_frames() -> None:
    clock = frame_clock(FEATURES, 3)
    seconds = clock.edges(np.array([0, 2, 5, 7]), duration_s=0.22)
    assert seconds.tolist() == pytest.approx([0.0, 0.0675, 0.1575, 0.22])
    assert frame_clock(FEATURES).edges(np.array([0, 6, 15, 20]), 0.22)[:3].tolist() == seconds[:3].tolist()


def test_another_rate_than_the_hmm_is_refused(model: Path) -> None:
    tensors, about = load_tensors(model / "model.safetensors")
    save_tensors(model / "model.safetensors", tensors, {**about, "model": {**about["model"], "subsampling": 1}})
    with pytest.raises(MismatchError, match="model: the model has an output every 1 frames, but"):
        load_recognizer(model)


def test_utterances_too_short_for_their_phones(model: Path, sounds: dict[str, Path]) -> None:
    recognizer = load_recognizer(model)
    feats = features_of_file(recognizer, sounds["ab"])
    texts = {f"u{number}": "AB" for number in range(30)}
    all_feats = dict.fromkeys(texts, feats) | {"u0": feats[:3]}
    alignments, bad = recognizer.align(all_feats, texts)
    assert len(alignments) == 29
    assert bad == {"u0": "1 output (3 frames / 3): too few for its phones, which need at least 2"}
    assert dataclasses.replace(recognizer).clock.subsampling == 3
