"""Transforms of speakers from recognised words, and which utterances are scored with them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from drawn import draw

from speech3.config import FeatureConfig
from speech3.decode import speaker_passes, trained_model
from speech3.decode.graph import DecodingGraph
from speech3.decode.lattice_directory import check_decoding
from speech3.decode.recognizer import Recognizer
from speech3.decode.speaker_passes import (
    SEVERAL,
    EitherScorer,
    OtherWords,
    SpeakerModel,
    forget_passes,
    read_speakers,
    say_speakers,
    with_known,
    write_speakers,
)
from speech3.decode.trained_model import DecodeSettings
from speech3.errors import OccupiedError, Speech3Error
from speech3.hmm.gmm import Gmm
from speech3.hmm.model import Hmm
from speech3.hmm.sat import Adapted, Estimated, ProjectedGmm
from speech3.hmm.transforms import Projection, identity
from speech3.runtime.files import write_json


def a_model(hmm: Hmm, means: np.ndarray, directory: Path) -> SpeakerModel:
    """A model whose adapted GMMs and twin are those that the data were drawn from."""
    gmm = Gmm(np.arange(hmm.num_pdfs + 1), np.ones(hmm.num_pdfs), means, np.ones_like(means))
    scorer = ProjectedGmm(gmm, Projection(np.eye(6), statics=6, context=0, inputs=6))
    recognizer = Recognizer(directory, hmm, FeatureConfig(), scorer)
    frames_J = np.where(np.arange(hmm.num_pdfs) < hmm.topology.states, 0.0, 1.0)  # the first phone is silence
    return SpeakerModel(recognizer, Adapted(gmm, frames_J, min_frames=60.0, prior_frames=20.0, passes=3))


def test_transforms_follow_the_words_and_survive_what_cannot_be_aligned(
    hmm: Hmm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = draw(hmm, 41, seed=1)
    rng = np.random.default_rng(2)
    matrix = (np.eye(6) + 0.2 * rng.standard_normal((6, 6))).astype(np.float32)
    names = list(drawn.words)
    speaker_of = {name: ("one", "other")[n % 2] for n, name in enumerate(names)}
    speaker_of[names[-1]] = "brief"
    feats = {n: x @ matrix.T if speaker_of[n] == "other" else x for n, x in drawn.feats.items()}
    feats[names[-1]] = feats[names[-1]][:20]
    words = {name: " ".join(each) for name, each in drawn.words.items()}
    words[names[-1]] = words[names[-1]].split()[0]
    words[names[0]], words[names[2]] = "", "word-that-nobody-knows"
    model = a_model(hmm, drawn.means, tmp_path)
    # The twin fits one of them as well as any transform does: as if several people spoke.
    found, _ = model.transforms(feats, speaker_of, words, {})
    assert set(found.transforms) == {"other"} and found.without["one"] == SEVERAL
    monkeypatch.setattr(speaker_passes, "_MIN_GAIN", 0.0)
    found, _ = model.transforms(feats, speaker_of, words, {})
    assert set(found.transforms) == {"one", "other"}
    assert "brief" not in found.transforms
    for _ in range(3):  # from the second time on, aligned with the adapted features
        found, _ = model.transforms(feats, speaker_of, words, found.transforms)
    np.testing.assert_allclose(found.transforms["other"][:, :-1] @ matrix, np.eye(6), atol=0.25)
    # Speakers who say nothing in a later pass keep what they had.
    nothing, _ = model.transforms(feats, speaker_of, {}, found.transforms)
    assert set(nothing.transforms) == {"one", "other"}
    np.testing.assert_array_equal(nothing.transforms["other"], found.transforms["other"])


def test_later_passes_have_settings_of_their_own_and_the_graphs_of_the_model(
    hmm: Hmm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among them the graph that has not seen dev's sentences, which tuning needs."""
    model = a_model(hmm, draw(hmm, 1, seed=3).means, tmp_path)
    DecodeSettings(0.2, 0.0, 10.0, 1000).save(tmp_path)
    DecodeSettings(0.3, 0.0, 10.0, 1000).save(tmp_path / "adapted")
    for name in ("graph", "graph_tuning"):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "graph.json", {})

    def load(path: Path) -> SimpleNamespace:
        return SimpleNamespace(num_pdfs=hmm.num_pdfs, path=path, with_filler_cost=lambda cost: path.name)

    monkeypatch.setattr(trained_model, "load_graph", load)
    later = model.recognizer_with(None)
    assert later.settings.acoustic_scale == 0.3
    assert (later.graph, later.tuning_graph) == ("graph", "graph_tuning")
    given = DecodingGraph.__new__(DecodingGraph)
    assert model.recognizer_with(given).graph is given


