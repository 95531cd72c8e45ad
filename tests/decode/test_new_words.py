"""Words that a small model lacks, pronounced as espeak-ng pronounced those that it was trained on."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from whistles import RATE_HZ, whistled

from speech3.decode.new_graph import GraphSources, make_graph, replace_graph
from speech3.decode.recognizer import Recognizer, load_recognizer
from speech3.errors import Speech3Error
from speech3.hmm import load_hmm
from speech3.language import espeak

BAB = (("SIL", 0.3), ("b", 0.25), ("a", 0.25), ("b", 0.25), ("SIL", 0.3))


@pytest.fixture
def spanish(model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The whistles as a language of espeak-ng, which says `a` and `b` as they are written and knows no other letter."""

    def pronounce(texts: Sequence[str], voice: str) -> list[list[list[str]]]:
        return [[[c for c in word.lower() if c in "ab"] for word in text.split()] for text in texts]

    monkeypatch.setattr(espeak, "voice_of", str)
    monkeypatch.setattr(espeak, "pronounce", pronounce)
    about = json.loads((model / "hmm.json").read_text())
    (model / "hmm.json").write_text(json.dumps({**about, "language": "es"}))
    return model


def test_hot_words_that_the_graph_lacks_are_added(
    spanish: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wave_S = whistled(*BAB)
    assert Recognizer.load(spanish).transcribe(wave_S, RATE_HZ).text != "BAB"
    found = Recognizer.load(spanish, hot=["BAB"]).transcribe(wave_S, RATE_HZ)
    assert found.text == "BAB" and [phone.text for phone in found.phones] == ["b", "a", "b"]
    assert "BAB" in capsys.readouterr().err
    hmm = load_recognizer(spanish).hmm
    hmm.save(tmp_path / "saved")
    assert load_hmm(tmp_path / "saved").lexicon.language == "es"


def test_words_of_a_chosen_graph_stay_when_hot_words_are_added(spanish: Path, tmp_path: Path) -> None:
    (tmp_path / "add.txt").write_text("ABA\n")
    make_graph(spanish, tmp_path / "more", GraphSources(add=tmp_path / "add.txt"))
    chosen = replace_graph(load_recognizer(spanish), tmp_path / "more", ["BAB"])
    assert {"A", "ABA", "BAB"} <= set(chosen.graph.words)


def test_words_of_a_list_of_sentences_are_pronounced(spanish: Path, tmp_path: Path) -> None:
    (tmp_path / "said").write_text("BAB\n")
    make_graph(spanish, tmp_path / "graph", GraphSources(sentences=tmp_path / "said"))
    found = Recognizer.load(spanish, graph=tmp_path / "graph").transcribe(whistled(*BAB), RATE_HZ)
    assert found.text == "BAB"


@pytest.mark.parametrize("known", [True, False])
def test_words_that_no_phone_can_spell_are_named(
    model: Path, known: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if known:
        request.getfixturevalue("spanish")
    with pytest.raises(Speech3Error, match="XYZ"):
        Recognizer.load(model, hot=["XYZ"])
    (tmp_path / "said").write_text("XYZ\nXXY\n")  # a grammar whose words are all unknown
    with pytest.raises(Speech3Error, match="XYZ"):
        make_graph(model, tmp_path / "graph", GraphSources(sentences=tmp_path / "said"))
