"""Common Voice: its tables and clips, and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.config import RecipeConfig, load_config, shipped
from speech3.corpora.commonvoice import prepare
from speech3.data.audio import load
from speech3.data.datadir import read_datadir
from speech3.errors import DataError, FormatError, MismatchError, Speech3Error
from speech3.recipe.costs import hours_of_speech
from speech3.recipe.experiment import open_experiment
from speech3.recipe.plan import planned_steps
from speech3.recipe.steps import make_plan

HEADER = "client_id\tpath\tsentence_id\tsentence\tsentence_domain\tup_votes\tdown_votes\tage\tlocale\n"
SENTENCES = ('Bore da, "bawb"!', "Sut wyt ti?", "Mae’r gath yma.", "Nos\u2028da.")


def release(root: Path, *names: str, speakers: int = 2) -> Path:
    (root / "clips").mkdir(parents=True)
    number = 0
    for name in names:
        rows = []
        for speaker in range(speakers):
            for sentence in SENTENCES:
                number += 1
                path = f"common_voice_cy_{number}.mp3"
                rows.append(f"{name}{speaker:0128x}\t{path}\tid\t{sentence}\t\t2\t0\t\tcy\n")
                noise = np.random.default_rng(number).normal(0, 0.1, 48000)
                soundfile.write(root / "clips" / path, noise, 48000, format="MP3")
        (root / f"{name}.tsv").write_text(HEADER + "".join(rows), encoding="utf-8")
    return root


def names(root: Path, name: str, speakers: int) -> None:
    """Speakers whose ids differ in their first letters."""
    text = (root / f"{name}.tsv").read_text(encoding="utf-8")
    for speaker in range(speakers):
        text = text.replace(f"{name}{speaker:0128x}", f"{name}{speaker}{'0' * 123}")
    (root / f"{name}.tsv").write_text(text, encoding="utf-8")


@pytest.fixture
def welsh(tmp_path: Path) -> Path:
    root = release(tmp_path / "cv" / "cy", "train", "dev", "test")
    for name in ("train", "dev", "test"):
        names(root, name, 2)
    return root


def test_official_splits(welsh: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(welsh, tmp_path / "out", 1, lexicon="graphemes")
    parts = {name: read_datadir(tmp_path / "out" / name) for name in ("train", "dev", "test")}
    assert [len(part.utterances) for part in parts.values()] == [8, 8, 8]
    assert {u.text for u in parts["test"].utterances.values()} == {
        "bore da bawb",
        "sut wyt ti",
        "mae'r gath yma",
        "nos da",
    }
    assert all(len(part.speakers()) == 2 for part in parts.values())
    samples, rate_hz = load(parts["dev"], min(parts["dev"].utterances), sample_rate_hz=16000, resample=True)
    assert rate_hz == 16000 and abs(len(samples) - 16000) < 600
    assert "    Sut wyt ti? -> sut wyt ti" in capsys.readouterr().err
    prepare(welsh, tmp_path / "as_is", 1, lexicon="graphemes", normalize="nfkc")
    assert "Sut wyt ti?" in (tmp_path / "as_is" / "test" / "text").read_text()


def test_a_language_without_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = release(tmp_path / "cy", "validated", speakers=10)
    names(root, "validated", 10)
    prepare(root, tmp_path / "out", 1, lexicon="graphemes")
    speakers = [set(read_datadir(tmp_path / "out" / name).speakers()) for name in ("train", "dev", "test")]
    assert [len(part) for part in speakers] == [8, 1, 1] and not speakers[0] & (speakers[1] | speakers[2])
    assert "drawn from validated.tsv" in capsys.readouterr().err


def test_what_is_refused(welsh: Path, tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=r"cv: not a language of Common Voice"):
        prepare(welsh.parent, tmp_path / "out", 1, lexicon="graphemes")
    for clip in sorted((welsh / "clips").iterdir())[:3]:
        clip.unlink()
    with pytest.raises(Speech3Error, match=r"\.tsv: . of 8 utterances have no clip, more than 5 %.*unpack"):
        prepare(welsh, tmp_path / "out", 1, lexicon="graphemes")
    (welsh / "train.tsv").write_bytes(f"{HEADER}caf\xe9".encode("latin-1"))
    with pytest.raises(Speech3Error, match=r"train\.tsv:2: not UTF-8"):
        prepare(welsh, tmp_path / "out", 1, lang="cy")
    (welsh / "train.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(Speech3Error, match=r"train\.tsv: no column client_id, path, sentence"):
        prepare(welsh, tmp_path / "out", 1, lexicon="graphemes")
    (welsh / "train.tsv").write_text(f"{HEADER}cut\tsho")
    with pytest.raises(FormatError, match=r"train\.tsv"):
        prepare(welsh, tmp_path / "out", 1, lexicon="graphemes")


def test_another_language_than_that_of_the_sentences(
    welsh: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("espeakng_loader", reason="the espeak extra is not installed")
    with pytest.raises(MismatchError, match=r"train\.tsv"):
        prepare(welsh, tmp_path / "out", 1, lang="en-us")
    for name in ("train", "dev", "test"):
        table = welsh / f"{name}.tsv"
        table.write_text(table.read_text(encoding="utf-8").replace("\tcy\n", "\tab\n"), encoding="utf-8")
    prepare(welsh, tmp_path / "out", 1, lang="cy")  # espeak-ng has no Abkhaz: the nearest language may do
    assert "train.tsv is in ab, which espeak-ng does not know" in capsys.readouterr().err


def test_mp3_without_a_decoder(welsh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundfile, "available_formats", lambda: {"WAV": "", "FLAC": ""})
    with pytest.raises(Speech3Error, match=r"reads no mp3: pip install -U soundfile"):
        prepare(welsh, tmp_path / "out", 1, lexicon="graphemes")


def test_a_split_is_missing(welsh: Path, tmp_path: Path) -> None:
    (welsh / "dev.tsv").unlink()
    with pytest.raises(Speech3Error, match=r"needs train\.tsv, dev\.tsv and test\.tsv, or validated\.tsv"):
        prepare(welsh, tmp_path / "out", 1, lexicon="graphemes")


def test_the_recipe_resamples(welsh: Path, tmp_path: Path) -> None:
    recipe = load_config(RecipeConfig, shipped("recipes") / "commonvoice" / "recipe.yaml")
    assert recipe.sample_rate == 16000
    experiment = open_experiment("commonvoice", tmp_path / "out", welsh, [], "")
    assert {(p.sample_frequency, p.resample, p.mix_channels) for p in experiment.presets.values()} == {
        (16000, True, True)
    }


def test_an_empty_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = release(tmp_path / "cy", "train", "test", "validated", speakers=10)
    for name in ("train", "test", "validated"):
        names(root, name, 10)
    (root / "dev.tsv").write_text(HEADER)
    prepare(root, tmp_path / "out", 1, lexicon="graphemes")
    parts = [read_datadir(tmp_path / "out" / name) for name in ("train", "dev", "test")]
    assert {key[:4] for part in parts for key in part.speakers()} == {"vali"}
    assert "no clip in dev.tsv: splits are drawn from validated.tsv" in capsys.readouterr().err
    assert _seconds(root, tmp_path) == pytest.approx(40, rel=0.1)
    (root / "validated.tsv").unlink()
    with pytest.raises(DataError, match=r"cy: no clip in dev\.tsv, and no validated\.tsv,"):
        prepare(root, tmp_path / "out", 1, lexicon="graphemes")


def _seconds(source: Path, tmp_path: Path) -> float:
    e = open_experiment("commonvoice", tmp_path / "new", source, [], "")
    speech = hours_of_speech(e, make_plan(planned_steps(e), e.out, None, None))
    assert speech and not speech.exact
    return 3600 * speech.train


def test_a_dry_run_counts_the_clips_of_the_splits(welsh: Path, tmp_path: Path) -> None:
    before = _seconds(welsh, tmp_path)
    assert before == pytest.approx(24, rel=0.1)
    for number in range(100, 150):  # invalidated ones, for instance
        shutil.copy(welsh / "clips" / "common_voice_cy_1.mp3", welsh / "clips" / f"common_voice_cy_{number}.mp3")
    assert _seconds(welsh, tmp_path) == before


def in_language(root: Path, locale: str, sentences: dict[str, str]) -> None:
    """Write other sentences, and their language, into the tables."""
    for name in ("train", "dev", "test"):
        text = (root / f"{name}.tsv").read_text(encoding="utf-8").replace("\tcy\n", f"\t{locale}\n")
        for old, new in sentences.items():
            text = text.replace(f"\t{old}\t", f"\t{new}\t")
        (root / f"{name}.tsv").write_text(text, encoding="utf-8")


def test_capitals_are_lowered_by_the_rules_of_the_locale(
    welsh: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turkish = dict(zip(SENTENCES, ("Işık, ışık!", "IŞIK KIZ kız", "İZMİR’de", "I\u0307zmir"), strict=True))
    in_language(welsh, "tr", turkish)
    prepare(welsh, tmp_path / "out", 1, lexicon="graphemes")
    texts = {u.text for u in read_datadir(tmp_path / "out" / "test").utterances.values()}
    assert texts == {"ışık ışık", "ışık kız kız", "izmir'de", "izmir"}
    assert "language" not in capsys.readouterr().err
    in_language(welsh, "", {})
    for name in ("train", "dev", "test"):
        table = welsh / f"{name}.tsv"
        table.write_text(table.read_text(encoding="utf-8").replace("\ttr\n", "\t\n"), encoding="utf-8")
    prepare(welsh, tmp_path / "unknown", 1, lexicon="graphemes")
    assert "the language of the text is not known, but it has ı or İ" in capsys.readouterr().err
    prepare(welsh, tmp_path / "said", 1, lexicon="graphemes", lang="tr")
    assert {u.text for u in read_datadir(tmp_path / "said" / "test").utterances.values()} == texts


def test_german_words_in_capitals_have_their_sharp_s(welsh: Path, tmp_path: Path) -> None:
    german = dict(zip(SENTENCES, ("Die Straße", "DIE STRASSE", "Große Klasse", "KLASSE"), strict=True))
    in_language(welsh, "de", german)
    prepare(welsh, tmp_path / "out", 1, lexicon="graphemes")
    texts = {u.text for u in read_datadir(tmp_path / "out" / "test").utterances.values()}
    assert texts == {"die straße", "große klasse", "klasse"}
