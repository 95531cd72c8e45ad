"""What the report shows of single utterances."""

from pathlib import Path

from speech3.data.datadir import DataDir, Utterance
from speech3.evaluate.wer import score
from speech3.recipe import evaluation
from speech3.recipe.experiment import open_experiment


def test_utterances_of_which_no_system_recognised_a_word() -> None:
    ref = {"a": "one two", "b": "one two", "c": "one two", "d": "one"}
    first = score(ref, {"a": "three four", "b": "three", "c": "three two", "d": "three"})
    other = score(ref, {"a": "five", "b": "one", "c": "five", "d": "five"})
    assert evaluation._differ_entirely({"tri": first}) == ["a", "b"]  # c has a right word, d is short
    assert evaluation._differ_entirely({"tri": first, "dnn": other}) == ["a"]


def test_where_a_recording_is(tmp_path: Path) -> None:
    utterances = {
        "whole": Utterance("whole", "tape", "s", "a", 0.0, None),
        "part": Utterance("part", "tape", "s", "a", 1.25, 2.5),
        "rest": Utterance("rest", "command", "s", "a", 1.25, None),
    }
    data = DataDir(tmp_path, {"tape": "wav/tape.wav", "command": "sph2pipe x |"}, utterances)
    assert evaluation._place(data, "whole") == f"{tmp_path}/wav/tape.wav"
    assert evaluation._place(data, "part") == f"{tmp_path}/wav/tape.wav, 1.25 s to 2.50 s"
    assert evaluation._place(data, "rest") == "sph2pipe x |, 1.25 s to its end"


def test_only_public_corpora_get_rows_for_their_table_of_results(tmp_path: Path) -> None:
    def compared(name: str, source: Path | None) -> bool:
        return open_experiment(name, tmp_path / "out", source, [], "").compared_with_published_results

    source = tmp_path / "source"
    source.mkdir()
    assert compared("fsdd", source) and not compared("any", source) and not compared("digits", None)
