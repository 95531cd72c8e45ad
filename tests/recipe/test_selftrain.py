"""Which utterances self-training chooses, from the parts that were recognised."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from speech3.data.datadir import DataDir, Utterance, write_datadir
from speech3.hmm.alignment.times import Segment, write_ctm
from speech3.io.ark import read_int_ark, write_ark
from speech3.recipe import selftrain
from speech3.recipe.experiment import SELF
from speech3.recipe.plan import _without_selftraining


def experiment(out: Path, least: float) -> Any:
    """Two parts of two utterances of two seconds; c has no words."""
    utterances = {key: Utterance(key, "r", "s", None, 2.0 * n, 2.0 * n + 2) for n, key in enumerate("abcd")}
    (out / "self").mkdir()
    write_datadir(DataDir(out, {"r": "r.wav"}, utterances), out / "data")
    for number, keys in enumerate(("ab", "d"), 1):
        values = {"a": (0.9, 0.7), "b": (0.2, 0.4), "d": (1.0,)}
        words = {key: [Segment(n, n + 1, f"{key}{n}", value) for n, value in enumerate(values[key])] for key in keys}
        write_ctm(out / "self" / f"part000{number}.ctm", words)
        write_ark(out / "self" / f"part000{number}.ark", ((key, np.full(3, ord(key), np.int32)) for key in keys))
    recipe = SimpleNamespace(untranscribed=SimpleNamespace(confidence=least))
    return cast(Any, SimpleNamespace(recipe=recipe, out=out, data=lambda _: out / "data"))


def test_the_certain_utterances_of_all_parts_are_chosen(tmp_path: Path, capsys: Any) -> None:
    selftrain.choose(experiment(tmp_path, 0.75))
    assert (tmp_path / "self" / "chosen.txt").read_text() == "a 0.800 a0 a1\nd 1.000 d0\n"
    labels = read_int_ark(tmp_path / "self" / "labels.ark")
    assert {key: each.tolist() for key, each in labels.items()} == {"a": [97] * 3, "d": [100] * 3}
    said = capsys.readouterr().err
    assert "2 of 4 utterances (0.1 of 0.1 minutes)" in said and "87% are expected to be right" in said


def test_that_none_is_certain_enough_is_said_with_the_best(tmp_path: Path, capsys: Any) -> None:
    e = experiment(tmp_path, 1.5)
    selftrain.choose(e)
    assert "the best has 1.00" in capsys.readouterr().err and selftrain.found_nothing(e)


def test_a_run_up_to_selftraining_that_finds_nothing_stops_after_decoding() -> None:
    asked_for = (None, "self", SELF, "lfmmi", "train")
    assert [_without_selftraining(to) for to in asked_for] == [None, "decode", "decode", "lfmmi", "train"]
