"""Commands in wav.scp: said, refused on demand, and without standard input."""

from pathlib import Path

import pytest

from speech3.data import paths
from speech3.data.audio import AudioError, info, read_file
from speech3.data.datadir import read_datadir
from speech3.data.validation import validate
from speech3.errors import DataError, Speech3Error

WITH_COMMAND = "u1 cat wav/u1.wav |\nu2 wav/u2.wav\nu3 wav/u3.wav\n"


@pytest.fixture
def refusing(monkeypatch):
    monkeypatch.setenv(paths.VARIABLE, "1")


def test_the_first_use_says_how_many_and_shows_one(make, capsys):
    directory = make(wav_scp=WITH_COMMAND)
    for _ in range(2):
        read_datadir(directory)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("1 of 3 recordings come from commands, such as: cat wav/u1.wav |") == 1


def test_refused_by_the_environment(make, refusing):
    directory = make(wav_scp=WITH_COMMAND)
    with pytest.raises(DataError, match=r"wav\.scp"):
        read_datadir(directory)
    with pytest.raises(AudioError, match="commands are refused"):
        info(f"cat {directory}/wav/u1.wav |")
    (fault,) = validate(directory).faults
    assert (fault.kind, fault.subject) == ("unreadable audio", "u1") and "SPEECH3_NO_COMMANDS" in fault.problem


@pytest.mark.parametrize("value", ["", "0"])
def test_not_refused_by_an_empty_variable(make, monkeypatch, value):
    monkeypatch.setenv(paths.VARIABLE, value)
    assert len(read_datadir(make(wav_scp=WITH_COMMAND)).recordings) == 3


@pytest.mark.parametrize("segments", [None, "u1 u1 0 0.1\nu2 u2 0 0.1\nu3 u3 0 0.1\n"])
def test_a_refused_command_is_not_run(make, tmp_path, refusing, segments):
    directory = make(wav_scp=f"u1 touch {tmp_path}/ran; cat wav/u1.wav |\nu2 wav/u2.wav\nu3 wav/u3.wav\n")
    if segments:
        (directory / "segments").write_text(segments)
    validate(directory)
    with pytest.raises(Speech3Error):
        read_datadir(directory)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("verb", ["validate", "fix", "stats", "extract"])
def test_verbs_refuse(make, tmp_path, monkeypatch, speech3, verb):
    monkeypatch.setenv(paths.VARIABLE, "")  # the option sets it
    directory = make(wav_scp=f"u1 touch {tmp_path}/ran; cat wav/u1.wav |\nu2 wav/u2.wav\nu3 wav/u3.wav\n")
    more = [tmp_path / "o"] if verb in ("fix", "extract") else []
    more += ["--features", "mfcc13_d2"] if verb == "extract" else []
    done = speech3(verb, directory, *more, "--no-commands")
    assert done.returncode == (verb != "fix"), done.stderr
    assert "commands are refused" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr and not (tmp_path / "ran").exists()


def test_commands_have_no_standard_input(tmp_path):
    with pytest.raises(Speech3Error, match="the command wrote nothing"):
        read_file("cat |")


def test_a_file_whose_name_ends_in_a_bar_is_no_command(tmp_path):
    with pytest.raises(AudioError, match="no such file"):
        info(Path(f"touch {tmp_path}/ran; echo |"))
    assert not (tmp_path / "ran").exists()


def test_features_are_never_read_from_commands(make, tmp_path):
    from speech3.io.ark import read_int_ark, read_matrix

    with pytest.raises(Speech3Error, match="through a pipe is not supported"):
        read_matrix(f"touch {tmp_path}/ran |", tmp_path)
    with pytest.raises(Speech3Error):
        read_int_ark(f"touch {tmp_path}/ran |")
    assert not (tmp_path / "ran").exists()
