"""A user's model directory: it is read, refused if its files do not belong together, and applied to recordings."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import toys
from whistles import FEATURES, HMM, RATE_HZ, SAID, SETTINGS, features_of_file, save_network, whistled

from speech3.config import DecodeConfig
from speech3.corpora import read_speech
from speech3.decode.apply import features_for, say_skipped
from speech3.decode.graph import build_graph
from speech3.decode.new_graph import replace_graph
from speech3.decode.output import aligned_words, write_decoding
from speech3.decode.recognizer import load_recognizer, transcribe
from speech3.decode.search import Decoding, Hypothesis
from speech3.decode.trained_model import NetworkScorer, load_settings
from speech3.decode.tune import load_tuning, tune_recognizer
from speech3.errors import MismatchError, MissingError, SettingError, Speech3Error
from speech3.features import extract
from speech3.hmm import train
from speech3.hmm.alignment.times import read_ctm
from speech3.io import ArkReader
from speech3.io.checkpoint import load_tensors
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.train.rundir import copy_model_files


def test_recordings_become_words_with_times(model: Path, sounds: dict[str, Path]) -> None:
    recognizer = load_recognizer(model)
    assert recognizer.features == FEATURES and recognizer.settings == SETTINGS
    results = list(transcribe(recognizer, list(sounds.values()), times=True))
    assert [result.name for result in results] == [str(sounds["ab"]), str(sounds["a-bb"])]
    assert [tuple(result.text.split()) for result in results] == [words for words, _ in SAID.values()]
    (ab,), (a, bb) = (result.words for result in results)
    for segment, label, start_s, end_s in ((ab, "AB", 0.3, 0.7), (a, "A", 0.25, 0.55), (bb, "BB", 0.75, 1.05)):
        assert segment.label == label
        assert (segment.start_s, segment.end_s) == pytest.approx((start_s, end_s), abs=0.03)
    assert [result.words for result in transcribe(recognizer, list(sounds.values()))] == [[], []]


def test_recordings_of_other_rates_and_channels(model: Path, tmp_path: Path) -> None:
    from speech3.data.resampling import resample

    wave_S = whistled(*SAID["a-bb"][1])
    path = tmp_path / "stereo.flac"
    soundfile.write(path, np.stack([resample(wave_S, RATE_HZ, 16000)] * 2, axis=1), 16000)
    (found,) = transcribe(load_recognizer(model), [path])
    assert (found.name, found.text) == (str(path), "A BB")


def test_features_of_a_file_are_those_of_the_extraction(model: Path, sounds: dict[str, Path], tmp_path: Path) -> None:
    from speech3.data.datadir import DataDir, Utterance

    alone = features_of_file(load_recognizer(model), sounds["ab"])
    data = DataDir(tmp_path, {"r": str(sounds["ab"])}, {"u": Utterance("u", "r", "s", None)})
    extract(data, tmp_path / "feats", FEATURES, 1)
    np.testing.assert_allclose(alone, ArkReader(tmp_path / "feats" / "feats.scp")["u"], atol=1e-5)


def test_recordings_of_a_folder_may_differ_in_rate_and_channels(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wave_S = whistled(*SAID["a-bb"][1])
    (folder := tmp_path / "calls").mkdir()
    for name, sound, rate_hz in (
        ("a", wave_S, RATE_HZ),
        ("b", np.stack([wave_S, 0 * wave_S], 1), RATE_HZ),
        ("c", wave_S[::2], RATE_HZ // 2),
        ("d", wave_S[::2], RATE_HZ // 2),
    ):
        soundfile.write(folder / f"{name}.wav", sound, rate_hz)
    recognizer, (data, _) = load_recognizer(model), read_speech(folder, transcribed=False)
    feats, skipped = features_for(recognizer, data, 1, tmp_path / "out")
    assert not skipped and sorted(feats) == list("abcd")
    np.testing.assert_allclose(feats["b"], feats["a"], atol=1e-5)
    said = " ".join(capsys.readouterr().err.split())
    assert "c.wav and 1 more: 4000 Hz" in said and "d.wav" not in said and "a.wav" not in said
    (folder / "cut.wav").write_bytes((folder / "a.wav").read_bytes()[:500])
    with pytest.raises(Speech3Error, match=r"(?s)1 of 5 .*calls.*cut\.wav") as error:
        features_for(recognizer, read_speech(folder, transcribed=False)[0], 1, tmp_path / "out")
    assert "speech3 fix" not in str(error.value)  # which reads no folders


def test_files_that_cannot_be_recognised_are_named(model: Path, tmp_path: Path) -> None:
    recognizer = load_recognizer(model)
    soundfile.write(tmp_path / "short.wav", np.zeros(150, np.float32), RATE_HZ)
    with pytest.raises(Speech3Error, match=r"short\.wav: shorter than one frame \(25 ms\)"):
        list(transcribe(recognizer, [tmp_path / "short.wav"]))
    soundfile.write(tmp_path / "few.wav", whistled(("a", 0.035)), RATE_HZ)  # two frames; a word needs three
    with pytest.raises(Speech3Error, match=r"few\.wav: no word ends within its 2 frames: it is too short"):
        list(transcribe(recognizer, [tmp_path / "few.wav"]))
    with pytest.raises(Speech3Error, match=r"gone\.wav"):
        list(transcribe(recognizer, [tmp_path / "gone.wav"]))
    (tmp_path / "text.wav").write_text("no sound")
    with pytest.raises(Speech3Error, match=r"text\.wav"):
        list(transcribe(recognizer, [tmp_path / "text.wav"]))


def test_a_network_scores_by_posteriors_over_priors(model: Path) -> None:
    network, log_prior = save_network(model, HMM.num_pdfs)
    recognizer = load_recognizer(model)
    assert isinstance(recognizer.scorer, NetworkScorer)
    feats_TF = np.random.default_rng(2).standard_normal((7, 8)).astype(np.float32)
    padded = np.concatenate([feats_TF[:1], feats_TF, feats_TF[-1:], feats_TF[-1:]])
    windows = torch.from_numpy(np.stack([padded[t : t + 4] for t in range(7)]))
    with torch.no_grad():
        logits_TP = network(windows).double().numpy()
    expected = logits_TP - np.log(np.exp(logits_TP).sum(1, keepdims=True)) - log_prior
    np.testing.assert_allclose(recognizer.scorer.loglikes(feats_TF), expected, atol=1e-5)
    pdfs = np.array([4, 0])
    np.testing.assert_allclose(recognizer.scorer.loglikes(feats_TF, pdfs), expected[:, pdfs], atol=1e-5)
    ((name, scores_TP),) = recognizer.scores({"u": feats_TF})
    assert name == "u" and scores_TP.dtype == np.float32 and scores_TP.shape == (7, HMM.num_pdfs)


@pytest.mark.parametrize("kind", ["gmm", "nn"])
def test_features_of_another_width_are_refused_with_the_utterance(model: Path, kind: str) -> None:
    if kind == "nn":
        save_network(model, HMM.num_pdfs)
    recognizer = load_recognizer(model)
    feats = {"utt7": np.zeros((5, 9), np.float32)}
    with pytest.raises(MismatchError, match=r"utt7: features of shape \(5, 9\), but the model"):
        recognizer.decode(feats)
    with pytest.raises(Speech3Error, match=r"features of shape \(5, 9\), but the model was trained on 8"):
        recognizer.align(feats, {"utt7": "A"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hmm.json", r"hmm\.json: no such file; copy"),
        ("lexiconp.txt", r"lexiconp\.txt: no such lexicon; copy"),
        ("tree.safetensors", r"tree\.safetensors: no such file; copy"),
        ("features.yaml", r"features\.yaml: no such file; copy"),
        ("model.safetensors", r"not a model directory, because it has no model\.safetensors"),
    ],
)
def test_missing_files_are_named(model: Path, name: str, message: str) -> None:
    (model / name).unlink()
    with pytest.raises(Speech3Error, match=message):
        load_recognizer(model)


def test_a_graph_without_its_words_is_named(model: Path) -> None:
    (model / "graph" / "words.txt").unlink()
    with pytest.raises(MissingError, match=r"words\.txt: .*build the graph"):
        _ = load_recognizer(model).graph


def test_a_directory_above_models_lists_them(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    with pytest.raises(Speech3Error, match=rf"not a model directory, .*; use one of: {model.name}"):
        load_recognizer(".")


@pytest.mark.parametrize(
    ("key", "value"), [("max_active", 2000.5), ("acoustic_scale", None), ("acoustic_scale", -0.1), ("beam", 0)]
)
def test_impossible_settings(model: Path, key: str, value: float | None) -> None:
    values = json.loads((model / "decode.json").read_text())
    (model / "decode.json").write_text(json.dumps({**values, key: value}))
    with pytest.raises(MismatchError, match=r"decode\.json"):
        _ = load_recognizer(model).settings


def test_what_is_needed_only_for_decoding_is_missed_only_then(model: Path, sounds: dict[str, Path]) -> None:
    shutil.rmtree(model / "graph")
    (model / "decode.json").unlink()
    recognizer = load_recognizer(model)
    feats = {"u": features_of_file(recognizer, sounds["ab"])}
    alignments, bad = recognizer.align(feats, {"u": "AB"})
    assert list(alignments) == ["u"] and not bad
    with pytest.raises(Speech3Error, match=r"model: has no decoding graph, so it can align but not decode"):
        recognizer.decode(feats)
    with pytest.raises(Speech3Error, match=r"model: has no decoding graph"):
        recognizer.stream(16000)
    assert repr(recognizer) == f"<Recognizer {model}>"


def test_a_model_without_settings_asks_to_be_tuned(model: Path, sounds: dict[str, Path]) -> None:
    (model / "decode.json").unlink()
    recognizer = load_recognizer(model)
    feats = {"u": features_of_file(recognizer, sounds["ab"])}
    for decode in (
        lambda: recognizer.decode(feats),
        lambda: replace_graph(recognizer, None),
    ):  # the latter before features
        with pytest.raises(MissingError, match=r"decode\.json"):
            decode()
    config = DecodeConfig(acoustic_scales=(0.1, 0.5), word_penalties=(0.0,))
    found = tune_recognizer(recognizer, feats, {"u": ["AB"]}, config)
    assert load_settings(model).acoustic_scale == found.best.acoustic_scale and len(found.table) == 2
    (hypothesis,) = load_recognizer(model).decode(feats).hypotheses
    assert hypothesis.words == ("AB",)


def test_the_graph_to_tune_with_is_another_one_where_there_is_one(model: Path, sounds: dict[str, Path]) -> None:
    """With a tuning graph of BB alone, no other word is found, whatever the scale."""
    feats = {name: features_of_file(load_recognizer(model), path) for name, path in sounds.items()}
    truth = {name: words for name, (words, _) in SAID.items()}
    config = DecodeConfig(acoustic_scales=(0.1, 0.5), word_penalties=(0.0,))
    assert tune_recognizer(load_recognizer(model), feats, truth, config).best.error_rate == 0.0
    build_graph(HMM, toys.estimate_lm([["BB"]], 1), model / "graph_tuning", toys.SCALE)
    recognizer = load_recognizer(model)
    found = tune_recognizer(recognizer, feats, truth, config)
    assert found.best.error_rate > 0 and {word for words in found.words.values() for word in words} <= {"BB"}
    again = {h.utterance: h.words for h in recognizer.decode(feats).hypotheses}
    assert again == truth, "decoding is through the other one"
    once = recognizer.decode(feats, graph=recognizer.read_graph(model / "graph_tuning"))
    assert {word for h in once.hypotheses for word in h.words} <= {"BB"}


def test_a_part_of_dev_is_tuned_on_and_all_of_it_scored(
    model: Path, sounds: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    recognizer = load_recognizer(model)
    feats = {f"{name}{n}": features_of_file(recognizer, path) for n in range(5) for name, path in sounds.items()}
    truth = {key: SAID[key[:-1]][0] for key in feats}
    computed: list[str] = []
    loglikes = type(recognizer.scorer).loglikes
    monkeypatch.setattr(
        type(recognizer.scorer), "loglikes", lambda self, *args: computed.append("") or loglikes(self, *args)
    )
    config = DecodeConfig(acoustic_scales=(0.05, 0.1, 0.2), word_penalties=(0.0, 1.0), tuning_minutes=3 / 60)
    seen: list[int] = []

    def rate(references: list[str], hypotheses: list[str]) -> float:
        seen.append(len(references))
        return float(np.mean([one != other for one, other in zip(references, hypotheses, strict=True)]))

    wrong = {key: words if key.startswith("ab") else ("AB",) for key, words in truth.items()}
    found = tune_recognizer(recognizer, feats, wrong, config, error_rate=rate)
    assert seen[0] in (2, 3, 4) and seen[-1] == len(feats) and set(seen[:-1]) == {seen[0]}
    assert {key: tuple(words) for key, words in found.words.items()} == truth, "the words of all of dev"
    assert len(computed) == len(feats), "the scores of each utterance are computed once"
    assert found.best.error_rate == 0.5, "of all of dev, in which every second reference is wrong"
    computed.clear()
    whole = tune_recognizer(recognizer, feats, truth, config.model_copy(update={"tuning_minutes": 9.0}))
    assert set(whole.words) == set(feats) and len(computed) == len(feats)


def test_a_network_of_lfmmi_is_tuned_on_its_own_grid(model: Path, sounds: dict[str, Path]) -> None:
    recognizer = load_recognizer(model)
    feats = {"ab": features_of_file(recognizer, sounds["ab"])}

    class Pseudo:
        pseudo_likelihoods, subsampling, loglikes = True, 1, recognizer.scorer.loglikes

    recognizer = dataclasses.replace(recognizer, scorer=Pseudo())
    config = DecodeConfig(lfmmi_acoustic_scales=(0.11, 0.12), word_penalties=(0.0,))
    found = tune_recognizer(recognizer, feats, {"ab": ["AB"]}, config)
    assert {point.acoustic_scale for point in found.table} <= {0.11, 0.12}


def test_the_grid_of_the_recipe_stays_with_the_model(model: Path) -> None:
    assert load_tuning(load_recognizer(model)) == DecodeConfig()
    config = DecodeConfig(acoustic_scales=(0.06, 0.1), beam=11.0)
    (model / "tuning.json").write_text(config.model_dump_json())
    assert load_tuning(load_recognizer(model)) == config
    (model / "tuning.json").write_text('{"scales": [1]}')
    with pytest.raises(SettingError, match=r"tuning\.json"):
        load_tuning(load_recognizer(model))


def test_parts_of_different_models_are_refused(model: Path, tmp_path: Path) -> None:
    save_network(model, HMM.num_pdfs + 3)
    with pytest.raises(MismatchError, match=r"model\.safetensors"):
        load_recognizer(model)
    save_network(model, HMM.num_pdfs)
    other = toys.toy_hmm(context=True)
    build_graph(other, toys.bigram(), model / "graph", toys.SCALE)
    with pytest.raises(
        Speech3Error, match=rf"graph: built for {other.num_pdfs} pdfs, but the model has 9; build it again"
    ):
        _ = load_recognizer(model).graph
    toys.toy_hmm(Lexicon((Pronunciation("A", ("a", "c")),))).save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "lexiconp.txt", model)
    with pytest.raises(Speech3Error, match="other phones than the tree"):
        load_recognizer(model)
    shutil.copy(model / "tree.safetensors", model / "model.safetensors")
    with pytest.raises(Speech3Error):
        load_recognizer(model)
    with pytest.raises(Speech3Error, match="no such model directory"):
        load_recognizer(model / "nowhere")


def test_files_of_another_version_are_no_tracebacks(model: Path) -> None:
    for name in ("hmm.json", "graph/graph.json"):
        path = model / name
        whole = path.read_text()
        for content in ("{}", "[]", '"text"'):
            path.write_text(content)
            with pytest.raises(Speech3Error, match=rf"{path.name}: .*another version"):
                _ = load_recognizer(model).graph
        path.write_text(whole)
    assert load_recognizer(model).graph.num_pdfs == HMM.num_pdfs


def test_settings_round_trip_and_of_another_version(tmp_path: Path) -> None:
    SETTINGS.save(tmp_path)
    assert load_settings(tmp_path) == SETTINGS
    keys = dataclasses.asdict(SETTINGS)
    for content in ({**keys, "lattice_beam": 8}, {k: v for k, v in keys.items() if k != "beam"}, [1, 2]):
        (tmp_path / "decode.json").write_text(json.dumps(content))
        with pytest.raises(Speech3Error, match=r"decode\.json: has keys of another version.*speech3 tune"):
            load_settings(tmp_path)


def test_what_decoding_leaves_behind(model: Path, sounds: dict[str, Path], tmp_path: Path) -> None:
    recognizer, out = load_recognizer(model), tmp_path / "out"
    feats = {name: features_of_file(recognizer, path) for name, path in sounds.items()}
    decoding = recognizer.decode(feats)
    write_decoding(out, recognizer, feats, Decoding(decoding.hypotheses, {"lost": "it has no frames"}))
    assert (out / "hyp.txt").read_text() == "ab AB\na-bb A BB\n"
    assert (out / "failed.txt").read_text() == "lost it has no frames\n"
    times = read_ctm(out / "hyp.ctm")
    assert {name: tuple(s.label for s in segments) for name, segments in times.items()} == {
        name: words for name, (words, _) in SAID.items()
    }
    for name, segments in aligned_words(recognizer, feats, decoding)[0].items():
        assert [s.start_s for s in times[name]] == pytest.approx([s.start_s for s in segments], abs=6e-4)
    assert {s.confidence for segments in times.values() for s in segments} == {None}
    sure = recognizer.decode(feats, confidences=True)
    write_decoding(out, recognizer, feats, sure)
    for h in sure.hypotheses:
        assert [s.confidence for s in read_ctm(out / "hyp.ctm")[h.utterance]] == pytest.approx(h.confidences, abs=5e-4)
    write_decoding(out, recognizer, feats, decoding)
    assert sorted(path.name for path in out.iterdir()) == ["hyp.ctm", "hyp.txt"]  # nothing failed this time


def test_words_that_cannot_be_aligned_are_kept_with_times_spread_over_the_utterance(
    model: Path, sounds: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recognizer, out = load_recognizer(model), tmp_path / "out"
    feats = {name: features_of_file(recognizer, path) for name, path in sounds.items()}
    short = {name: feats_TF[:4] for name, feats_TF in feats.items()}  # too few frames for the phones
    decoding = recognizer.decode(feats, confidences=True)
    write_decoding(out, recognizer, short, decoding)  # all of them fail
    said = dict(line.split(maxsplit=1) for line in (out / "hyp.txt").read_text().splitlines())
    times = read_ctm(out / "hyp.ctm")
    assert {name: " ".join(word.label for word in words) for name, words in times.items()} == said
    for h in decoding.hypotheses:
        words = times[h.utterance]
        assert words[0].start_s == 0 and words[-1].end_s == pytest.approx(4 * 0.01, abs=1e-3)
        assert all(a.end_s == pytest.approx(b.start_s, abs=1e-3) for a, b in itertools.pairwise(words))
        assert [word.confidence for word in words] == pytest.approx(h.confidences, abs=5e-4)
    assert "the words of 2 of 2 utterances could not be aligned" in capsys.readouterr().err
    few = {**feats, "ab": short["ab"]}
    assert set(aligned_words(recognizer, few, decoding)[0]) == set(feats)


def test_a_transcript_has_all_words_even_if_they_cannot_be_aligned(
    model: Path, sounds: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "best_path", lambda *_: None)
    recognizer = load_recognizer(model)
    for each in transcribe(recognizer, list(sounds.values()), times=True):
        assert each.text and " ".join(word.label for word in each.words) == each.text
        assert each.words[-1].end_s == pytest.approx(each.duration_s, abs=0.05)


def test_empty_and_unfinished_hypotheses(model: Path, sounds: dict[str, Path], tmp_path: Path) -> None:
    recognizer = load_recognizer(model)
    feats = {name: features_of_file(recognizer, path) for name, path in sounds.items()}
    silent = Hypothesis("ab", (), (), 0.0, 0.0, True)
    unfinished = Hypothesis("a-bb", ("A",), ("A",), 0.0, 0.0, False)
    write_decoding(tmp_path / "out", recognizer, feats, Decoding((silent, unfinished), {}))
    assert (tmp_path / "out" / "hyp.txt").read_text() == "ab\na-bb A\n"
    times = [line.split() for line in (tmp_path / "out" / "hyp.ctm").read_text().splitlines()]
    assert [(fields[0], fields[4]) for fields in times] == [("a-bb", "A")]  # as in hyp.txt, unfinished or not
    with pytest.raises(Speech3Error, match="no utterance could be decoded"):
        write_decoding(tmp_path / "none", recognizer, feats, Decoding((), {"ab": "why"}))
    assert not (tmp_path / "none").exists()


def test_complete_makes_a_network_stand_on_its_own(gmm: Path, sounds: dict[str, Path], tmp_path: Path) -> None:
    out, data = tmp_path / "nn", tmp_path / "frames"
    data.mkdir()
    shutil.copy(gmm / "features.yaml", data)
    out.mkdir()
    save_network(out, HMM.num_pdfs)
    copy_model_files(out, gmm, data)
    recognizer = load_recognizer(out)
    assert recognizer.features == FEATURES and recognizer.graph.num_pdfs == HMM.num_pdfs
    np.testing.assert_array_equal(recognizer.hmm.self_loop, HMM.self_loop)
    for name in ("HCLG.fst", "words.txt", "graph.json"):
        assert (out / "graph" / name).read_bytes() == (gmm / "graph" / name).read_bytes()
    with pytest.raises(Speech3Error, match="not tuned yet"):  # the GMMs' scale does not suit a network
        _ = recognizer.settings
    SETTINGS.save(out)
    (found,) = transcribe(recognizer, [sounds["ab"]])
    assert set(found.text.split()) <= {"A", "AB", "BB"}
    assert load_tensors(out / "model.safetensors", "nn")[1]["num_senones"] == HMM.num_pdfs


def test_complete_takes_the_grid_and_the_graph_to_tune_with(model: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "nn", tmp_path / "frames"
    data.mkdir()
    build_graph(HMM, toys.estimate_lm([["A"]], 1), model / "graph_tuning", toys.SCALE)
    (model / "tuning.json").write_text(DecodeConfig(beam=11.0).model_dump_json())
    copy_model_files(out, model, data)
    assert (out / "tuning.json").read_text() == (model / "tuning.json").read_text()
    graph = out / "graph_tuning" / "HCLG.fst"
    assert graph.read_bytes() == (model / "graph_tuning" / "HCLG.fst").read_bytes()
    shutil.rmtree(model / "graph_tuning")
    copy_model_files(out, model, data)
    assert not graph.exists() and (out / "graph" / "HCLG.fst").exists()
    for path in (model / "tuning.json", out / "denominator.safetensors", out / "features.yaml"):
        path.write_text("") if path.parent == out else path.unlink()
    copy_model_files(out, model, data)  # what an earlier run left would be taken for this network's
    assert not any((out / name).exists() for name in ("tuning.json", "denominator.safetensors", "features.yaml"))


def test_only_the_first_of_many_bad_utterances_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    say_skipped({f"u{n}": "is [bad]" for n in range(12)}, "not decoded")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "not decoded: u0: is [bad]" and len(lines) == 11 and lines[-1] == "not decoded: 2 more"
    say_skipped({}, "not decoded")
    assert capsys.readouterr().err == ""