def test_utterances_without_a_transform_are_scored_by_the_twin(hmm: Hmm, tmp_path: Path) -> None:
    drawn = draw(hmm, 2, seed=3)
    first, second = drawn.words
    model = a_model(hmm, drawn.means, tmp_path)
    other = Gmm(model.adapted.gmm.offset, model.adapted.gmm.weight, drawn.means + 1.0, model.adapted.gmm.var)
    shift = identity(6) + np.eye(6, 7, 6)  # adds nothing but to the first value
    shift[:, -1] = 1.0
    _, marked = model.adapted_to(drawn.feats, {first: "a", second: "b"}, {"a": shift}, graph=None)
    scorer, plain = EitherScorer(other, model.adapted.gmm), model.adapted.gmm
    np.testing.assert_allclose(scorer.loglikes(marked[second]), plain.loglikes(drawn.feats[second]), rtol=1e-5)
    expected = other.loglikes((drawn.feats[first].astype(np.float64) @ shift[:, :-1].T + 1.0).astype(np.float32))
    np.testing.assert_allclose(scorer.loglikes(marked[first]), expected, rtol=1e-4, atol=1e-3)
    assert scorer.loglikes(marked[first][:0]).shape == (0, hmm.num_pdfs)


def test_adapting_to_the_words_of_another_model(
    hmm: Hmm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speaker_passes, "_MIN_GAIN", 0.0)
    drawn, hyp = draw(hmm, 20, seed=5), tmp_path / "hyp.txt"
    model, names = a_model(hmm, drawn.means, tmp_path), list(drawn.words)
    with_graph = replace(model.recognizer, chosen_graph=DecodingGraph.__new__(DecodingGraph))
    model = replace(model, recognizer=with_graph)
    speaker_of = dict.fromkeys(names, "a")
    words = {name: " ".join(each) for name, each in drawn.words.items()}
    _, marked = with_known(model, drawn.feats, speaker_of, OtherWords(hyp, words))
    assert isinstance(marked, speaker_passes.Marked)
    # As from two rounds along these words.
    once, _ = model.transforms(drawn.feats, speaker_of, words, {})
    twice, _ = model.transforms(drawn.feats, speaker_of, words, once.transforms)
    np.testing.assert_allclose(marked.projected.transforms["a"], twice.transforms["a"], rtol=1e-6, atol=1e-6)
    # Utterances that the file lacks are named; of no known utterance or word it is refused.
    capsys.readouterr()
    with_known(model, drawn.feats, speaker_of, OtherWords(hyp, {name: words[name] for name in names[1:]}))
    said = capsys.readouterr().err
    assert f"{hyp}: 1 utterance takes no part in adaptation: {names[0]} (has no line)" in said
    some = {**words, names[0]: "", names[1]: f"{words[names[1]]} <unk>"}
    with_known(model, drawn.feats, speaker_of, OtherWords(hyp, some))
    said = capsys.readouterr().err
    assert f"2 utterances take no part in adaptation: {names[0]} (has no transcript), {names[1]} (not in" in said
    with pytest.raises(Speech3Error, match=r"hyp\.txt: has words of other utterances \(u\) than the data"):
        with_known(model, drawn.feats, speaker_of, OtherWords(hyp, {"u": words[names[0]]}))
    with pytest.raises(Speech3Error, match=r"hyp\.txt: is empty"):
        with_known(model, drawn.feats, speaker_of, OtherWords(hyp, {}))
    with pytest.raises(Speech3Error, match=r"hyp\.txt: 60 of its 60 words are not in the model's lexicon"):
        with_known(model, drawn.feats, speaker_of, OtherWords(hyp, dict.fromkeys(names, "nobody knows this")))
    # Nothing recognised: nobody is adapted to, as in the first pass.
    using, feats = with_known(model, drawn.feats, speaker_of, OtherWords(hyp, dict.fromkeys(names, "")))
    assert using is model.recognizer and feats is drawn.feats


