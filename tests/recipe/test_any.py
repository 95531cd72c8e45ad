"""`speech3 recipe any` on a minute of synthesised Swahili: guessed pronunciations, pieces, later use of the model."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import jiwer
import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from speech3.cli import _register, app
from speech3.corpora.anyspeech import check_source
from speech3.data.datadir import read_datadir
from speech3.errors import DataError, MissingError
from speech3.io import write_ark
from speech3.language import espeak
from speech3.recipe.experiment import open_experiment
from speech3.recipe.language import _said
from speech3.recipe.stages import make_data

pytest.importorskip("espeakng_loader", reason="the espeak extra is not installed")
_register()

Run = Callable[..., subprocess.CompletedProcess[str]]
WORDS = ("mtoto", "anasoma", "kitabu", "leo", "mama", "samaki")
TINY = (
    "hmm.mono.phone_iterations=4",
    "hmm.mono.iterations=8",
    "hmm.aligner.phone_iterations=2",
    "hmm.aligner.iterations=2",
    "hmm.tri.iterations=4",
    "training.max_epochs=2",
    "model=dnn_small",
    "model.width=64",
    "jobs=1",
    "decode_mono=true",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six voices, eight sentences of three words each."""
    path, rng = tmp_path_factory.mktemp("any") / "swahili", np.random.default_rng(1)
    path.mkdir()
    lines: dict[str, list[str]] = {"wav.scp": [], "text": [], "utt2spk": []}
    for speaker, variant in enumerate(("", "+f1", "+f2", "+f3", "+m1", "+m3")):
        for number in range(8):
            key, text = f"s{speaker}-{number}", " ".join(rng.choice(WORDS, 3))
            said = espeak.synthesize(text, f"sw{variant}")
            noise = 0.002 * rng.standard_normal(len(said.samples))
            soundfile.write(path / f"{key}.wav", said.samples + noise, said.sample_rate_hz)
            for name, value in (("wav.scp", f"{key}.wav"), ("text", text), ("utt2spk", f"s{speaker}")):
                lines[name].append(f"{key} {value}\n")
    for name, rows in lines.items():
        (path / name).write_text("".join(rows))
    return path


@pytest.mark.parametrize("options", [("lang=sw",), ("units=sentencepiece", "pieces=40"), ("lexicon=graphemes",)])
def test_from_a_directory_to_word_error_rates(source: Path, tmp_path: Path, speech3: Run, options: tuple[str]) -> None:
    out = tmp_path / "out"
    process = speech3("recipe", "any", "--source", source, "--out", out, *options, *TINY)
    assert process.returncode == 0, process.stderr
    rates = re.findall(r"^any (\w+) WER (\S+) \[", process.stdout, re.M)
    assert [system for system, _ in rates] == ["mono", "tri", "dnn"]
    assert float(rates[0][1]) < 50  # chance: above 80
    if options == ("lang=sw",):
        assert "6 of 6 words guessed by espeak-ng (sw): data/guessed.txt" in process.stderr
    else:
        mark = "￭" if options == ("lexicon=graphemes",) else "▁"
        assert mark in (out / "mono" / "graph" / "words.txt").read_text()
    decoded = out / "decode" / "mono" / "test"
    hypotheses = dict(line.partition(" ")[::2] for line in (decoded / "hyp.txt").read_text().splitlines())
    timed: dict[str, list[str]] = {}
    for line in (decoded / "hyp.ctm").read_text().splitlines():
        timed.setdefault(line.split()[0], []).append(line.split()[4])
    assert {key: " ".join(words) for key, words in timed.items()} == {k: text for k, text in hypotheses.items() if text}
    assert not {"▁", "￭"} & set("".join(hypotheses.values()))
    process = speech3("transcribe", out / "mono", *(source / f"{name}.wav" for name in hypotheses))
    assert process.returncode == 0, process.stderr
    said = [line.partition(" ")[2] for line in process.stdout.splitlines()]
    assert "▁" not in process.stdout
    assert jiwer.wer(list(hypotheses.values()), said) < 0.3  # features are normalised by file here, not by speaker


def test_a_dry_run_names_what_the_names_of_files_and_headers_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with pytest.raises(MissingError, match="neither a Kaldi data directory"):
        check_source(folder, None)
    for number, rate_hz in enumerate((8000, 16000, 8000)):
        soundfile.write(folder / f"{number}.wav", np.zeros(800), rate_hz)
    with pytest.raises(DataError, match="no names match"):
        check_source(folder, None)
    for number in range(3):
        (folder / f"{number}.txt").write_text("mama leo")
    check_source(folder, 8000)
    assert "Hz" not in capsys.readouterr().err
    check_source(folder, None)
    assert re.search("1 of 16000 Hz.*sample_rate=", " ".join(capsys.readouterr().err.split()))
    empty = tmp_path / "empty"
    empty.mkdir()
    result = CliRunner().invoke(app, ["recipe", "any", "--source", str(empty), "--dry-run", "lexicon=graphemes"])
    assert isinstance(result.exception, MissingError)


