"""Errors of boundaries, on times whose errors are known."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from speech3.data.phones import broad_class, folded, is_silence
from speech3.errors import Speech3Error
from speech3.evaluate.boundaries import Times, compare, figures, read_times, table
from speech3.hmm.alignment.compared import match, paired
from speech3.hmm.alignment.times import Segment, write_ctm, write_textgrid

SHARED = Path(__file__).resolve().parents[3] / "shared" / "corpora"


def track(*edges: float, labels: str) -> list[Segment]:
    return [Segment(a, b, label) for a, b, label in zip(edges[:-1], edges[1:], labels.split(), strict=True)]


def times(words: list[Segment] | None, phones: list[Segment] | None) -> Times:
    found = Times("test")
    for level, segments in (("words", words), ("phones", phones)):
        if segments is not None:
            found.tracks[level] = {"u": segments}  # type: ignore[index]
    return found


PHONES = track(0, 0.2, 0.3, 0.5, 0.6, 0.8, 1.0, labels="SIL k ae t iy SIL")
_LINE = "u 1 0 1 a\n"
WORDS = [Segment(0.2, 0.6, "cat"), Segment(0.6, 0.8, "e")]


def test_every_kind_has_its_boundaries() -> None:
    ours = track(0, 0.21, 0.32, 0.5, 0.57, 0.84, 1.0, labels="sil K AE1 T IY0 sil")
    found = compare(times(WORDS, PHONES), times([Segment(0.21, 0.57, "CAT"), Segment(0.57, 0.84, "e")], ours))
    expected = {
        "word starts": [0.01, -0.03],
        "word ends": [-0.03, 0.04],
        "inside words": [0.02, 0.0],
        "phones": [0.02, 0.0, -0.03],
        "after silence": [0.01],
        "before silence": [0.04],
    }
    assert {kind: pytest.approx(errors, abs=1e-9) for kind, errors in found.errors_s.items()} == expected
    assert set(found.pairs_s) == {"stop-vowel", "vowel-stop", "silence-stop", "vowel-silence"}
    assert found.pairs_s["stop-vowel"] == pytest.approx([0.02, -0.03], abs=1e-9)
    assert found.matched == {"words": 2, "phones": 4} and not found.only_reference.total()
    shown = table(found)
    assert "word starts" in shown and "vowel-stop" in shown and "4 matched" in shown


def test_figures_are_those_of_their_definition() -> None:
    each = figures([0.005, -0.010, 0.020, -0.025, 0.060])
    assert each == {
        "n": 5,
        "mean_ms": 24.0,
        "median_ms": 20.0,
        "within_5_ms": 20.0,
        "within_10_ms": 40.0,
        "within_20_ms": 60.0,
        "within_25_ms": 80.0,
        "within_50_ms": 80.0,
        "bias_ms": 10.0,
    }


def test_phones_that_only_one_side_has_are_counted_and_their_neighbours_not_measured() -> None:
    ours = track(0, 0.2, 0.3, 0.5, 0.8, 1.0, labels="SIL k ae iy SIL")  # no t
    found = compare(times(None, PHONES), times(None, ours))
    assert found.only_reference == {"phones": 1, "words": 0} or found.only_reference["phones"] == 1
    assert found.examples["phones"] == {"t": 1} and found.matched["phones"] == 3
    assert found.errors_s["phones"] == [pytest.approx(0.0)]  # k-ae only
    assert "1 only in the reference (such as t): not measured" in table(found)


def test_silence_of_one_side_between_two_phones_counts_by_its_middle() -> None:
    ours = track(0, 0.2, 0.3, 0.4, 0.52, 0.6, 0.8, 1.0, labels="SIL k ae SIL t iy SIL")
    found = compare(times(None, PHONES), times(None, ours))
    assert found.errors_s["phones"] == pytest.approx([0.0, -0.04, 0.0], abs=1e-9)


def test_other_labels_are_matched_by_class_and_time() -> None:
    truth, ours = track(0, 1, 2, 3, labels="s ix t"), track(0, 1, 2, 3, labels="S AH0 D")
    assert match(truth, ours, "phones") == {0: 0, 1: 1, 2: 2}
    repeated = track(0.0, 0.1, 2.0, 2.1, labels="a x a")
    assert match(track(2.0, 2.1, labels="a"), repeated, "phones") == {0: 2}


def test_matching_has_the_least_cost_of_all() -> None:
    costs = {"alike": 0.5, "unlike": 1.5, "missing": 0.9, "second": 0.01}

    def least(truth: list[Segment], ours: list[Segment]) -> float:
        if not truth or not ours:
            return costs["missing"] * (len(truth) + len(ours))
        true, own = truth[0], ours[0]
        same_class = broad_class(true.label) == broad_class(own.label)
        pair = 0.0 if true.label == own.label else costs["alike" if same_class else "unlike"]
        pair += costs["second"] * abs(true.start_s + true.end_s - own.start_s - own.end_s) / 2
        return min(
            pair + least(truth[1:], ours[1:]),
            costs["missing"] + least(truth[1:], ours),
            costs["missing"] + least(truth, ours[1:]),
        )

    generator = np.random.default_rng(0)
    for _ in range(30):
        sides = []
        for count in generator.integers(1, 6, 2):
            edges = np.sort(generator.uniform(0, 3, count + 1)).tolist()
            sides.append(track(*edges, labels=" ".join(generator.choice(list("aepts"), count))))
        truth, ours = sides
        matched = match(truth, ours, "phones")
        assert list(matched.values()) == sorted(set(matched.values()))
        pairs = [least([truth[r]], [ours[h]]) for r, h in matched.items()]
        alone = len(truth) + len(ours) - 2 * len(matched)
        assert sum(pairs) + costs["missing"] * alone == pytest.approx(least(truth, ours), abs=1e-9)


def test_an_hour_of_words_is_matched_in_seconds() -> None:
    words = [Segment(0.36 * n, 0.36 * n + 0.3, str(n % 997)) for n in range(10_000)]
    matched = match(words, [*words[:4000], *words[4001:]], "words")
    assert len(matched) == 9999 and 4000 not in matched and matched[9999] == 9998


def test_broad_classes() -> None:
    said = {
        "vowel": "AH0 iy aː ã ə̥ ɛ̃ y",
        "stop": "p tcl kʰ t̪ ʔ k' b dx ɡ͡b",
        "fricative": "sh ʃ ɬ x dh v ʕʷ",
        "affricate": "CH t͡ʃ t͡s' d͡ʒ",
        "nasal": "ng n̪ m̩ ŋ EN",
        "liquid": "r L ɾ ɻ̥ el",
        "glide": "w j ɥ",
        "silence": "SIL h# <eps> sp",
        "other": "7 字",
    }
    for name, labels in said.items():
        assert {label: broad_class(label) for label in labels.split()} == dict.fromkeys(labels.split(), name)
    assert broad_class("Y", arpabet=True) == "glide" and is_silence("")
    assert folded("AH0") == "ah" and folded("e:6") == "e:6" and folded("6") == "6"


def test_names_are_paired_by_as_many_of_their_parts_as_are_needed() -> None:
    reference = ["DR1/FCJF0/SA1", "DR1/MABC0/SA1", "DR2/X/SI5"]
    assert paired(reference, ["fcjf0-sa1", "mabc0_sa1", "SI5", "sa1"]) == {
        "DR1/FCJF0/SA1": "fcjf0-sa1",
        "DR1/MABC0/SA1": "mabc0_sa1",
        "DR2/X/SI5": "SI5",
    }
    assert paired(["a", "b"], ["a", "c"]) == {"a": "a"}


def test_every_form_is_read(tmp_path: Path) -> None:
    labels = tmp_path / "timit" / "DR1" / "FA0"
    labels.mkdir(parents=True)
    rows = "0 3200 h#", "3200 3600 kcl", "3600 4800 k", "4800 8000 ae", "8000 9600 tcl", "9600 12800 iy"
    (labels / "SI1.PHN").write_text("\n".join(rows) + "\n")
    (labels / "SI1.WRD").write_text("3200 9600 cat\n9600 12800 e\n")
    write_textgrid(tmp_path / "grids" / "fa0-si1.TextGrid", {"A - words": WORDS, "A - phones": PHONES}, 1.0)
    write_ctm(tmp_path / "ctm" / "phones.ctm", {"FA0_SI1": PHONES})
    write_ctm(tmp_path / "ctm" / "words.ctm", {"FA0_SI1": WORDS})
    forms = [read_times(tmp_path / name) for name in ("timit", "grids", "ctm")]
    assert [form.kind for form in forms] == ["TIMIT labels", "TextGrid", "CTM"]
    for reference in forms:
        for hypothesis in forms:
            found = compare(reference, hypothesis)
            assert found.utterances == 1 and found.matched == {"words": 2, "phones": 4}
            assert all(np.abs(errors).max() < 1e-9 for errors in found.errors_s.values())
    assert [s.label for s in read_times(labels / "SI1.PHN").tracks["phones"]["SI1"]] == ["h#", "k", "ae", "t", "iy"]
    given = read_times(tmp_path / "grids", None, {"words": "A - phones"})
    assert given.tracks["words"]["fa0-si1"][1].label == "k"


@pytest.mark.parametrize(
    ("files", "arguments", "said"),
    [
        ({"a.ctm": "u 1 0 1 a\n"}, ["a.ctm", "a.ctm"], "does not say whether it holds words or phones"),
        ({"a.phn": "0 x a\n"}, ["a.phn", "a.phn"], "a.phn:1: not `BEGIN END LABEL`"),
        ({"words.ctm": _LINE, "phones.ctm": _LINE}, ["words.ctm", "phones.ctm"], "the reference has words"),
        ({"words.ctm": _LINE, "words2.ctm": "v 1 0 1 a\n"}, ["words.ctm", "words2.ctm"], "no utterance is in both"),
        ({"words.ctm": _LINE}, ["words.ctm", "none"], "none: no such file or folder"),
        ({"empty/x.txt": ""}, ["empty", "empty"], "no phones.ctm, no words.ctm"),
        ({"words.ctm": ""}, ["words.ctm", "words.ctm"], "words.ctm: is empty"),
    ],
)
def test_bad_input_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    found = CliRunner().invoke(_app(), ["boundaries", *arguments])
    assert isinstance(found.exception, Speech3Error) and said in str(found.exception)


def test_a_textgrid_without_such_tiers_lists_those_it_has(tmp_path: Path) -> None:
    write_textgrid(tmp_path / "u.TextGrid", {"Wörter": WORDS}, 1.0)
    with pytest.raises(Speech3Error, match=r"no interval tier for tiers words or phones; there are Wörter"):
        read_times(tmp_path / "u.TextGrid")
    assert read_times(tmp_path / "u.TextGrid", None, {"words": "Wörter"}).tracks["words"]["u"][0].label == ""


def _app():  # type: ignore[no-untyped-def]
    from speech3 import cli

    cli._register()
    return cli.app


def test_the_verb_prints_json(tmp_path: Path) -> None:
    write_ctm(tmp_path / "ref_phones.ctm", {"u": PHONES, "v": PHONES})
    write_ctm(tmp_path / "hyp.ctm", {"u": PHONES})
    found = CliRunner().invoke(
        _app(), ["boundaries", str(tmp_path / "ref_phones.ctm"), str(tmp_path / "hyp.ctm"), "--json"]
    )
    assert found.exit_code == 0, found.output
    values = json.loads(found.stdout)
    assert values["missing"] == ["v"] and values["kinds"]["phones"]["n"] == 3
    assert values["phones"] == {"matched": 4, "other_label": 0, "only_reference": 0, "only_hypothesis": 0}


@pytest.mark.skipif(not (SHARED / "borders").exists(), reason="../shared/corpora/borders is not here")
def test_mfa_on_the_corrected_words_has_its_known_error() -> None:
    reference, mfa = (read_times(SHARED / "borders" / name, "phones") for name in ("ref.ctm", "mfa.ctm"))
    found = compare(reference, mfa)
    # 16.0 by the script there, which leaves out words with another number of phones.
    assert figures(found.errors_s["phones"])["mean_ms"] == pytest.approx(16.0, abs=0.3)
    assert len(found.missing) == 1064 - 973
