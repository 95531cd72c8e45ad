"""Calibration of confidences on words that are known to be correct or wrong."""

import math
from pathlib import Path

import jiwer
import numpy as np
import pytest

from speech3.decode.trained_model import Calibration, DecodeSettings, load_settings
from speech3.decode.tune import correct_words, fit_calibration
from speech3.errors import Speech3Error
from speech3.runtime.files import read_json, write_json


def test_the_calibration_that_made_the_words_is_found() -> None:
    rng, truth = np.random.default_rng(1), Calibration(-0.7, 0.6)
    posteriors = 1 / (1 + np.exp(-rng.normal(2.0, 2.0, 20_000)))
    correct = rng.random(len(posteriors)) < [truth(p) for p in posteriors]
    found = fit_calibration(posteriors, correct)
    assert found.offset == pytest.approx(truth.offset, abs=0.05) and found.slope == pytest.approx(truth.slope, abs=0.03)
    odds = math.log(0.9 / 0.1)
    assert truth(0.9) == pytest.approx(1 / (1 + math.exp(0.7 - 0.6 * odds)))
    step = 1e-3  # neighbours at this distance are less likely

    def likelihood(each: Calibration) -> float:
        sure = np.array([each(p) for p in posteriors[:2000]])
        prior = 0.5 * (each.offset**2 + (each.slope - 1) ** 2)
        return float(np.log(np.where(correct[:2000], sure, 1 - sure)).sum() - prior)

    best = fit_calibration(posteriors[:2000], correct[:2000])
    for offset, slope in ((step, 0), (-step, 0), (0, step), (0, -step)):
        assert likelihood(Calibration(best.offset + offset, best.slope + slope)) < likelihood(best)


def test_where_there_is_nothing_to_learn_it_stays_near_what_it_was() -> None:
    assert fit_calibration([], []) == Calibration(0.0, 1.0)
    assert Calibration(0.0, 1.0)(0.37) == pytest.approx(0.37)
    sure = fit_calibration([0.9, 1.0, 0.999] * 400, [True] * 1200)
    assert 0.99 < sure(0.999) < 1 and sure(0.9) > 0.9 and sure.slope >= 0
    wrong = fit_calibration([0.9, 1.0, 0.0] * 400, [False] * 1200)
    assert 0 < wrong(1.0) < 0.01
    turned = fit_calibration([0.99, 0.01] * 500, [False, True] * 500)
    assert turned.slope == 0, "the order of the words stays"


def test_correct_words_are_those_of_an_alignment_with_the_fewest_errors() -> None:
    assert correct_words(["a", "b", "c"], ["a", "x", "c", "d"]) == [True, False, True, False]
    assert correct_words(["a", "b"], ["b"]) == [True]
    assert correct_words([], ["b"]) == [False] and correct_words(["a"], []) == []
    rng = np.random.default_rng(0)
    for _ in range(50):
        ref, hyp = ([*"abc"[: rng.integers(1, 4)]] * 2, rng.choice([*"abc"], rng.integers(1, 7)).tolist())
        counts = jiwer.process_words(" ".join(ref), " ".join(hyp))
        assert sum(correct_words(ref, hyp)) == counts.hits


def test_settings_keep_it_and_those_without_stay_readable(tmp_path: Path) -> None:
    settings = DecodeSettings(0.1, 0.0, 15.0, 7000, Calibration(-0.5, 0.75))
    settings.save(tmp_path)
    assert load_settings(tmp_path) == settings
    values = read_json(tmp_path / "decode.json")
    write_json(tmp_path / "decode.json", {key: value for key, value in values.items() if key != "confidence"})
    assert load_settings(tmp_path).confidence is None
    for odd in ({"offset": 1.0}, {"offset": "1", "slope": 1.0}, 3, {"offset": float("nan"), "slope": 1.0}):
        write_json(tmp_path / "decode.json", values | {"confidence": odd})
        with pytest.raises(Speech3Error, match="keys of another version"):
            load_settings(tmp_path)
