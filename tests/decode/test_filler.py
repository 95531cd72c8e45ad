"""Fillers: phones in place of words that a graph lacks."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import toys
from whistles import HMM, SAID, SETTINGS, features, save_gmm, whistled

from speech3.config import DecodeConfig
from speech3.decode import tune
from speech3.decode.grammar import (
    FILLER_OFF,
    PHONE_COST,
    Grammar,
    join_segments,
    join_words,
    one_word_grammar,
    phone_filler,
    with_filler,
)
from speech3.decode.graph import build_graph, load_graph
from speech3.decode.new_graph import GraphSources, make_graph
from speech3.decode.recognizer import load_recognizer
from speech3.decode.search import Hypothesis
from speech3.decode.trained_model import Calibration
from speech3.decode.tune import tune_recognizer
from speech3.errors import SettingError
from speech3.hmm import Segment
from speech3.runtime import read_json

UNITS = ("<a>￭", "<b>￭", "￭<a>￭", "￭<b>￭", "￭<a>", "￭<b>")
FILLER = ("<b>￭", "￭<a>￭", "￭<b>")


def cost_of(grammar: Grammar, sentence: tuple[str, ...]) -> float:
    """The cost of the best path that reads a sentence; arcs that read `#0` are free to take. By enumeration."""
    fst, backoff = grammar.fst, len(grammar.words) - 1
    costs = {(fst.start, 0): 0.0}
    for _ in range(2 * len(sentence) + 4):
        for source, arc in zip(fst.source_A.tolist(), fst.arcs_A.tolist(), strict=True):
            label, _, weight, target = arc
            for (state, read), cost in list(costs.items()):
                taken = label != backoff
                if state == source and (not taken or grammar.words[label : label + 1] == sentence[read : read + 1]):
                    after = target, read + taken
                    costs[after] = min(costs.get(after, math.inf), cost + weight)
    return min(
        (cost + float(fst.final_S[s]) for (s, read), cost in costs.items() if read == len(sentence)), default=math.inf
    )


def test_a_grammar_accepts_fillers_around_its_sentences_at_the_cost_of_their_phones() -> None:
    filler = phone_filler(HMM)
    assert filler is not None and set(UNITS) == {pron.word for pron in filler.pronunciations}
    grammar = with_filler(one_word_grammar(HMM.lexicon), filler)
    word = math.log(3)  # A, AB or BB
    unknown = -math.log(0.01) + 3 * math.log(2) - math.log(4 / 5) - math.log(1 / 5)
    for before, said, after in product((0, 1), (0, 1), (0, 1, 2)):
        sentence = FILLER * before + ("AB",) * said + FILLER * after
        wanted = word * said + unknown * (before + after) if sentence else -math.log(0.01)
        assert cost_of(grammar, sentence) == pytest.approx(wanted, rel=1e-5)
    assert cost_of(grammar, ("AB", "AB")) == math.inf, "a sentence is said once"
    assert cost_of(grammar, FILLER[:1]) == math.inf, "a filler has at least two phones"


def test_a_filler_is_written_unk_with_the_times_of_its_phones() -> None:
    assert join_words(("AB", *FILLER, *FILLER, "A"), "￭") == ("AB", "<unk>", "<unk>", "A")
    parts = [Segment(n / 10, (n + 1) / 10, unit, 0.9 - n / 10) for n, unit in enumerate(("A", *FILLER))]
    assert join_segments(parts, "￭") == [parts[0], Segment(0.1, 0.4, "<unk>", parts[-1].confidence)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whistles with a filler, and with A as their only word."""
    model = save_gmm(tmp_path_factory.mktemp("filler"))
    build_graph(HMM, toys.estimate_lm([["A"]], 1), model / "graph", toys.SCALE, phone_filler(HMM))
    return model


def test_costs_are_on_the_phones_of_the_filler_alone(model: Path) -> None:
    raw = load_graph(model / "graph")
    costly = raw.with_filler_cost(3.0)
    more_A = (costly.fst.arcs_A["weight"] - raw.fst.arcs_A["weight"]).astype(float)
    begins_A = np.isin(raw.fst.arcs_A["olabel"], [raw.label_of[unit] for unit in UNITS[:2]])
    assert begins_A.any() and more_A == pytest.approx(3.0 * begins_A, abs=1e-5)
    assert costly.with_filler_cost(1.0).filler_cost == 1.0
    again = costly.with_filler_cost(1.0).fst.arcs_A["weight"]
    assert again == pytest.approx(raw.with_filler_cost(1.0).fst.arcs_A["weight"], abs=1e-5)
    assert 0 < PHONE_COST < math.log(2)


