"""`speech3 transcribe --stream`: lines while audio arrives, and their latency."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from whistles import RATE_HZ, SAID, save_gmm, whistled

from speech3.decode import transcribing
from speech3.decode.recognizer import load_recognizer
from speech3.decode.trained_model import Result, Word
from speech3.decode.transcribing import Latencies, Lines, Meter, Terminal, transcribe_arriving
from speech3.errors import SettingError, Speech3Error


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from whistles import FEATURES

    return save_gmm(tmp_path_factory.mktemp("plain"), FEATURES.model_copy(update={"cmvn": "none"}))


def raw(wave_S: np.ndarray) -> bytes:
    return (wave_S * 32768).round().astype("<i2").tobytes()


SPOKEN = raw(np.concatenate([whistled(*SAID["ab"][1], ("SIL", 0.7)), whistled(*SAID["a-bb"][1])]))


def follow(model: Path, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
    """Recognise `data` from standard input."""
    path = tmp_path / "input.raw"
    path.write_bytes(data)
    with path.open("rb") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        transcribe_arriving(load_recognizer(model), "-", options.pop("rate_hz", None), **options)  # type: ignore[arg-type]


def test_lines(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(plain, SPOKEN, tmp_path, monkeypatch)
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line for line in lines if line.startswith("final")] == ["final AB", "final A BB"]
    assert "partial AB" in lines and lines.index("partial AB") < lines.index("final AB")
    assert re.search(
        r"^3\.0 s of audio, 3 words; from the end of a word until it is first shown: mean [-\d.]+ s, 95th percentile "
        r"[-\d.]+ s; until it is final: mean [\d.]+ s, 95th percentile [\d.]+ s; real-time factor [\d.]+",
        said.err.replace("\n", " "),
    )


def test_json_lines(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(plain, SPOKEN, tmp_path, monkeypatch, as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["final"] for line in lines if "final" in line] == ["AB", "A BB"]
    assert lines[0].keys() == {"partial"} and lines[-1].keys() == {"final", "words"}
    last = lines[-1]["words"][-1]
    assert last["word"] == "BB" and last["start"] == pytest.approx(2.45, abs=0.05) and 0.5 < last["confidence"] <= 1


def test_the_end_of_a_stream_that_is_not_whole(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(plain, SPOKEN[:-1], tmp_path, monkeypatch)
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "final A BB"
    assert "warning: standard input: ends in the middle of a sample" in said.err
    with pytest.raises(Speech3Error, match=r"standard input: is empty \(0 bytes\)"):
        follow(plain, b"", tmp_path, monkeypatch)
    follow(plain, bytes(2 * RATE_HZ * 5), tmp_path, monkeypatch)
    said = capsys.readouterr()
    assert said.out == "" and "5.0 s of audio, no words; real-time factor" in said.err


def test_another_rate(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from speech3.data.resampling import resample

    for rate_hz in (16000, 6000):
        wave_S = resample(whistled(*SAID["ab"][1]), RATE_HZ, rate_hz)
        follow(plain, raw(wave_S), tmp_path, monkeypatch, rate_hz=rate_hz)
        said = capsys.readouterr()
        assert said.out.splitlines()[-1] == "final AB"
        assert ("6000 Hz, resampled to the model's 8000 Hz" in said.err.replace("\n", " ")) == (rate_hz == 6000)
    with pytest.raises(Speech3Error, match="--rate 0: not a sample rate"):
        follow(plain, SPOKEN, tmp_path, monkeypatch, rate_hz=0)


def test_on_a_terminal_the_line_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcribing.shutil, "get_terminal_size", lambda: os.terminal_size((12, 24)))
    out = io.StringIO()
    display = Terminal(out)
    for text in ("ONE", "ONE", "ONE TWO", "ONE TWO THREE FOUR"):
        display.partial(text)
    display.final(Result("ONE TWO THREE FOUR", ()))
    assert out.getvalue() == "\r\x1b[KONE\r\x1b[KONE TWO\r\x1b[K...REE FOUR\r\x1b[KONE TWO THREE FOUR\n"
    display.partial("一二三四五六")  # each character takes two columns
    assert out.getvalue().endswith("\r\x1b[K...三四五六")


def test_lines_say_nothing_twice() -> None:
    out = io.StringIO()
    display = Lines(out, as_json=False)
    for text in ("", "ONE", "ONE", "ONE TWO", ""):
        display.partial(text)
    assert out.getvalue() == "partial ONE\npartial ONE TWO\n"


def test_latencies() -> None:
    meter = Meter()
    for number in range(1, 31):
        meter.arrived(number / 10, 100 + number / 10)
    meter.partial("A", 101.5)
    meter.partial("A B", 102.0)
    meter.partial("A", 102.2)
    words = (Word("A", 0.5, 1.05, 1.0), Word("B", 1.05, 2.0, 1.0), Word("C", None, None, None))
    meter.final(Result("A B C", words), 103.5)
    meter.busy_s = 0.3
    latencies = meter.until_final, meter.until_shown
    assert [each.total_s for each in latencies] == pytest.approx([103.5 - 101.1 + 1.5, 0.4])
    assert [each.percentile_s(100) for each in latencies] == pytest.approx([103.5 - 101.1, 0.4])
    assert "3.0 s of audio, 2 words" in meter.summary() and meter.summary().endswith("real-time factor 0.100")
    for number in range(31, 5000):
        meter.arrived(number / 10, 100 + number / 10)
    assert len(meter._arrivals) < 1300


def test_latencies_take_bounded_memory() -> None:
    seconds_N = np.random.default_rng(0).gamma(2.0, 0.1, 20_000) - 0.1
    for count in (1, 2, 3, 20, 21, len(seconds_N)):
        found = Latencies()
        for seconds in seconds_N[:count]:
            found.add(seconds)
        percentile_s = np.percentile(seconds_N[:count], 95)
        assert found.percentile_s(95) == pytest.approx(percentile_s, abs=0.001)
        assert str(found).startswith(f"mean {seconds_N[:count].mean():.2f} s, 95th percentile ")
    assert found.count == 20_000 and len(found._of_ms) < 2000
    found.add(1e6)
    assert max(found._of_ms) == 60_000


def test_ctrl_c_ends_the_sound(plain: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from speech3.cli import main; main()", "transcribe", "--stream", str(plain), "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(raw(whistled(*SAID["ab"][1], ("SIL", 0.1))))
    process.stdin.flush()
    assert process.stdout.readline() == b"partial AB\n"  # so it is recognising
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out.decode().splitlines()[-1] == "final AB"
    said = err.decode().replace("\n", " ")
    assert "interrupted: the words up to that point are above" in said and "real-time factor" in said
    assert "Traceback" not in said


def test_options_that_do_not_go_together(plain: Path, tmp_path: Path) -> None:
    from speech3.cli.recognise import transcribe

    for options in ({"files": [Path("-"), Path("-")]}, {"files": [Path("-")], "ctm": True}):
        with pytest.raises(SettingError, match="--stream takes one FILE, or - for standard input,"):
            transcribe(plain, stream=True, **options)  # type: ignore[arg-type]
    for more in ({"rate": 8000},):
        with pytest.raises(Speech3Error, match=r"--rate .*--stream"):
            transcribe(plain, [Path("x.wav")], **more)  # type: ignore[arg-type]
    with pytest.raises(Speech3Error, match="gone: no such file"):
        transcribe(plain, [tmp_path / "gone"], stream=True)
