"""Models that score together: the mean of their scores, whatever features they read; models that cannot be combined."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from whistles import FEATURES, HMM, SAID, gaussians_to_network, write_network

from speech3.cli.recognise import decode
from speech3.config import ModelConfig
from speech3.data.datadir import read_datadir
from speech3.decode.apply import SideBySide, same_features, with_mean_scores
from speech3.decode.recognizer import load_recognizer
from speech3.errors import Speech3Error
from speech3.features.extraction import extract
from speech3.hmm.model import FIRST_AND_LOOP, Hmm, monophone_tree
from speech3.io.checkpoint import load_tensors, save_tensors
from speech3.models import build

DIM = FEATURES.num_mel_bins


@pytest.fixture
def network(model: Path) -> Path:
    gaussians_to_network(model)
    return model


def _other(network: Path, tmp_path: Path, scale: float = -0.5) -> Path:
    """A copy of the network whose scores are wrong: those of the original, multiplied by `scale`."""
    other = Path(shutil.copytree(network, tmp_path / "other"))
    tensors, about = load_tensors(other / "model.safetensors")
    changed = {name: scale * array if name.startswith("output.") else array for name, array in tensors.items()}
    save_tensors(other / "model.safetensors", changed, about)
    return other


def _words(out: Path) -> dict[str, tuple[str, ...]]:
    lines = (line.split() for line in (out / "hyp.txt").read_text().splitlines())
    return {name: tuple(words) for name, *words in lines}


def test_the_mean_of_log_likelihoods(network: Path, tmp_path: Path) -> None:
    one, two = load_recognizer(network), load_recognizer(_other(network, tmp_path))
    feats_TF = np.random.default_rng(0).normal(0, 2, (9, DIM)).astype(np.float32)
    scorer = with_mean_scores(one, [two, one]).scorer
    expected = (2 * one.scorer.loglikes(feats_TF) + two.scorer.loglikes(feats_TF)) / 3
    np.testing.assert_allclose(scorer.loglikes(feats_TF), expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(scorer.loglikes(feats_TF, np.array([4, 1])), expected[:, [4, 1]], rtol=1e-5, atol=1e-4)
    assert scorer.subsampling == 1 and not scorer.pseudo_likelihoods


def test_decode_with_another_model(speech3, network: Path, data: Path, tmp_path: Path) -> None:
    # The second alone gets the words wrong; the mean, which is a quarter of the first one's scores, gets them right.
    other = _other(network, tmp_path)
    right = {name: words for name, (words, _) in SAID.items()}
    assert speech3("decode", other, data, tmp_path / "alone", "--jobs", "1").returncode == 0
    assert _words(tmp_path / "alone") != right
    process = speech3("decode", network, data, tmp_path / "out", "--with", other, "--with", network, "--jobs", "1")
    assert process.returncode == 0, process.stderr
    assert _words(tmp_path / "out") == right
    assert (tmp_path / "out" / "hyp.ctm").exists()


def test_models_with_features_of_their_own(speech3, network: Path, data: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(network, tmp_path / "other"))
    values = yaml.safe_load((network / "features.yaml").read_text())
    (other / "features.yaml").write_text(yaml.safe_dump({**values, "deltas": 1}))
    tensors, about = load_tensors(network / "model.safetensors")
    config = ModelConfig.model_validate(about["model"])
    wide = build(config, 2 * DIM, about["num_senones"], seed=0)
    wide.output.weight.data = torch.from_numpy(np.pad(tensors["output.weight"], ((0, 0), (0, DIM))))
    wide.output.bias.data = torch.from_numpy(tensors["output.bias"])
    write_network(other, config, wide, tensors["log_prior"])
    process = speech3("decode", network, data, tmp_path / "out", "--with", other, "--jobs", "1")
    assert process.returncode == 0, process.stderr
    assert _words(tmp_path / "out") == {name: words for name, (words, _) in SAID.items()}
    assert (tmp_path / "out" / "with2" / "feats" / "feats.scp").exists()
    process = speech3("transcribe", network, *(line.split()[1] for line in (data / "wav.scp").open()), "--with", other)
    assert process.returncode == 1 and "other: reads other features than" in process.stderr


def test_no_utterance_is_cut_if_any_model_reads_given_features(
    network: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract(read_datadir(data), tmp_path / "feats", FEATURES.model_copy(update={"cmvn": "none"}), 1)
    shutil.copy(tmp_path / "feats" / "feats.scp", data)
    other = _other(network, tmp_path, scale=1)
    (other / "features.yaml").write_text("{kind: given, cmvn: utterance}")
    monkeypatch.setattr(
        "speech3.decode.output.cut_long_utterances", lambda data: pytest.fail("parts are not in feats.scp")
    )
    decode(network, data, tmp_path / "out", jobs=1, others=[other])
    assert _words(tmp_path / "out") == {name: words for name, (words, _) in SAID.items()}


def test_features_with_the_statistics_of_other_training_data_are_others(network: Path) -> None:
    one = load_recognizer(network)
    others = [
        replace(one, features=FEATURES.model_copy(update={"global_stats": ((float(n), 1.0),) * 2})) for n in range(2)
    ]
    assert same_features(others[0], others[0]) and not same_features(*others)
    assert same_features(one, replace(one, features=FEATURES.model_copy(update={"resample": True})))


def test_features_of_other_lengths_are_named() -> None:
    feats = SideBySide([{"a": np.zeros((3, 2)), "b": np.zeros((3, 2))}, {"a": np.ones((3, 1))}])
    assert list(feats) == ["a"] and len(feats) == 1 and feats["a"].tolist() == [[0, 0, 1]] * 3
    with pytest.raises(Speech3Error, match=r"b: has 3 and 4 frames"):
        SideBySide([{"b": np.zeros((3, 2))}, {"b": np.zeros((4, 2))}])["b"]


def test_transcribe_with_another_model(speech3, network: Path, sounds: dict[str, Path], tmp_path: Path) -> None:
    other = _other(network, tmp_path, scale=0.5)
    process = speech3("transcribe", network, sounds["ab"], "--with", other)
    assert process.returncode == 0, process.stderr
    assert tuple(process.stdout.split()) == SAID["ab"][0]
    process = speech3("transcribe", network, "-", "--stream", "--with", other)
    assert process.returncode == 1 and "--with: cannot be combined with --stream" in process.stderr


def _spoilt(kind: str, gmm: Path, other: Path) -> Path:
    if kind == "gmm":
        return gmm
    phones = np.arange(len(HMM.lexicon.phones))
    model = ModelConfig.model_validate({"layers": 0, "left_context": 0, "right_context": 0})
    hmm, more = HMM, {}
    if kind == "rate":
        hmm = Hmm(HMM.lexicon, monophone_tree(phones, 2), np.full(2 * len(phones), 0.5), FIRST_AND_LOOP, 3)
        model = model.model_copy(update={"subsampling": 3, "left_context": 1, "right_context": 1})
    elif kind == "senones":
        hmm = Hmm(HMM.lexicon, monophone_tree(phones, 2), np.full(2 * len(phones), 0.5), FIRST_AND_LOOP, 1)
    elif kind == "tree":
        hmm = Hmm(HMM.lexicon, monophone_tree(phones[::-1].copy()), HMM.self_loop)
    else:
        more = {"objective": "lfmmi"}
    hmm.save(other)
    write_network(other, model, build(model, DIM, hmm.num_pdfs, seed=0), np.zeros(hmm.num_pdfs, np.float32), **more)
    return other


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gmm", "consists of GMMs"),
        ("rate", "one has scores every 10 ms, the other every 30 ms"),
        ("senones", "senones, the other"),
        ("tree", "senones in both, but of different trees"),
        ("objective", "only one of them was trained with LF-MMI"),
    ],
)
def test_models_that_cannot_score_together(
    speech3, network: Path, gmm: Path, data: Path, tmp_path: Path, kind: str, words: str
) -> None:
    other = _spoilt(kind, gmm, Path(shutil.copytree(network, tmp_path / "spoilt")))
    process = speech3("decode", network, data, tmp_path / "out", "--with", other, "--jobs", "1")
    assert process.returncode == 1 and "Traceback" not in process.stderr
    assert f"{network} and {other} cannot score together" in process.stderr.replace("\n", " ")
    assert words in process.stderr
