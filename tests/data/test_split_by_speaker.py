import numpy as np
import pytest

from speech3.data.datadir import DataDir, Utterance, read_datadir
from speech3.data.subsets import parse_shares, split_by_speaker, split_by_utterance
from speech3.errors import DataError, Speech3Error
from speech3.io.ark import write_ark

SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}


def _data(path, seconds):
    """Speakers with five utterances each, together as long as told."""
    utterances = {}
    for speaker, total_s in enumerate(seconds):
        for number in range(5):
            key = f"s{speaker:03d}-{number}"
            utterances[key] = Utterance(key, "tape", key[:4], "A WORD", 10.0, 10.0 + total_s / 5)
    return DataDir(path, {"tape": "tape.wav"}, utterances)


def _seconds(part):
    return sum(utterance.end_s - utterance.start_s for utterance in part.utterances.values())


@pytest.mark.parametrize("split", [split_by_speaker, split_by_utterance])
@pytest.mark.parametrize("shares", [SHARES, dict(reversed(SHARES.items())), {str(n): 0.25 for n in range(4)}])
def test_shares(tmp_path, split, shares):
    data = _data(tmp_path, np.random.default_rng(3).uniform(5, 60, 100))
    parts = split(data, shares, 1)
    assert list(parts) == list(shares)
    for name, share in shares.items():
        assert _seconds(parts[name]) / _seconds(data) == pytest.approx(share, abs=0.01)
    keys = [key for part in parts.values() for key in part.utterances]
    assert sorted(keys) == list(data.utterances)  # nothing lost, nothing twice
    speakers = [name for part in parts.values() for name in part.speakers()]
    assert (len(speakers) == len(set(speakers))) == (split is split_by_speaker)
    again, other = split(data, shares, 1), split(data, shares, 2)
    assert all(again[name].utterances == parts[name].utterances for name in shares)
    assert any(other[name].utterances != parts[name].utterances for name in shares)


def test_a_speaker_with_most_of_the_speech_is_trained_on(tmp_path):
    data = _data(tmp_path, [5000, *[20] * 100])
    for seed in range(5):
        parts = split_by_speaker(data, SHARES, seed)
        assert "s000" in parts["train"].speakers()


def test_too_few(tmp_path):
    with pytest.raises(DataError, match="no speaker is left for dev, test"):
        split_by_speaker(_data(tmp_path, [10, 10]), SHARES, 1)
    with pytest.raises(Speech3Error, match=r"5 utterances: too few, none is left for dev, test"):
        split_by_utterance(_data(tmp_path, [10]), SHARES, 1)


def _features_only(path, frames, scp=True):
    keys = {f"s{n}-{k}": rows for n, rows in enumerate(frames) for k in range(4)}
    rows = np.zeros((max(frames), 2), np.float32)
    write_ark(path / "f.ark", ((key, rows[:count]) for key, count in keys.items()), path / "feats.scp")
    if not scp:
        (path / "feats.scp").write_text("".join(f"{key} cat {key}.mat |\n" for key in keys))
    (path / "utt2spk").write_text("".join(f"{key} {key[:2]}\n" for key in keys))
    return read_datadir(path)


def test_features_only_are_weighed_by_their_frames(tmp_path, capsys):
    data = _features_only(tmp_path, [100, 100, 100, 100, 100, 500])
    parts = split_by_speaker(data, {"one": 0.5, "two": 0.5}, 1)
    assert sorted(len(part.speakers()) for part in parts.values()) == [1, 5]
    assert capsys.readouterr().err == ""
    parts = split_by_speaker(_features_only(tmp_path, [1] * 5 + [9], scp=False), {"one": 0.5, "two": 0.5}, 1)
    assert [len(part.speakers()) for part in parts.values()] == [3, 3]
    assert "shares are counted in utterances" in capsys.readouterr().err


def test_a_recording_that_cannot_be_read_is_in_some_part(tmp_path, capsys):
    data = _data(tmp_path, [10] * 40)
    utterances = {**data.utterances, "s000-0": Utterance("s000-0", "lost", "s000", "A WORD")}
    data = DataDir(tmp_path, {**data.recordings, "lost": "lost.wav"}, utterances)
    parts = split_by_utterance(data, SHARES, 1)
    assert sum("s000-0" in part.utterances for part in parts.values()) == 1
    assert "length of s000-0 unknown: lost.wav: no such file" in capsys.readouterr().err


def test_shares_on_the_command_line():
    assert parse_shares(["a=0.5", "b=0.25", "c=0.25"]) == {"a": 0.5, "b": 0.25, "c": 0.25}
    assert parse_shares(["4"]) == {"1": 0.25, "2": 0.25, "3": 0.25, "4": 0.25}
    for wrong in (["a=0.5"], ["a=0.5", "a=0.5"], ["a=1.5"], ["a=x", "b=0.5"], ["1"], ["../a=0.5", "b=0.5"], ["=0.5"]):
        with pytest.raises(Speech3Error, match=wrong[-1 if len(wrong) == 1 else 0].replace("..", r"\.\.")):
            parse_shares(wrong)


def test_the_verb(make, tmp_path, program):
    done = program("split", make(), tmp_path / "out", "big=0.7", "small=0.3")
    assert done.exit_code == 1 or isinstance(done.exception, Speech3Error)  # 0.67 and 0.33 do not fit into 0.7 and 0.3
    done = program("split", make(), tmp_path / "out", "big=0.6", "small=0.4")
    assert done.exit_code == 0, done.exception
    assert done.stdout == (
        f"{tmp_path / 'out' / 'big'}: 2 utterances, 1 speaker\n{tmp_path / 'out' / 'small'}: 1 utterance, 1 speaker\n"
    )
    assert list(read_datadir(tmp_path / "out" / "small").utterances) == ["u3"]
    done = program("split", make(), tmp_path, "data=0.6", "rest=0.4")
    assert isinstance(done.exception, Speech3Error) and "is one of the inputs" in str(done.exception)
    done = program("split", make(), tmp_path / "thirds", "3", "--by", "utterance")
    assert [len(read_datadir(tmp_path / "thirds" / name).utterances) for name in "123"] == [1, 1, 1]
