"""16-bit PCM that lost or gained bytes in a transfer in text mode."""

import io

import numpy as np
import pytest
import soundfile

from speech3.data.audio import load, read_file
from speech3.data.datadir import read_datadir
from speech3.data.lost_bytes import find_damage, write_mended
from speech3.data.validation import fix_datadir, validate

RATE_HZ = 8000


def _voice(seconds=2.0, level=3000.0):
    """A sum of slowly changing sines with a little noise, int16 (S,)."""
    rng = np.random.default_rng(1)
    time_s = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    wave = sum(np.sin(2 * np.pi * hz * time_s + np.sin(3 * time_s)) / k for k, hz in enumerate((120, 370, 800), 1))
    envelope = 0.05 + np.clip(np.sin(2 * np.pi * 1.5 * time_s), 0, 1)
    return (level * envelope * wave + rng.normal(0, 5, len(time_s))).astype(np.int16)


def _content(samples, kind="WAV"):
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, RATE_HZ, format=kind, subtype="PCM_16")
    content = buffer.getvalue()
    return content, 1024 if kind == "NIST" else 44


@pytest.mark.parametrize("kind", ["WAV", "NIST"])
@pytest.mark.parametrize("place", [9000, 9001, 16000, 20001, 30000])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_lost_byte_is_found_and_put_back(tmp_path, kind, place, channels):
    samples = _voice() if channels == 1 else np.stack([_voice(), _voice(level=1000)], 1)
    content, begin = _content(samples, kind)
    path, place = tmp_path / "a.wav", begin + place * channels
    path.write_bytes(content[:place] + content[place + 1 :])
    damage = find_damage(path)
    assert damage.count == 1 and damage.mended and not damage.inserted
    assert damage.first_s == pytest.approx((place - begin) / 2 / channels / RATE_HZ, abs=0.002)
    write_mended(path, tmp_path / "b.wav")
    mended, rate_hz = soundfile.read(tmp_path / "b.wav", dtype="int16")
    assert rate_hz == RATE_HZ and (mended != samples[: len(mended)]).sum() <= 20
    assert find_damage(tmp_path / "b.wav") is None


def test_text_mode_in_both_directions(tmp_path):
    samples = _voice(4.0)
    samples[[9001, 21000]] = 0x0A0D  # the bytes 0D 0A
    content, begin = _content(samples)
    path, head, sound = tmp_path / "a.wav", content[:begin], content[begin:]
    for changed, inserted in ((sound.replace(b"\r\n", b"\n"), False), (sound.replace(b"\r\n", b"\r\r\n"), True)):
        path.write_bytes(head + changed)
        damage = find_damage(path)
        assert damage.mended and damage.inserted == inserted and damage.count == 2
        write_mended(path, tmp_path / "b.wav")
        mended, _ = soundfile.read(tmp_path / "b.wav", dtype="int16")
        assert (mended != samples[: len(mended)]).sum() <= 4


@pytest.mark.parametrize(
    "samples",
    [
        _voice(),
        _voice(level=30),
        _voice(level=30000),
        np.zeros(8000, np.int16),
        (_voice() >> 8) << 8,
        (3000 * np.random.default_rng(1).standard_normal(16000)).astype(np.int16),
        np.random.default_rng(1).integers(-32768, 32767, 16000).astype(np.int16),
        np.concatenate([np.zeros(8000, np.int16), _voice(), np.full(8000, -1, np.int16)]),
        _voice(0.02),
    ],
)
def test_whole_recordings_are_left_alone(tmp_path, samples):
    soundfile.write(tmp_path / "a.wav", samples, RATE_HZ)
    assert find_damage(tmp_path / "a.wav") is None


def test_other_formats_are_left_alone(tmp_path):
    for name, options in (("a.flac", {}), ("b.wav", {"subtype": "PCM_24"}), ("c.wav", {"subtype": "FLOAT"})):
        soundfile.write(tmp_path / name, _voice() / 32768, RATE_HZ, **options)
        assert find_damage(tmp_path / name) is None


def test_validate_names_the_place_and_fix_mends_a_copy(make, tmp_path):
    directory, samples = make(), _voice()
    content, begin = _content(samples)
    path = directory / "wav" / "u2.wav"
    path.write_bytes(content[: begin + 12001] + content[begin + 12002 :])
    report = validate(directory)
    (fault,) = report.faults
    assert (fault.kind, fault.subject, fault.drop) == ("lost byte", "u2", ())
    assert "one byte is lost, from 0.75 s on" in fault.problem and "speech3 fix" in fault.remedy
    repaired = fix_datadir(directory, tmp_path / "out")
    assert not repaired.removed and "put back" in repaired.changes[0]
    assert validate(tmp_path / "out").faults == ()
    mended, _ = load(read_datadir(tmp_path / "out"), "u2")
    assert np.abs(mended - samples[: len(mended)] / 32768).max() < 0.02
    assert len(read_file(path)[0]) == len(samples) - 1  # the source is as it was
