"""N-best, lattices, TextGrids and standard input of `speech3 transcribe`, and the same in Python."""

import io
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import typer
from typer.testing import CliRunner
from whistles import RATE_HZ, SAID, features_of_file, whistled

from speech3.cli.recognise import transcribe
from speech3.corpora.tiers import read_textgrid
from speech3.decode.lattice_directory import WantedResults, decode_latticed, open_lattices
from speech3.decode.recognizer import Recognizer, _best_pairs
from speech3.decode.trained_model import Alternative
from speech3.errors import SettingError, Speech3Error

APP = typer.Typer()
APP.command()(transcribe)


def run(*args: object, sound: bytes | None = None) -> tuple[str, str]:
    result = CliRunner().invoke(APP, [*map(str, args)], input=sound)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_n_best_are_those_of_decode_and_fewer_if_there_are_fewer(
    model: Path, sounds: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recognizer = Recognizer.load(model, nbest=500)
    found = recognizer.transcribe(whistled(*SAID["a-bb"][1]), RATE_HZ)
    assert found.text == "A BB" == found.nbest[0].text
    assert 1 < len(found.nbest) < 500 and "500" in "".join(capsys.readouterr())
    feats = {"u": features_of_file(recognizer, sounds["a-bb"])}
    decode_latticed(recognizer, feats, tmp_path, WantedResults(nbest=500))
    lines = [json.loads(line) for line in (tmp_path / "nbest.jsonl").read_text().splitlines()]
    assert [line["words"] for line in lines] == [path.text for path in found.nbest]
    assert [line["cost"] for line in lines] == pytest.approx([path.cost for path in found.nbest], abs=0.01)
    for line in lines:
        assert line["cost"] == pytest.approx(line["acoustic_cost"] + line["graph_cost"], abs=2e-4)
    with pytest.raises(SettingError, match="nbest=20000"):
        Recognizer.load(model, nbest=20_000)


def test_the_best_of_two_parts_are_the_cheapest_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    parts = [[Alternative((f"{part}{n}",), *rng.uniform(0, 9, 2)) for n in range(6)] for part in "ab"]
    for part in parts:
        part.sort(key=lambda each: each.cost)
    every = sorted(a.cost + b.cost for a in parts[0] for b in parts[1])
    best = _best_pairs(*parts, 5)
    assert [each.cost for each in best] == pytest.approx(every[:5])
    assert best[0].words == parts[0][0].words + parts[1][0].words


def test_few_pairs_are_made_of_many_alternatives() -> None:
    """Costs are quarters, so many pairs are equally good: those of better first parts come first."""
    rng, read = np.random.default_rng(1), list[float]()

    class Counted(Alternative):
        @property
        def cost(self) -> float:
            read.append(self.acoustic_cost)
            return self.acoustic_cost

    def some(part: str, count: int) -> list[Alternative]:
        return [Counted((f"{part}{n}",), cost / 4, 0.0) for n, cost in enumerate(sorted(rng.integers(0, 60, count)))]

    for count in (0, 1, 7, 300):
        parts = some("a", 300), some("b", count)
        every = sorted(itertools.product(*parts), key=lambda pair: pair[0].cost + pair[1].cost)[:300]
        read.clear()
        assert [each.words for each in _best_pairs(*parts, 300)] == [a.words + b.words for a, b in every]
        assert len(read) < 5000  # of 180,000


def test_words_and_phones_have_the_same_form_as_those_of_the_aligner(model: Path) -> None:
    found = Recognizer.load(model).transcribe(whistled(*SAID["a-bb"][1]), RATE_HZ)
    assert [word.text for word in found.words] == ["A", "BB"]
    assert [phone.text for phone in found.phones] == ["a", "b", "b"]
    assert [(phone.start_s, phone.end_s) for phone in found.phones[:1]] == [
        (found.words[0].start_s, found.words[0].end_s)
    ]
    assert found.phones[1].start_s == found.words[1].start_s and found.phones[2].end_s == found.words[1].end_s


def test_textgrids_lattices_and_json(model: Path, sounds: dict[str, Path], tmp_path: Path) -> None:
    grids, lattices = tmp_path / "grids", tmp_path / "lattices"
    out, _ = run(model, *sounds.values(), "--textgrid", grids, "--lattice", lattices, "--json", "--nbest", 2)
    objects = [json.loads(line) for line in out.splitlines()]
    assert [each["text"] for each in objects] == ["AB", "A BB"]
    for each, name in zip(objects, sounds, strict=True):
        words, phones = read_textgrid(grids / f"{name}.TextGrid")
        said = [a for a in words.annotations if a.text]
        assert (words.name, phones.name) == ("words", "phones")
        assert [a.text for a in said] == each["text"].split()
        assert [a.start_s for a in said] == pytest.approx([word["start"] for word in each["words"]], abs=1e-3)
        assert f"xmax = {each['duration']:.4f}" in (grids / f"{name}.TextGrid").read_text()
        assert [path["rank"] for path in each["nbest"]] == [1, 2]
    assert [name for name, _ in open_lattices(lattices).lattices()] == list(sounds)


def test_lines_of_the_n_best(model: Path, sounds: dict[str, Path]) -> None:
    out, _ = run(model, sounds["ab"], "--nbest", 3)
    rows = [line.split(maxsplit=2) for line in out.splitlines()]
    assert [row[0] for row in rows] == ["1", "2", "3"] and rows[0][2] == "AB"
    costs = [float(row[1]) for row in rows]
    assert costs == sorted(costs)


def test_standard_input_that_cannot_be_used_is_explained(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for sound, options, message in (
        (
            np.random.default_rng(0).bytes(5000),
            [],
            r"not audio.*raw samples \(16 bits, one channel\), pass --rate HZ",
        ),
        (b"", [], "standard input: is empty; .*--rate HZ"),
        (b"12", ["--rate", "0"], "--rate 0: not a sample rate"),
        (b"12", ["--rate", "16"], "--rate 16: not a sample rate"),
    ):
        found = CliRunner().invoke(APP, [str(model), "-", *options], input=sound)
        assert isinstance(found.exception, Speech3Error) and re.search(message, str(found.exception))
    monkeypatch.setattr("sys.stdin", None)  # as Python has it after `<&-`
    for streamed in (False, True):
        with pytest.raises(SettingError, match="-: standard input is closed; pipe"):
            transcribe(model, [Path("-")], stream=streamed)


@pytest.mark.parametrize("kind", ["wav", "flac", "raw"])
def test_standard_input_is_a_recording(model: Path, kind: str, tmp_path: Path) -> None:
    wave_S = whistled(*SAID["a-bb"][1])
    if kind == "raw":
        sound, more = (wave_S * 32767).astype("<i2").tobytes(), ["--rate", RATE_HZ]
    else:
        stream = io.BytesIO()
        soundfile.write(stream, wave_S, RATE_HZ, format=kind)
        sound, more = stream.getvalue(), []
    out, _ = run(model, "-", "--json", "--textgrid", tmp_path, *more, sound=sound)
    found = json.loads(out)
    assert (found["file"], found["text"]) == ("-", "A BB") and math.isclose(found["duration"], 1.35)
    assert (tmp_path / "standard_input.TextGrid").exists()
    assert run(model, "-", "--json", "--textgrid", tmp_path, *more, sound=sound)[0] == out, "may be replaced"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["-", "-"], "standard input"),
        (["-"], "standard input"),
        (["a.wav", "--rate", "8000"], "--rate"),
        (["x/a.wav", "y/a.wav", "--textgrid", "grids"], "x/a.wav"),
        (["-", "--stream", "--nbest", "3"], "--nbest"),
        (["a.wav", "--ctm", "--json"], "--ctm"),
        (["a.wav", "--ctm", "--nbest", "3"], "--ctm"),
        (["a.wav", "--nbest", "3", "--min-confidence", "0.5"], "--min-confidence"),
        (["a.wav", "--hot", "SEVEN"], "SEVEN"),
    ],
)
def test_wrong_use_is_named(model: Path, args: list[str], named: str) -> None:
    result = CliRunner().invoke(APP, [str(model), *args], input=b"")
    assert isinstance(result.exception, SystemExit | Exception) and result.exit_code
    assert named in f"{result.output}{result.exception}"


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg", "mp3"])
def test_a_sound_file_is_not_read_as_raw_samples(model: Path, kind: str) -> None:
    stream = io.BytesIO()
    soundfile.write(stream, whistled(*SAID["a-bb"][1]), RATE_HZ, format=kind)
    result = CliRunner().invoke(APP, [str(model), "-", "--rate", "8000"], input=stream.getvalue())
    assert isinstance(result.exception, SettingError) and "--rate 8000" in str(result.exception)


def test_other_files_are_recognised_where_one_is_not(model: Path, sounds: dict[str, Path], tmp_path: Path) -> None:
    (empty := tmp_path / "empty.wav").touch()
    soundfile.write(short := tmp_path / "short.wav", np.zeros(150), RATE_HZ)
    files = [sounds["ab"], empty, short, tmp_path / "gone.wav", sounds["a-bb"], "-"]
    lattices = tmp_path / "lattices"
    result = CliRunner().invoke(APP, [str(model), *map(str, files), "--lattice", str(lattices)], input=b"no sound")
    assert result.stdout.split("\n")[:2] == [f"{sounds['ab']} AB", f"{sounds['a-bb']} A BB"]
    assert isinstance(result.exception, Speech3Error)
    summary, *told = str(result.exception).split("\n  ")
    assert "4 of 6" in summary
    names = [str(empty), str(short), str(tmp_path / "gone.wav"), "standard input"]
    assert [line.partition(": ")[0] for line in told] == names
    assert [name for name, _ in open_lattices(lattices).lattices()] == ["ab", "a-bb"]
