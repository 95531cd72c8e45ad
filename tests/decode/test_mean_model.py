"""A model directory with two networks whose scores are averaged, one of which reads features adapted to speakers."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from test_speakers_everywhere import adaptive
from whistles import FEATURES, RATE_HZ, SAID, gaussians_to_network, save_network, whistled, write_network

import speech3
from speech3.cli.recognise import decode
from speech3.config import DecodeConfig, ModelConfig
from speech3.data import audio
from speech3.data.datadir import read_datadir
from speech3.decode import apply, speaker_passes, trained_model
from speech3.decode.align import _more_words, find_alignment
from speech3.decode.apply import decoded_features, features_for
from speech3.decode.graph import load_graph
from speech3.decode.model_export import export
from speech3.decode.online_scores import OnlineScores
from speech3.decode.recognizer import load_recognizer, transcribe
from speech3.decode.speaker_passes import KnownSpeakers, read_speakers, write_speakers
from speech3.decode.tune import tune_recognizer
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
        features_for(recognizer, read_datadir(given), 1, tmp_path / "out", known=tmp_path / "made/sat")


def test_what_it_is_made_of_is_told(members: list[Path], mean: Path) -> None:
    parts, info = [model_info(each) for each in members], model_info(mean)
    assert info.parameters == sum(part.parameters for part in parts)
    assert info.flops == sum(part.flops for part in parts)
    assert [layer.name for layer in info.layers] == ["one.output", "two.output"]
    assert "one (dnn)" in info.system and "two (dnn)" in info.system and info.feat_dim == 2 * BINS


def test_a_stream_has_the_scores_of_the_whole_recording(
    members: list[Path], mean: Path, data: Path, tmp_path: Path
) -> None:
    """Of frames whose speaker is known, and if features are not normalised by what has been heard so far."""
    plain = {"cmvn": "none"}
    for place in (members[1], members[1] / "sat", mean, mean / "sat"):
        config = yaml.safe_load((place / "features.yaml").read_text())
        (place / "features.yaml").write_text(yaml.safe_dump({**config, **plain}))
    given, name = read_datadir(data), "a-bb"
    shift = np.eye(BINS, BINS + 1)
    shift[:, -1] = np.linspace(-1, 1, BINS)
    write_speakers(tmp_path / "given", {name: shift}, {name: name})
    for model in (members[1], mean):
        recognizer = load_recognizer(model)
        feats, _ = features_for(recognizer, given, 1, tmp_path / "feats", known=tmp_path / "given")
        expected = dict(recognizer.scores(feats))[name]
        wave_S, _ = audio.load(given, name)
        online = OnlineScores(recognizer, RATE_HZ, name, KnownSpeakers(transforms={name: shift}))
        found = [online.accept(piece_S) for piece_S in np.array_split(wave_S, 9)]
        assert sum(map(len, found)) > 0
        np.testing.assert_allclose(np.concatenate([*found, *online.finish(wave_S[:0])]), expected, rtol=1e-3, atol=1e-3)


def test_a_stream_adapts_to_its_speaker(members: list[Path], mean: Path) -> None:
    words, segments = SAID["a-bb"]
    for model in (members[1], mean):
        recognizer = speech3.Recognizer.load(model)
        stream = recognizer.stream(RATE_HZ, speaker="anna")
        speaker = stream._scores._speaker
        assert speaker is not None and speaker.transform is None
        for _ in range(2):
            stream.accept(whistled(*segments, ("SIL", 0.8)))
            assert [each.text.split() for each in stream.ended()] == [list(words)]
            assert speaker.transform is not None
        stream.accept(whistled(*segments))
        assert stream.finish().text.split() == list(words)
        # The next stream of this speaker begins with what is known, as do recordings.
        again = recognizer.stream(RATE_HZ, speaker="anna")._scores._speaker
        assert again is not None
        np.testing.assert_array_equal(again.transform, recognizer._known.transforms["anna"])
        before = recognizer._known.stats["anna"].count
        assert recognizer.transcribe(whistled(*segments), RATE_HZ, speaker="anna").text.split() == list(words)
        assert recognizer._known.stats["anna"].count > before


def test_a_graph_is_read_once(members: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(trained_model, "load_graph", lambda path: read.append(path) or load_graph(path))
    recognizer, (_, segments) = speech3.Recognizer.load(members[1]), SAID["a-bb"]
    for _ in range(2):
        stream = recognizer.stream(RATE_HZ)
        for _ in range(2):
            stream.accept(whistled(*segments, ("SIL", 0.8)))
        assert len(stream.ended()) == 2
        stream.finish()
    assert read == [members[1] / "graph"]


def test_new_words_of_an_alignment_are_known_to_the_gmms_beside_a_network(members: list[Path], tmp_path: Path) -> None:
    (tmp_path / "lexicon.txt").write_text("BA b a\n")
    recognizer = _more_words(load_recognizer(members[1]), {"u": "A BA"}, tmp_path / "lexicon.txt", None, tmp_path)
    assert recognizer.sat is not None
    for model in (recognizer, recognizer.sat):
        assert [pron.phones for pron in model.hmm.lexicon.by_word["BA"]] == [("b", "a")]


def test_transcripts_that_gmms_cannot_use_do_not_end_an_alignment(
    members: list[Path], data: Path, tmp_path: Path
) -> None:
    """Every second word is unknown, so nobody can be adapted to along the transcripts; the words are recognised."""
    (data / "text").write_text("".join(f"{name} A NOBODY\n" for name in SAID))
    found = find_alignment(load_recognizer(members[1]), read_datadir(data), tmp_path / "ali", 1, tolerant=True)
    assert not found.aligned.alignments and set(found.aligned.bad) == set(SAID)


def test_a_recording_that_cannot_be_read_is_left_out_of_an_alignment(
    members: list[Path], data: Path, tmp_path: Path
) -> None:
    name = next(iter(SAID))
    (tmp_path / f"{name}.wav").write_bytes(b"")
    found = find_alignment(load_recognizer(members[1]), read_datadir(data), tmp_path / "ali", 1, tolerant=True)
    assert set(found.aligned.alignments) == set(SAID) - {name} and set(found.aligned.bad) == {name}


def test_features_of_a_decoding_are_found_again(members: list[Path], mean: Path, data: Path, tmp_path: Path) -> None:
    """For the times of words in rescored lattices."""
    given = read_datadir(data)
    for model in (members[0], members[1], mean):
        recognizer = load_recognizer(model)
        feats, _ = features_for(recognizer, given, 1, tmp_path / "out" / model.name)
        again = decoded_features(recognizer, tmp_path / "out" / model.name)
        assert set(again) == set(feats) == set(SAID)
        for name, feats_TD in feats.items():
            np.testing.assert_allclose(again[name], feats_TD, atol=1e-5)


def test_alignment_adapts_along_the_transcripts(
    members: list[Path], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "last_transforms", lambda *_: pytest.fail("recognised before it was aligned"))
    texts = (data / "text").read_text().splitlines()
    found = find_alignment(load_recognizer(members[1]), read_datadir(data), tmp_path / "ali", 1)
    assert set(found.aligned.alignments) == set(SAID)
    assert set(read_speakers(tmp_path / "ali" / "sat", BINS)) == {line.split()[0] for line in texts}


def test_features_at_two_rates_cannot_follow_a_stream(members: list[Path]) -> None:
    place = members[1] / "sat" / "features.yaml"
    place.write_text(yaml.safe_dump({**yaml.safe_load(place.read_text()), "sample_frequency": 2 * RATE_HZ}))
    with pytest.raises(Speech3Error, match=rf"two: reads audio at {RATE_HZ} Hz, .* at {2 * RATE_HZ} Hz"):
        speech3.Recognizer.load(members[1]).stream(RATE_HZ)


def test_what_needs_one_network_names_them(members: list[Path], mean: Path, tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=r"both/model.safetensors.*one and two"):
        load_network(mean)
    with pytest.raises(Speech3Error, match=r"both.*adapted to speakers"):
        export(mean, tmp_path / "x.onnx")
    alike = Path(shutil.copytree(members[0], tmp_path / "alike"))
    save_mean(alike / "model.safetensors", [members[0], Path(shutil.copytree(members[0], tmp_path / "three"))])
    recurrent = Path(shutil.copytree(members[0], tmp_path / "recurrent"))
    save_network(recurrent, family="lstm", layers=1, cells=4)
    save_mean(alike / "model.safetensors", [recurrent, Path(shutil.copytree(recurrent, tmp_path / "four"))])
    with pytest.raises(Speech3Error, match=r"alike.*mean.*states.*use one"):
        speech3.Recognizer.load(alike).stream(RATE_HZ)
    with pytest.raises(Speech3Error, match=r"alike.*mean.*export one"):
        export(alike, tmp_path / "x.onnx")
