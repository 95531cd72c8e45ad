import dataclasses

import pytest

from speech3.data.audio import load
from speech3.data.datadir import DataDir, read_datadir, write_datadir
from speech3.data.subsets import combine
from speech3.errors import MismatchError, Speech3Error


@pytest.fixture
def halves(make, tmp_path):
    """One data directory cut in two, at other places."""
    feats = {"feats.scp": "u1 f.ark:14\nu2 f.ark:40\nu3 f.ark:80\n", "cmvn.scp": "a c.ark:3\nb c.ark:44\n"}
    whole = read_datadir(make(spk2gender="a f\nb m\n", **feats))
    for name, keys in (("one", ["u1", "u2"]), ("two", ["u3"])):
        write_datadir(whole.subset(keys), tmp_path / name)
    return whole, read_datadir(tmp_path / "one"), read_datadir(tmp_path / "two")


def test_parts_are_joined_again(halves, tmp_path):
    whole, one, two = halves
    data, left_out = combine([two, one], tmp_path / "all")
    assert left_out == []
    write_datadir(data, tmp_path / "all")
    again = read_datadir(tmp_path / "all")
    assert again.utterances == whole.utterances and list(again.recordings) == ["u1", "u2", "u3"]
    assert again.feats["u3"] == f"{whole.path / 'f.ark'}:80" and again.cmvn["a"] == f"{whole.path / 'c.ark'}:3"
    assert (load(again, "u3")[0] == load(whole, "u3")[0]).all()


def test_segments_of_one_recording_come_together(make, tmp_path):
    whole = read_datadir(make(wav_scp="r wav/u1.wav", segments="u1 r 0 0.1\nu2 r 0.1 0.2\nu3 r 0.3 0.4\n"))
    data, _ = combine([whole.subset(["u1"]), whole.subset(["u2", "u3"])], tmp_path / "all")
    assert data.utterances == whole.utterances and list(data.recordings) == ["r"]


def test_an_utterance_twice_is_named(halves, tmp_path):
    whole, one, _ = halves
    with pytest.raises(MismatchError, match="2 utterances are in two directories"):
        combine([one, whole], tmp_path / "all")


@pytest.mark.parametrize(
    ("file", "what"), [("text", "text"), ("spk2gender", "gender"), ("cmvn.scp", "cmvn"), ("feats.scp", "feats")]
)
def test_what_one_lacks_is_left_out_and_said(halves, tmp_path, file, what):
    _, one, two = halves
    (two.path / file).unlink()
    data, left_out = combine([one, read_datadir(two.path)], tmp_path / "all")
    assert left_out == [f"{file} left out: missing or incomplete in {two.path}"]
    if what in ("text", "gender"):
        assert all(getattr(utterance, what) is None for utterance in data.utterances.values())
    else:
        assert getattr(data, what) == {}
    write_datadir(data, tmp_path / "all")
    read_datadir(tmp_path / "all")
    assert not (tmp_path / "all" / file).exists()


def test_features_and_audio(halves, tmp_path):
    _, one, two = halves
    (two.path / "wav.scp").unlink()
    features = read_datadir(two.path)
    data, left_out = combine([one, features], tmp_path / "all")
    assert data.recordings == {} and len(data.feats) == 3 and left_out[0].startswith("wav.scp left out")
    audio = dataclasses.replace(one, feats={})
    with pytest.raises(Speech3Error, match=r"two has no audio, .*one lacks features"):
        combine([audio, features], tmp_path / "all")


def test_one_name_for_two_things(halves, tmp_path):
    _, one, two = halves
    key = {key: dataclasses.replace(utt, recording="u1") for key, utt in two.utterances.items()}
    clash = dataclasses.replace(two, utterances=key, recordings={"u1": "/elsewhere.wav"})
    with pytest.raises(MismatchError, match=r"recording u1 is .*u1\.wav in .*one and"):
        combine([one, clash], tmp_path / "all")
    key = {key: dataclasses.replace(utt, speaker="a") for key, utt in two.utterances.items()}
    with pytest.raises(Speech3Error, match=r"speaker a is f in .*one and m in .*two"):
        combine([one, dataclasses.replace(two, utterances=key)], tmp_path / "all")
    # The same speaker, but statistics over some of what it said: no longer its statistics.
    key = {key: dataclasses.replace(utt, gender="f") for key, utt in key.items()}
    shared = DataDir(two.path, two.recordings, key, two.feats, {"a": "/other.ark:3"})
    data, left_out = combine([one, shared], tmp_path / "all")
    assert data.cmvn == {} and data.speakers() == {"a": ["u1", "u2", "u3"]} and "cmvn.scp left out" in left_out[0]


def test_the_verb(halves, tmp_path, program):
    _, one, two = halves
    done = program("combine", tmp_path / "all", one.path, two.path)
    assert done.exit_code == 0 and done.stdout == f"{tmp_path / 'all'}: 3 utterances, 2 speakers\n"
    for wrong, said in (([one.path, one.path, two.path], "OUT DIR DIR"), ([tmp_path / "x", one.path], "pass two")):
        done = program("combine", *wrong)
        assert isinstance(done.exception, Speech3Error) and said in str(done.exception)
