"""Noises of transcripts in the error rates of recipes; what too little speech leaves unused."""

from pathlib import Path

import pytest

from speech3.data.datadir import DataDir, Utterance, write_datadir
from speech3.recipe.evaluation import error_rate, score_of, spoken
from speech3.recipe.experiment import Experiment, open_experiment
from speech3.runtime.files import write_text


def test_noises_do_not_count_in_tuning() -> None:
    assert spoken("leo [laughs] <noise> !xoo <unk> !SIL") == "leo !xoo"
    assert spoken("h# sil iy") == "h# sil iy", "phones"
    references, found = ["leo [laughs] jana", "{cough}"], ["leo <noise> jana", ""]
    assert [error_rate(metric)(references, found) for metric in ("WER", "CER")] == [0.0, 0.0]  # type: ignore[arg-type]
    assert error_rate("WER")(references, ["leo jana", "mama"]) == 0.5, "an insertion"


def test_nor_in_the_score(tmp_path: Path) -> None:
    e = open_experiment("any", tmp_path / "out", tmp_path / "in", [], "")
    rows = {key: Utterance(key, key, key, text) for key, text in (("a", "leo [laughs] jana"), ("b", "[laughs]"))}
    write_datadir(DataDir(tmp_path, {"a": "a.wav", "b": "b.wav"}, rows), e.data("test"))
    write_text(e.out / "decode" / "tri" / "test" / "hyp.txt", "a leo jana\nb [noise] mama\n")
    found = score_of(e, "tri")
    assert (found.words.length, found.words.errors, found.words.insertions) == (2, 1, 1)


def _with_minutes(e: Experiment, minutes: float) -> Experiment:
    write_datadir(
        DataDir(e.out, {"a": "a.wav"}, {"a": Utterance("a", "a", "a", "leo", 0.0, 60 * minutes)}), e.data("train")
    )
    return e.settled()


def test_what_too_little_speech_leaves_unused_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e = open_experiment("any", tmp_path / "out", tmp_path / "in", ["untranscribed=more", "augment=noisy"], "")
    found = _with_minutes(e, 5)
    assert found.recipe.augment is not None
    e = open_experiment("any", tmp_path / "out", tmp_path / "in", ["augment=noisy"], "")
    assert _with_minutes(e, 0.1).recipe.augment is None, "no network is left that learns from the copies"
    assert found.recipe.lfmmi is None and found.recipe.untranscribed is None
    told = capsys.readouterr().err
    assert "no LF-MMI system: there are 5.0 min of speech to train on, and lfmmi.min_minutes is 10" in told
    assert "so untranscribed=more cannot be used; to use it, lower lfmmi.min_minutes" in told
