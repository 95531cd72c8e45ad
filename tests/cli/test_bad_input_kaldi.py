"""Users' mistakes with their own directories, models and recipes: the message names the subject and the remedy."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import typer.testing

from speech3.cli import _register, app
from speech3.errors import Speech3Error

if not app.registered_commands:
    _register()

HOUR_S, RATE_HZ = 3600, 8000


def refused(*arguments: str | Path, cwd: Path) -> str:
    """Run a verb in this process and return its error message; any exception but `Speech3Error` is a defect."""
    with contextlib.chdir(cwd):
        result = typer.testing.CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(result.exception, Speech3Error), result.output
    return str(result.exception)


def files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["split", "DATA", "out", "train=0.9", "cv=0.5"], "train=0.9 cv=0.5: the shares add up to 1.4"),
        (["split", "DATA", "out", "train=0.9", "cv=-0.5"], "cv=-0.5: write a part as NAME=SHARE"),
        (["split", "DATA", "out", "30"], "22 speakers"),
        (["split", "nowhere", "out", "4"], "nowhere: no such directory"),
        (["subset", "DATA", "out", "--utterances", "ids"], "utterances that are not in it: u2"),
        (["subset", "DATA", "out", "--speakers", "ids"], "speakers that are not in it: s40-000, u2"),
        (["subset", "DATA", "out", "--speakers", "none"], "none: no such list"),
        (["subset", "DATA", "out", "--speakers", "99"], "99 speakers requested, but there are only 22"),
        (["combine", "out", "DATA", "DATA"], "22 utterances are in two directories: s40-000"),
        (["combine", "out", "DATA", "empty"], "empty: has neither recordings"),
        (["stats", "empty", "--out", "out"], "empty: has neither recordings"),
        (["fix", "empty", "out"], "empty: no usable utterance is left"),
        (["extract", "DATA", "out", "--features", "given"], "has no feats.scp"),
        (["extract", "DATA", "out", "--features", "nope"], "nope: neither a YAML file nor a preset"),
        (["export-kaldi", "empty", "out"], "empty/hmm.json: no such file, so empty is not a model directory"),
        (["forward", "empty", "DATA", "out"], "empty: not a model directory"),
        (["import", "empty", "out"], "empty/final.mdl: No such file"),
        (["pack", "DATA", "out", "--ali", "empty", "--features", "fbank40"], "make one with speech3 import or"),
        (["pack", "DATA", "out", "--ali", "kaldi", "--features", "fbank40"], "with `speech3 import kaldi OUT`"),
        (["pack", "DATA", "out", "--ali", "ours", "--features", "fbank40"], "pass --hmm the model with which ours was"),
        (["align", "MODEL", "mute", "out"], "mute: has no transcripts; write them to mute/text"),
        (["tune", "MODEL", "mute"], "mute: 1 of 1 utterances have no transcript to compare with: u1; add"),
        (["align", "MODEL", "DATA", "out", "--lexicon", "none"], "none: no such lexicon"),
        (["recipe", "digits", "--out", "out", "hmm.extra_questions=none"], "none: no such file or directory"),
        (["recipe", "digits", "--out", "out", "speed_perturb=0.9"], "should be a list, as in [0.9,1.1] (got 0.9)"),
        (["recipe", "digits", "--out", "out", "lm.arpa=x.arpa"], "lm.order=null lm.arpa=FILE"),
        (["recipe", "digits", "--out", "out", "realign=9"], "realign: Input should be less than or equal to 3"),
        (["recipe", "any", "--source", "empty", "units=foo"], "units: Input should be 'words' or 'sentencepiece'"),
        (["recipe", "any", "--source", "empty", "lexicon=bar"], "lexicon: Input should be 'espeak' or 'graphemes'"),
    ],
)
def test_nothing_is_written(experiment: Path, tmp_path: Path, arguments: list[str], says: str) -> None:
    for name in ("empty", "kaldi", "ours"):
        (tmp_path / name).mkdir()
    (tmp_path / "mute").mkdir()
    (tmp_path / "mute" / "wav.scp").write_text("u1 u1.wav\n")
    (tmp_path / "mute" / "utt2spk").write_text("u1 u1\n")
    (tmp_path / "ids").write_text("s40-000\nu2\n")
    (tmp_path / "kaldi" / "ali.1.gz").touch()
    (tmp_path / "ours" / "ali.ark").touch()
    before = files(tmp_path)
    places = {"DATA": experiment / "data" / "test", "MODEL": experiment / "aligner"}
    assert says in refused(*(places.get(argument, argument) for argument in arguments), cwd=tmp_path)
    assert files(tmp_path) == before


def test_languages_that_do_not_fit(experiment: Path, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="the espeak extra is not installed")
    shutil.copytree(experiment / "data" / "test", tmp_path / "test")
    options = ("align", experiment / "aligner", "test", "out", "--jobs", "1", "--lang")
    assert "--lang xx: espeak-ng does not know this language" in refused(*options, "xx", cwd=tmp_path)
    text = tmp_path / "test" / "text"
    text.write_text(text.read_text().replace("SEVEN", "SAUDADE"))
    said = refused(*options, "pt", cwd=tmp_path)
    assert said.startswith("the model's lexicon: ") and "--lexicon FILE" in said  # eleven words are too few
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_hour_with_ten_words(experiment: Path, tmp_path: Path) -> None:
    data = tmp_path / "hour"
    data.mkdir()
    soundfile.write(data / "a.wav", np.zeros(HOUR_S * RATE_HZ, np.float32), RATE_HZ)
    (data / "wav.scp").write_text("lecture a.wav\n")
    (data / "utt2spk").write_text("lecture lecturer\n")
    (data / "text").write_text("lecture ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE ZERO\n")
    said = refused("align", experiment / "aligner", "hour", "out", "--jobs", "1", cwd=tmp_path)
    assert "lecture: 10 words for 3,600 s of audio" in said and "add the other words, or select their part" in said
    assert not (tmp_path / "out" / "words.ctm").exists()


def test_no_network_to_begin_with(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(
        f"frames: {experiment}/frames/tri\nhmm: {experiment}/tri\nmodel: dnn\ntraining: sgd\n"
    )
    options = ("train", "my.yaml", "--out", "out", "--init")
    assert "nowhere: no such file; pass --init" in refused(*options, "nowhere", cwd=tmp_path)
    assert "tri/model.safetensors: holds Gaussians" in refused(*options, experiment / "tri", cwd=tmp_path)
    assert "my.yaml: not a safetensors file" in refused(*options, "my.yaml", cwd=tmp_path)
    said = refused(*options, experiment / "dnn", cwd=tmp_path)
    assert "this run's model has another architecture (" in said and " model.width=64" in said
    assert not (tmp_path / "out").exists()
