"""Recordings that are not as they should be: with an offset, clipped, of telephones, silent for long."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from whistles import RATE_HZ, SAID, whistled

from speech3.data import audio
from speech3.decode.output import cut_at_pauses
from speech3.decode.recognizer import Recognizer, load_recognizer, transcribe
from speech3.decode.streaming import Stream


def test_an_offset_changes_nothing(model: Path, tmp_path: Path) -> None:
    recognizer, wave_S = load_recognizer(model), whistled(*SAID["a-bb"][1])
    for offset in (-0.6, 0.3):
        assert recognizer.transcribe(wave_S + offset, RATE_HZ).text == "A BB"
        stream = Stream(recognizer, RATE_HZ)
        stream.accept(wave_S + offset)
        assert stream.finish().text == "A BB"
    assert recognizer.transcribe(np.full(RATE_HZ, 0.5), RATE_HZ).words == ()


def test_a_long_recording_with_an_offset_is_cut_as_without(tmp_path: Path) -> None:
    wave_S = np.tile(whistled(*SAID["a-bb"][1]), 30)
    plain, offset = (
        [(cut.begin_s, len(cut.wave_S)) for cut in cut_at_pauses([each], RATE_HZ)]
        for each in (wave_S, wave_S + np.float32(0.5))
    )
    assert len(plain) > 1 and plain == offset


def test_the_share_of_clipped_samples() -> None:
    time_S = np.arange(16000) / 16000
    tone_S = np.sin(2 * np.pi * 200 * time_S).astype(np.float32)
    for level in (0.5, 0.9):  # of an arcsine, the share beyond the level
        expected = 1 - 2 * np.arcsin(level) / np.pi
        assert audio.clipped_share(tone_S.clip(-level, level)) == pytest.approx(expected, abs=0.03)
    noise_S = np.random.default_rng(0).normal(0, 0.1, 16000)
    assert audio.clipped_share(noise_S) == 0.0 == audio.clipped_share(np.zeros(100)) == audio.clipped_share(np.zeros(2))
    assert audio.clipped_share((0.3 * noise_S).round(4)) < 0.005
    # The tops of low tones are flat, too: hum in 16 bits is not clipped, unless it is.
    for hertz in (50, 60, 150):
        for peak in (0.005, 0.02, 0.07, 0.3):
            hum_S = np.round(peak * 2**15 * np.sin(2 * np.pi * hertz * time_S)) / 2**15
            assert audio.clipped_share(hum_S) == 0.0, (hertz, peak)
    assert audio.clipped_share(np.clip(np.sin(2 * np.pi * 50 * time_S), -0.5, 0.5)) > 0.5
    assert audio.clipped_share(np.sign(np.sin(2 * np.pi * 100 * time_S + 0.01))) > 0.99


def test_clipped_and_narrow_recordings_are_said(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wave_S = whistled(*SAID["a-bb"][1])
    soundfile.write(tmp_path / "loud.wav", (8 * wave_S).clip(-1, 1), RATE_HZ)
    soundfile.write(tmp_path / "half.wav", wave_S[::2], RATE_HZ // 2)
    soundfile.write(tmp_path / "good.wav", wave_S, RATE_HZ)
    recognizer = Recognizer.load(model)
    list(transcribe(recognizer, [tmp_path / f"{name}.wav" for name in ("loud", "half", "good")]))
    recognizer.transcribe((8 * wave_S).clip(-1, 1), RATE_HZ)
    stream = Stream(recognizer, RATE_HZ)
    for piece_S in np.split((8 * wave_S).clip(-1, 1), range(100, len(wave_S), 100)):
        stream.accept(piece_S)
    stream.finish()
    said = " ".join(capsys.readouterr().err.split())
    assert "loud.wav: clipped (" in said and "samples: clipped (" in said and said.count("stream: clipped (") == 1
    assert f"half.wav: {RATE_HZ // 2} Hz" in said and "good.wav" not in said


def test_all_of_a_recording_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    listener, tone_S = audio.ClippingListener("late", 100), np.tile([0.1, 0.9, 0.9, 0.9, -0.2], 250)
    for wave_S in (0.1 * np.random.default_rng(1).normal(size=1500), tone_S, tone_S):
        listener.add(wave_S)
    listener.end()
    said = "late: clipped from 15 to 28 s (60.0% of the samples are cut off); record at a lower level"
    assert capsys.readouterr().err == f"{said}: expect more errors\n"


def test_a_quiet_recording_is_not_called_clipped(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounded to a few steps of 16 bits, many samples in a row are equal to the largest."""
    wave_S = whistled(*SAID["a-bb"][1])
    quiet_S = np.round(4 * wave_S / np.abs(wave_S).max()) / 2**15
    soundfile.write(tmp_path / "quiet.wav", quiet_S, RATE_HZ)
    recognizer = Recognizer.load(model)
    list(transcribe(recognizer, [tmp_path / "quiet.wav"]))
    recognizer.transcribe(quiet_S, RATE_HZ)
    said = " ".join(capsys.readouterr().err.split())
    assert "quiet.wav: very quiet" in said and "samples: very quiet" in said and "clipped" not in said
    recognizer.transcribe(quiet_S / 20, RATE_HZ)  # not equal, but for 16 bits nothing is left
    assert "less than half a step" in " ".join(capsys.readouterr().err.split())