def test_passes_of_an_earlier_decoding_do_not_stay(tmp_path: Path) -> None:
    for name in ("pass1", "pass12", "sat", "."):
        write_speakers(tmp_path / name, {"a": identity(2)}, {"u": "a"})
    (tmp_path / "pass1" / "hyp.txt").write_text("u A\n")
    (tmp_path / "sat" / "feats").mkdir()
    (tmp_path / "passport").mkdir()
    (tmp_path / "pass2").mkdir()
    (tmp_path / "pass2" / "spk2utt").write_text("mine\n")
    forget_passes(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["pass2", "pass2/spk2utt", "passport", "sat", "sat/feats"]
    # Nor is a model taken for one, nor anything removed that is read.
    write_speakers(tmp_path / "sat", {"a": identity(2)}, {"u": "a"})
    with pytest.raises(OccupiedError, match=r"sat: is one of the inputs"):
        check_decoding(tmp_path, [tmp_path / "sat"], lattices=False)
    (tmp_path / "sat" / "model.safetensors").touch()
    forget_passes(tmp_path)
    assert read_speakers(tmp_path / "sat", 2)


def test_it_is_said_who_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = Estimated({}, {}, {})
    say_speakers({"u1": "u1", "u2": "u2"}, nobody)
    assert "every utterance has a speaker of its own" in capsys.readouterr().err
    say_speakers({"u1": "all", "u2": "all"}, nobody)
    assert "all utterances are of one speaker, all" in capsys.readouterr().err
    say_speakers({"u1": "a", "u2": "a", "u3": "b"}, Estimated({}, {"b": "3 frames are few"}, {}))
    said = capsys.readouterr().err
    assert "2 of 2 speakers are not adapted to: a (no words that can be aligned), b (3 frames are few)" in said
    say_speakers({"u1": "a", "u2": "b"}, Estimated({"a": identity(2)}, {}, {}))
    assert "1 of 2 speakers are not adapted to: b (no words that can be aligned)" in capsys.readouterr().err


def test_transforms_that_are_given(hmm: Hmm, tmp_path: Path) -> None:
    drawn = draw(hmm, 2, seed=4)
    model, (first, second) = a_model(hmm, drawn.means, tmp_path), drawn.words
    write_speakers(tmp_path, {"a": identity(6)}, {first: "a", second: "b"})
    np.testing.assert_array_equal(read_speakers(tmp_path, 6)["a"], identity(6))
    with pytest.raises(Speech3Error, match="6 x 7, but the model's features have 4"):
        read_speakers(tmp_path, 4)
    for scale in (0.0, 1e-3, 1e20):
        write_speakers(tmp_path / "bad", {"a": scale * identity(6)}, {first: "a"})
        with pytest.raises(Speech3Error, match=r"bad: a: the transform is singular or out of scale"):
            read_speakers(tmp_path / "bad", 6)
    alike = identity(6)
    alike[1] = alike[0]
    write_speakers(tmp_path / "bad", {"a": alike}, {first: "a"})
    with pytest.raises(Speech3Error, match=r"bad: a: the transform is singular"):
        read_speakers(tmp_path / "bad", 6)
    write_speakers(tmp_path / "none", {}, {first: "a"})
    with pytest.raises(Speech3Error, match="none: is empty"):
        with_known(model, drawn.feats, {first: "a", second: "b"}, tmp_path / "none")
    # A directory that was moved with its archive, whose path the index has.
    (tmp_path / "moved").mkdir()
    for name in ("trans.ark", "trans.scp"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    np.testing.assert_array_equal(read_speakers(tmp_path / "moved", 6)["a"], identity(6))
    write_speakers(tmp_path, {"a": identity(6)}, {first: "a", second: "b"})
    with pytest.raises(Speech3Error, match="transforms of other speakers"):
        with_known(model, drawn.feats, {first: "c", second: "d"}, tmp_path)