def test_other_sounds_become_unk_and_words_stay(model: Path, tmp_path: Path) -> None:
    SETTINGS.save(model)
    recognizer = load_recognizer(model)
    recognizer = replace(recognizer, chosen_graph=recognizer.graph.with_filler_cost(-2.0))
    sounds = {"word": SAID["a-bb"][1][:3], "other": (("SIL", 0.3), ("b", 0.3), ("a", 0.2), ("b", 0.3), ("SIL", 0.3))}
    feats = {name: features(whistled(*sound), tmp_path) for name, sound in sounds.items()}
    feats["word"] = features(whistled(*SAID["a-bb"][1]), tmp_path)[:60]
    found = {h.utterance: h.words for h in recognizer.decode(feats).hypotheses}
    assert found == {"word": ("A",), "other": ("<unk>",)}


def test_the_cost_chosen_is_the_lowest_that_costs_no_words(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors as a function of the cost are given; the search over costs must find the same as trying all of them."""
    graph = load_graph(model / "graph").with_filler_cost(FILLER_OFF)
    config, truth = DecodeConfig(), {"u": ["A"]}
    found = tune.Tuning(tune.TuningPoint(0.1, 0.0, 0.1), (), {"u": ("A",)}, Calibration(0.0, 1.0))
    monkeypatch.setattr(tune, "_calibrated", lambda *_: found.calibration)

    def lattices(graph, *_: object):  # type: ignore[no-untyped-def]
        yield "u", (Hypothesis("u", (str(graph.filler_cost),), (), 0.0, 0.0, True), None)

    monkeypatch.setattr(tune, "lattices", lattices)
    for least in (*tune.FILLER_COSTS, math.inf):
        rate = lambda _, words, least=least: 0.1 if float(words[0]) >= least else 0.2  # noqa: E731
        chosen = tune.tune_filler(graph, [("u", np.zeros((1, 9), np.float32))], truth, config, found, 1, rate)
        assert chosen.cost == (FILLER_OFF if math.isinf(least) else least)


def test_tuning_writes_the_cost_and_recognition_uses_it(model: Path, tmp_path: Path) -> None:
    feats = {"u": features(whistled(*SAID["a-bb"][1]), tmp_path)[:60]}
    config = DecodeConfig(acoustic_scales=(0.1,), word_penalties=(0.0,))
    recognizer = load_recognizer(model)
    for settings in (
        replace(SETTINGS, acoustic_scale=0.7, filler_cost=1.0),
        None,
    ):  # tuned once more; for the first time
        if settings:
            settings.save(model)
            assert recognizer.graph.filler_cost == 1 and recognizer.settings.acoustic_scale == 0.7
        else:
            (model / "decode.json").unlink()
            recognizer = load_recognizer(model)
        tune_recognizer(recognizer, feats, {"u": ["A"]}, config)
        cost = read_json(model / "decode.json")["filler_cost"]
        assert cost in (*tune.FILLER_COSTS, FILLER_OFF) and cost != 1
        assert load_recognizer(model).graph.filler_cost == recognizer.graph.filler_cost == cost
        assert recognizer.settings.acoustic_scale == 0.1


def test_a_list_of_sentences_gets_the_models_filler(model: Path, tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("A A\n")
    make_graph(model, tmp_path / "graph", GraphSources(sentences=tmp_path / "sentences.txt"))
    assert load_graph(tmp_path / "graph").has_filler


def test_words_of_low_confidence_are_written_unk(tmp_path: Path) -> None:
    model = save_gmm(tmp_path)
    replace(SETTINGS, confidence=Calibration(-1.0, 0.0)).save(model)  # 1 / (1 + e) = 0.27 for every word
    recognizer, wave_S = load_recognizer(model), whistled(*SAID["a-bb"][1])
    for least, text in ((0.0, "A BB"), (0.26, "A BB"), (0.28, "<unk> <unk>")):
        found = recognizer.with_min_confidence(least).transcribe(wave_S, 8000)
        stream = recognizer.with_min_confidence(least).stream(8000)
        stream.accept(wave_S)
        assert found.text == stream.finish().text == " ".join(word.word for word in found.words) == text
    with pytest.raises(SettingError):
        recognizer.with_min_confidence(2.0)
