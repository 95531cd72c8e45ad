"""Negatives: which utterances are added, which are left out, and that their symbols are never words."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import toys
from sounds import RATE_HZ, tone

from speech3.data import audio
from speech3.data.augment import negatives as made
from speech3.data.augment.negatives import negatives
from speech3.data.datadir import DataDir, Utterance, read_datadir, write_datadir
from speech3.decode import tune
from speech3.decode.grammar import from_arpa, join_words, one_word_grammar, phone_filler, with_filler, with_silence
from speech3.decode.search import Hypothesis
from speech3.errors import DataError, MissingError, SettingError, Speech3Error
from speech3.hmm.model import THREE_STATES, Hmm, monophone_tree
from speech3.io import Fst
from speech3.language.lexicon import mark_positions, with_garbage
from speech3.recipe.experiment import Experiment, open_experiment
from speech3.recipe.language import _said, error_rate
from speech3.recipe.negatives import make_data
from speech3.recipe.plan import planned_steps


def write_tones(out: Path, texts: dict[str, str], rate_hz: int, pitches_hz: dict[str, float]) -> None:
    """A data directory: each utterance a tone of half a second, from a speaker of its own."""
    for key in texts:
        audio.write_wav(out / "wav" / f"{key}.wav", tone(0.5, rate_hz, pitches_hz[key]), rate_hz)
    utterances = {key: Utterance(key, key, key, text) for key, text in texts.items()}
    write_datadir(DataDir(out, {key: f"wav/{key}.wav" for key in texts}, utterances), out)


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., Experiment]:
    def make(*overrides: str) -> Experiment:
        e = open_experiment("digits", tmp_path / "exp", None, ["jobs=1", *overrides], "")
        for split, size in (("train", 20), ("dev", 4), ("test", 1)):
            keys = [f"{split}-{number}" for number in range(size)]
            write_tones(e.data(split), dict.fromkeys(keys, "ONE TWO"), RATE_HZ, dict.fromkeys(keys, 300.0))
        e.lexicon.write_text("ONE W AH N\nTWO T UW\n")
        return e

    return make


def share_at(wave_S: np.ndarray, pitch_hz: float) -> float:
    """The share of the power within 20 Hz of a frequency."""
    power_F = np.abs(np.fft.rfft(wave_S)) ** 2
    near_F = np.abs(np.fft.rfftfreq(len(wave_S), 1 / RATE_HZ) - pitch_hz) < 20
    return float(power_F[near_F].sum() / max(power_F.sum(), 1e-12))


def test_utterances_with_a_word_of_the_domain_are_left_out_and_others_resampled(
    experiment: Callable[..., Experiment], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others, keys = tmp_path / "others", [f"o{number}" for number in range(12)]
    said = ("some one", "One, please", "one-way")
    texts = {key: said[number % 3] if number % 2 else "hello" for number, key in enumerate(keys)}
    write_tones(others, texts, 2 * RATE_HZ, {key: 1000.0 if texts[key] == "hello" else 2000.0 for key in keys})
    e = experiment(f"negatives={others}", "negatives.share=10")
    make_data(e)
    assert "6 of 12" in capsys.readouterr().err

    data = read_datadir(e.data(e.train))
    negatives = {key: each for key, each in data.utterances.items() if key.startswith("neg-")}
    assert len(negatives) == 29 and len(data.utterances) == 49, "ten times the speech, 3.5 s each"
    assert {word for each in negatives.values() for word in (each.text or "").split()} == {"<unk>", "<noise>"}
    heard = {key: audio.load(data, key) for key in negatives if key.endswith("other")}
    assert {rate_hz for _, rate_hz in heard.values()} == {RATE_HZ}
    assert all(share_at(wave_S, 1000) > 0.9 for wave_S, _ in heard.values()), "2000 Hz are those with a word"
    assert all((each.text or "").startswith("<unk>") for key, each in negatives.items() if key.endswith("shuffled"))
    assert set(_said(e, "train")) == {("ONE", "TWO")}, "the language model does not see them"

    assert len(read_datadir(e.data("dev_neg")).utterances) == 4


def test_without_a_directory_our_own_speech_is_shuffled(experiment: Callable[..., Experiment]) -> None:
    e = experiment("negatives={}", "negatives.share=4")
    make_data(e)
    kinds = {key.split("-")[2] for key in read_datadir(e.data(e.train)).utterances if key.startswith("neg-")}
    assert kinds == {"noise", "shuffled", "tones", "babble", "silence", "two"}


def test_two_sounds_in_one_negative_have_the_words_of_both_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = {"other": 0.5, "shuffled": 0.5, "babble": 0.5, "noise": 0.25, "tones": 0.25, "silence": 0.25}
    monkeypatch.setattr(made, "_sound", lambda kind, count, *_: np.full(count, levels[kind]))
    found = [each for each in negatives(60, [], [], RATE_HZ, 1, held_out=False) if each[0] == "two"]
    transcripts = set()
    for _, text, wave_N in found:
        fifth = len(wave_N) // 5
        joint = fifth + int(wave_N[fifth:-fifth].argmin())
        assert wave_N[joint] == 0, "no click tells that another sound follows"
        expected: list[str] = []
        for part_N in (wave_N[:joint], wave_N[joint:]):
            speech, spoken = part_N.max() > 0.3, max(1, round(len(part_N) / RATE_HZ / 0.4))
            expected += spoken * ["<unk>"] if speech else ["<noise>"] if expected != ["<noise>"] else []
        assert abs(text.count("<unk>") - expected.count("<unk>")) <= 1, "the joint is in the middle of two samples"
        assert [*dict.fromkeys(text.split())] == [*dict.fromkeys(expected)]
        transcripts.add(tuple(dict.fromkeys(expected)))
    assert transcripts == {("<noise>",), ("<unk>",), ("<unk>", "<noise>"), ("<noise>", "<unk>")}
    assert len(found) == 18 and all(text.split().count("<noise>") <= 1 for _, text, _ in found)


@pytest.mark.parametrize(
    ("texts", "kind", "named"),
    [({}, MissingError, "others"), (None, MissingError, "others"), ({"a": "ONE", "b": "two"}, DataError, "one, two")],
)
def test_a_directory_without_other_speech_is_named(
    experiment: Callable[..., Experiment],
    tmp_path: Path,
    texts: dict[str, str] | None,
    kind: type[Speech3Error],
    named: str,
) -> None:
    if texts:
        write_tones(tmp_path / "others", texts, RATE_HZ, dict.fromkeys(texts, 500.0))
    elif texts is not None:
        (tmp_path / "others").mkdir()
    with pytest.raises(kind, match=named):
        make_data(experiment(f"negatives={tmp_path / 'others'}"))


def test_the_lengths_of_words_are_known_before_any_system_is_decoded(experiment: Callable[..., Experiment]) -> None:
    plain, with_negatives = (
        {step.name: step for step in planned_steps(experiment(*keys))} for keys in ([], ["negatives={}"])
    )
    assert "hmm/align" in with_negatives["decode/tri"].needs
    assert "hmm/align" not in plain["decode/tri"].needs


def test_words_spelled_by_letters_and_negatives_exclude_one_another(experiment: Callable[..., Experiment]) -> None:
    with pytest.raises(SettingError, match="negatives"):
        experiment("negatives={}", "units=sentencepiece")


def test_garbage_has_phones_of_its_own_and_is_no_word() -> None:
    lexicon = with_garbage(toys.LEXICON)
    assert lexicon.phones == ("SIL", "NSN", "SPN", "a", "b")
    assert {lexicon.phones[number - 1] for number in lexicon.context_free} == {"SIL", "NSN", "SPN"}
    assert with_garbage(lexicon) == lexicon
    assert "SPN" in mark_positions(lexicon).phones, "it has no position in a word"

    tree = monophone_tree(np.arange(len(lexicon.phones)), 3)
    hmm = Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5), THREE_STATES)
    filler = phone_filler(hmm, phones=False, garbage=True)
    assert filler is not None and {pron.phones for pron in filler.pronunciations} == {("SPN",), ("NSN",)}
    grammar = with_filler(one_word_grammar(lexicon), filler)
    assert {"<unk>", "<noise>"}.isdisjoint(grammar.words), "neither is a word of the grammar"
    both = phone_filler(hmm, garbage=True)
    assert both is not None and {pron.phones[0] for pron in both.pronunciations} == {"a", "b", "SPN", "NSN"}

    said = join_words(("<noise>￭", "￭<noise>", "A", "<unk>￭", "￭<noise>￭", "￭<unk>", "AB"), "￭")
    assert said == ("A", "<unk>", "AB")
    assert error_rate("WER")(["A AB"], [" ".join(said)]) == 0


@pytest.mark.parametrize("order", [1, 2])
def test_silence_alone_is_accepted_by_an_ngram_and_other_sentences_keep_their_costs(order: int) -> None:
    before = from_arpa(toys.estimate_lm([["A"], ["AB", "A"]], order), toys.LEXICON)
    after = with_silence(before)

    def costs(fst: Fst) -> list[float]:
        """Of the sentences of one word: first arc and end."""
        first = fst.arcs_A[(fst.source_A == fst.start) & (fst.arcs_A["ilabel"] < len(before.words) - 1)]
        return [float(arc["weight"] + fst.final_S[arc["nextstate"]]) for arc in first]

    assert costs(after.fst) == costs(before.fst) and min(costs(before.fst)) < np.inf
    assert after.fst.final_S[after.fst.start] == 0 < before.fst.final_S[before.fst.start]
    assert np.array_equal(after.fst.final_S[:-1], before.fst.final_S)


def test_the_cost_has_the_fewest_errors_in_dev_and_negatives_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors and words in negatives as functions of the cost are given; compared with trying all costs."""

    class Costly:
        cost = tune.FILLER_OFF

        def with_filler_cost(self, cost: float) -> "Costly":
            found = Costly()
            found.cost = cost
            return found

    def lattices(graph: Costly, scores, *_: object):  # type: ignore[no-untyped-def]
        for key, _ in list(scores):
            words = (str(graph.cost),) if key == "u" else false * ("A",) if graph.cost > most else ("<unk>",)
            yield key, (Hypothesis(key, words, (), 0.0, 0.0, True), None)

    monkeypatch.setattr(tune, "lattices", lattices)
    monkeypatch.setattr(tune, "_calibrated", lambda _, each, *__: tune.Calibration(len(each), 1.0))
    point = tune.Tuning(tune.TuningPoint(0.1, 0.0, 0.1), (), {"u": ("A",)}, tune.Calibration(0.0, 1.0))
    one, costs = np.zeros((1, 9), np.float32), (*tune.FILLER_COSTS, tune.FILLER_OFF)
    for least, most, false in itertools.product(costs, (-math.inf, *costs), (1, 3)):
        rate = lambda _, words, least=least: 0.1 if float(words[0]) >= least else 0.2  # noqa: E731
        chosen = tune.tune_filler(
            Costly(),  # type: ignore[arg-type]
            [("u", one)],
            {"u": 20 * ["A"]},
            tune.DecodeConfig(),
            point,
            error_rate=rate,
            negatives=([("n", one)], 1),
        )
        errors = {cost: (2 if cost >= least else 4) + (false if cost > most else 0) for cost in costs}
        assert chosen.cost == max(cost for cost in costs if errors[cost] == min(errors.values()))
        assert chosen.calibration.offset == 2, "it is fitted to dev and the negatives"