@pytest.mark.parametrize("corpus", ["any", "commonvoice"])
def test_a_dry_run_needs_pronunciations_as_well(source: Path, tmp_path: Path, corpus: str) -> None:
    command = ["recipe", corpus, "--source", str(source), "--out", str(tmp_path / "out"), "--dry-run"]
    for keys, message in (([], "no pronunciations: there is no"), (["lang=xx"], "lang=xx: espeak-ng does not know")):
        assert message in str(CliRunner().invoke(app, [*command, *keys]).exception)


def test_what_is_refused_before_anything_is_done(source: Path, tmp_path: Path, speech3: Run) -> None:
    for options, message in (
        (["lang=xx"], "lang=xx: espeak-ng does not know this language"),
        ([], "no pronunciations: there is no lang/lexicon.txt; set the language"),
        (["units=sentencepiece", "pieces=40", "lm.order=null", "lm.grammar=one-word"], "units=sentencepiece estimates"),
    ):
        process = speech3("recipe", "any", "--source", source, "--out", tmp_path / "out", *options)
        assert process.returncode == 1
        assert f"error: {message}" in process.stderr
        assert not list((tmp_path / "out" / "data").glob("*"))


@pytest.mark.parametrize(
    ("edge_s", "keys", "expected"),
    [
        (0.0, [], True),
        (0.0, ["background=false"], False),
        (0.3, [], False),
        (0.3, ["background=true"], True),
    ],
)
def test_training_data_without_background_get_copies_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], edge_s: float, keys: list[str], expected: bool
) -> None:
    source, rng = tmp_path / "words", np.random.default_rng(0)
    level_S = 0.1 * (1 + np.sin(2 * np.pi * 4 * np.arange(6000) / 8000))  # of syllables
    source.mkdir()
    for speaker in range(6):
        for word in ("yes", "no"):
            speech_S = np.pad(level_S * rng.normal(size=6000), round(8000 * edge_s))
            burst_S = speech_S + 1e-3 * rng.normal(size=len(speech_S))
            soundfile.write(source / f"s{speaker}-{word}.wav", burst_S, 8000)
            (source / f"s{speaker}-{word}.txt").write_text(word)
    e = open_experiment("any", tmp_path / "out", source, ["lexicon=graphemes", "min_minutes=0", "jobs=1", *keys], "")
    make_data(e)
    assert ("recordings begin and end with speech" in capsys.readouterr().err) == (expected and not keys)
    assert len(list(_said(e, "train"))) * (1 + expected) == len(read_datadir(e.data("train")).utterances)
    assert e.about_data.get("background", False) == expected
    assert e.hours * 3600 == pytest.approx((0.75 + 2 * edge_s) * len(list(_said(e, "train"))), abs=0.01)
    for split in ("train", "dev", "test"):
        text = dict(line.split() for line in (tmp_path / "out" / "data" / split / "text").read_text().splitlines())
        copies = {key: word for key, word in text.items() if key.startswith("background-")}
        originals = {key: word for key, word in text.items() if key not in copies}
        assert copies == (
            {f"background-{key}": word for key, word in originals.items()} if expected and split == "train" else {}
        )


def test_given_features_have_no_copies_with_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speech3.recipe.stages.has_no_background", lambda data: True)
    source, rng = tmp_path / "source", np.random.default_rng(0)
    source.mkdir()
    names = [f"s{speaker}-{word}" for speaker in range(6) for word in ("yes", "no")]
    for name in names:
        soundfile.write(source / f"{name}.wav", 0.1 * rng.normal(size=6000), 8000)
    write_ark(source / "feats.ark", [(name, np.zeros((70, 3), np.float32)) for name in names], source / "feats.scp")
    for file, value in {"wav.scp": "{}.wav", "utt2spk": "s", "text": "yes"}.items():
        (source / file).write_text("".join(f"{name} {value.format(name)}\n" for name in names))
    e = open_experiment(
        "any", tmp_path / "out", source, ["lexicon=graphemes", "min_minutes=0", "jobs=1", "features=given"], ""
    )
    make_data(e)
    assert (e.data("train") / "feats.scp").exists() and "background" not in e.about_data
