"""Splits that are drawn: parts of a useful size, and one line that says what they are."""

from pathlib import Path

import pytest

from speech3.corpora.anyspeech import split_data
from speech3.data.datadir import DataDir, Utterance

SHARES = {"dev": 0.1, "test": 0.1}


def data(path: Path, **seconds: float) -> DataDir:
    """Speakers with twenty utterances each, together as long as told."""
    utterances = {}
    for speaker, total_s in seconds.items():
        for number in range(20):
            key = f"{speaker}-{number:02d}"
            utterances[key] = Utterance(key, "tape", speaker, "leo", 10.0, 10.0 + total_s / 20)
    return DataDir(path, {"tape": "tape.wav"}, utterances)


def shares(parts: dict[str, DataDir]) -> dict[str, float]:
    seconds = {name: sum(u.end_s - u.start_s for u in part.utterances.values()) for name, part in parts.items()}  # type: ignore[operator]
    return {name: each / sum(seconds.values()) for name, each in seconds.items()}


@pytest.mark.parametrize("seed", range(5))
def test_the_twelve_seconds_of_the_linguist_are_no_test_set(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = split_data(data(tmp_path, kofi=600, ama=600, efua=600, linguist=12), SHARES, seed)
    assert all(0.05 < shares(parts)[name] < 0.15 for name in SHARES)
    assert len(parts["test"].speakers()) > 2
    told = " ".join(capsys.readouterr().err.split())
    assert "4 speakers, where 8 are needed to hold some out" in told
    assert f"; test {len(parts['test'].utterances)} utterances, 3.0 minutes, " in told


@pytest.mark.parametrize("seed", range(5))
def test_nor_are_those_of_many_visitors(tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    visitors = {f"visitor{number}": 12.0 for number in range(6)}
    parts = split_data(data(tmp_path, kofi=600, ama=600, efua=600, **visitors), SHARES, seed)
    assert all(0.05 < shares(parts)[name] < 0.15 for name in SHARES)
    assert "9 speakers, of whom none can be held out, since each has too much of the speech or too little" in (
        " ".join(capsys.readouterr().err.split())
    )


def test_what_was_drawn_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split_data(data(tmp_path, **{f"s{number}": 60.0 for number in range(10)}), SHARES, 1)
    assert capsys.readouterr().err == (
        "  held out: dev 20 utterances, 1.0 minutes, 1 speaker (none of them also in train);"
        " test 20 utterances, 1.0 minutes, 1 speaker (none of them also in train)\n"
    )
    split_data(data(tmp_path, **{f"s{number}": 60.0 for number in range(6)}), SHARES, 1)
    *before, told = capsys.readouterr().err.splitlines()
    assert "test has 1 of the 6 speakers; 5 remain, where 8 are needed to hold some out: dev (15% of the" in before[0]
    assert told.startswith("  held out: dev ") and "(5 of them also in train); test 20 utterances" in told
    assert told.endswith("1 speaker (none of them also in train)")
