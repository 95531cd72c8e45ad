import numpy as np
import pytest
import soundfile
from sounds import RATE_HZ, tone

from speech3.data.audio import load
from speech3.data.datadir import DataDir, Utterance, read_datadir
from speech3.data.subsets import read_list, subset
from speech3.errors import Speech3Error


@pytest.fixture
def many(tmp_path):
    """Ten speakers; speaker s has s + 1 utterances; the utterance number n of all lasts n + 1 seconds."""
    utterances, number = {}, 0
    for speaker in range(10):
        for _ in range(speaker + 1):
            key = f"s{speaker}-{number:02d}"
            utterances[key] = Utterance(key, "tape", f"s{speaker}", "A WORD", float(number), 2.0 * number + 1)
            number += 1
    return DataDir(tmp_path, {"tape": "tape.wav"}, utterances)


def test_drawn_utterances_depend_on_the_seed_alone(many):
    one, again, other = (set(subset(many, utterances=20, seed=seed).utterances) for seed in (1, 1, 2))
    assert len(one) == 20 and one == again != other
    assert subset(many, utterances=55).utterances == many.utterances
    # Every utterance is drawn as often as any other: 20 of 55 in 400 draws, within five standard deviations.
    counts = np.zeros(55)
    for seed in range(400):
        drawn = subset(many, utterances=20, seed=seed).utterances
        counts += [key in drawn for key in many.utterances]
    share = 20 / 55
    assert np.abs(counts / 400 - share).max() < 5 * np.sqrt(share * (1 - share) / 400)


def test_speakers_come_whole(many):
    part = subset(many, speakers=3)
    assert len(part.speakers()) == 3
    assert all(part.speakers()[name] == many.speakers()[name] for name in part.speakers())


def test_per_speaker(many):
    part = subset(many, per_speaker=4)
    assert [len(keys) for keys in part.speakers().values()] == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]
    assert list(part.utterances) == sorted(part.utterances)


def test_shortest_and_first(many):
    assert list(subset(many, shortest=3).utterances) == ["s0-00", "s1-01", "s1-02"]
    assert list(subset(many, first=4).utterances) == list(many.utterances)[:4]


def test_hours(many):
    lengths = {key: utt.end_s - utt.start_s for key, utt in many.utterances.items()}
    part = subset(many, hours=300 / 3600)
    total = sum(lengths[key] for key in part.utterances)
    left = [length for key, length in lengths.items() if key not in part.utterances]
    assert total <= 300 < total + min(left)  # nothing more would have fitted in
    with pytest.raises(Speech3Error, match=r"2 hours requested, but there are only 0\.428"):
        subset(many, hours=2)


def test_choices_narrow_one_after_the_other(many):
    part = subset(many, speakers=["s8", "s9"], per_speaker=5, shortest=6)
    assert set(part.speakers()) <= {"s8", "s9"} and len(part.utterances) == 6
    assert subset(many, speakers=["s9"], utterances=["s9-54"]).utterances.keys() == {"s9-54"}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"utterances": 56}, "56 utterances requested, but there are only 55"),
        ({"speakers": 11}, "11 speakers requested, but there are only 10"),
        ({"speakers": 2, "utterances": 54}, "54 utterances requested"),
        ({"utterances": ["s0-00", "s9-99"]}, "utterances that are not in it: s9-99"),
        ({"speakers": ["x", "s0"]}, "speakers that are not in it: x"),
        ({"shortest": 100}, "100 utterances requested, but there are only 55"),
        ({"first": 100}, "100 utterances requested, but there are only 55"),
        ({"hours": 0.5 / 3600}, "no utterance is left"),
        ({"utterances": 0}, "no utterance is left"),
    ],
)
def test_what_is_not_there(many, wanted, message):
    with pytest.raises(Speech3Error, match=message):
        subset(many, **wanted)


def test_lists(tmp_path):
    (tmp_path / "list").write_text("u2 and more\r\nu1\nu2\n")
    assert read_list(tmp_path / "list") == ["u2", "u1"]
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(Speech3Error, match="empty: is empty"):
        read_list(tmp_path / "empty")
    with pytest.raises(Speech3Error, match="nowhere: no such list"):
        read_list(tmp_path / "nowhere")


def test_the_verb(make, tmp_path, program):
    directory = make(**{"feats.scp": "u1 f.ark:14\nu2 f.ark:40\nu3 f.ark:80\n"})
    soundfile.write(directory / "wav" / "u2.wav", tone(0.1), RATE_HZ)
    done = program("subset", directory, tmp_path / "out", "--shortest", 1)
    assert done.exit_code == 0 and done.stdout == f"{tmp_path / 'out'}: 1 of 3 utterances, 1 of 2 speakers\n"
    part = read_datadir(tmp_path / "out")
    assert list(part.utterances) == ["u2"] and part.feats == {"u2": f"{directory / 'f.ark'}:40"}
    assert len(load(part, "u2")[0]) == RATE_HZ // 10
    (tmp_path / "names").write_text("b\n")
    assert program("subset", directory, tmp_path / "out", "--speakers", tmp_path / "names").exit_code == 0
    assert list(read_datadir(tmp_path / "out").utterances) == ["u3"]
    for wrong, said in ((["out"], "use --speakers"), (["data", "--first", "1"], "is one of the inputs")):
        done = program("subset", directory, tmp_path / wrong[0], *wrong[1:])
        assert isinstance(done.exception, Speech3Error) and said in str(done.exception)
