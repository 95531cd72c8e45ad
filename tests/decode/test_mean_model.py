"""A model directory with two networks whose scores are averaged, one of which reads features adapted to speakers."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from test_speakers_everywhere import adaptive
from whistles import FEATURES, RATE_HZ, SAID, gaussians_to_network, whistled, write_network

import speech3
from speech3.cli.recognise import decode
from speech3.config import DecodeConfig, ModelConfig
from speech3.data.datadir import read_datadir
from speech3.decode import speaker_passes
from speech3.decode.align import find_alignment
from speech3.decode.apply import features_for, transcribe
from speech3.decode.model_export import export
from speech3.decode.recognizer import load_recognizer, tune_recognizer
from speech3.errors import SettingError, Speech3Error
from speech3.io.ark import write_ark
from speech3.io.checkpoint import load_tensors
from speech3.models import build, load_network, save_mean
from speech3.models.info import model_info

BINS = FEATURES.num_mel_bins


@pytest.fixture
def members(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories of a network on mel bins and of one that reads adapted features, too."""
    monkeypatch.setattr(speaker_passes, "_MIN_GAIN", 0.0)
    sat, one, two = (Path(shutil.copytree(model, tmp_path / "two" / "sat")), tmp_path / "one", tmp_path / "two")
    shutil.copytree(model, one)
    gaussians_to_network(one)
    shutil.copytree(one, two, dirs_exist_ok=True)
    adaptive(sat)
    (two / "features.yaml").write_text(yaml.safe_dump({**FEATURES.model_dump(), "adapted": BINS}))
    tensors, about = load_tensors(one / "model.safetensors")
    config = ModelConfig.model_validate(about["model"])
    wide = build(config, 2 * BINS, about["num_senones"], seed=0)
    weight = tensors["output.weight"]
    wide.output.weight.data = torch.from_numpy(np.concatenate([0.3 * weight, 0.5 * weight], 1))
    wide.output.bias.data = torch.from_numpy(0.7 * tensors["output.bias"])
    write_network(two, config, wide, np.log(np.random.default_rng(0).dirichlet(np.ones(len(weight)))).astype("f4"))
    return [one, two]


@pytest.fixture
def mean(members: list[Path], tmp_path: Path) -> Path:
    out = Path(shutil.copytree(members[1], tmp_path / "both"))
    save_mean(out / "model.safetensors", members)
    return out


def _scores(network: Path, feats_TD: np.ndarray) -> np.ndarray:
    """(T, P) log posteriors minus log priors, by NumPy."""
    tensors, _ = load_tensors(network / "model.safetensors")
    weight_PD = tensors["output.weight"].astype(np.float64)
    logits_TP = feats_TD[:, : weight_PD.shape[1]].astype(np.float64) @ weight_PD.T + tensors["output.bias"]
    return logits_TP - np.logaddexp.reduce(logits_TP, axis=1, keepdims=True) - tensors["log_prior"]


def test_the_scores_are_the_mean_of_those_of_both(members: list[Path], mean: Path, data: Path, tmp_path: Path) -> None:
    recognizer = load_recognizer(mean)
    feats, _ = features_for(recognizer, read_datadir(data), 1, tmp_path / "out")
    assert set(feats) == set(SAID)
    for utterance, loglikes_TP in recognizer.scores(feats):
        feats_TD = feats[utterance]
        assert feats_TD.shape[1] == 2 * BINS and not np.allclose(feats_TD[:, :BINS], feats_TD[:, BINS:])
        expected = (_scores(members[0], feats_TD) + _scores(members[1], feats_TD)) / 2
        np.testing.assert_allclose(loglikes_TP, expected, rtol=1e-4, atol=1e-3)


def test_it_is_used_as_any_model(members: list[Path], mean: Path, data: Path, sounds: dict, tmp_path: Path) -> None:
    said = {name: " ".join(words) for name, (words, _) in SAID.items()}
    recognizer = speech3.Recognizer.load(mean)
    assert [each.text for each in transcribe(recognizer, list(sounds.values()), times=True)] == list(said.values())
    wave_S = whistled(*SAID["ab"][1])
    assert [recognizer.transcribe(wave_S, RATE_HZ, speaker="anna").text for _ in range(2)] == [said["ab"]] * 2
    assert set(find_alignment(recognizer, read_datadir(data), tmp_path / "ali", 1).aligned.alignments) == set(sounds)
    feats, _ = features_for(recognizer, read_datadir(data), 1, tmp_path / "feats")
    config = DecodeConfig(acoustic_scales=(0.2,), word_penalties=(0.0,))
    references = {name: words for name, (words, _) in SAID.items()}
    assert tune_recognizer(recognizer, feats, references, config).best.error_rate == 0
    assert load_recognizer(mean).settings.acoustic_scale == 0.2
    shutil.copy(members[0] / "decode.json", mean)
    decode(mean, data, tmp_path / "out", jobs=1)
    decode(members[0], data, tmp_path / "with", jobs=1, others=[members[1]])
    one, other = ((tmp_path / name / "hyp.ctm").read_text() for name in ("out", "with"))
    assert one == other and len(one.splitlines()) == 3


def test_transforms_for_features_that_are_given_are_refused(members: list[Path], data: Path, tmp_path: Path) -> None:
    recognizer = load_recognizer(members[1])
    feats, _ = features_for(recognizer, read_datadir(data), 1, tmp_path / "made")
    given = tmp_path / "given"
    given.mkdir()
    shutil.copy(data / "utt2spk", given)
    write_ark(given / "feats.ark", feats.items(), given / "feats.scp")
    with pytest.raises(SettingError, match=f"--transforms {tmp_path / 'made/sat'}: {given} "):
        features_for(recognizer, read_datadir(given), 1, tmp_path / "out", transforms=tmp_path / "made/sat")


def test_what_it_is_made_of_is_told(members: list[Path], mean: Path) -> None:
    parts, info = [model_info(each) for each in members], model_info(mean)
    assert info.parameters == sum(part.parameters for part in parts)
    assert info.flops == sum(part.flops for part in parts)
    assert [layer.name for layer in info.layers] == ["one.output", "two.output"]
    assert "one (dnn)" in info.system and "two (dnn)" in info.system and info.feat_dim == 2 * BINS


def test_what_needs_one_network_names_them(members: list[Path], mean: Path, tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=r"both/model.safetensors.*one and two"):
        load_network(mean)
    with pytest.raises(Speech3Error, match=r"both.*adapts its features"):
        speech3.Recognizer.load(mean).stream(RATE_HZ)
    with pytest.raises(Speech3Error, match=r"both.*adapted to speakers"):
        export(mean, tmp_path / "x.onnx")
    alike = Path(shutil.copytree(members[0], tmp_path / "alike"))
    save_mean(alike / "model.safetensors", [members[0], Path(shutil.copytree(members[0], tmp_path / "three"))])
    with pytest.raises(Speech3Error, match=r"alike.*mean.*use one"):
        speech3.Recognizer.load(alike).stream(RATE_HZ)
    with pytest.raises(Speech3Error, match=r"alike.*mean.*export one"):
        export(alike, tmp_path / "x.onnx")
