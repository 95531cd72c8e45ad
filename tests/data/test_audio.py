import gzip
import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from sounds import RATE_HZ, tone

from speech3.data.audio import AudioError, info, load, read_file, write_wav
from speech3.data.datadir import read_datadir
from speech3.data.resampling import resample
from speech3.errors import Speech3Error

SHARED = Path(__file__).parents[2].parent / "shared"
FORMATS = {"wav": "WAV", "flac": "FLAC", "ogg": "OGG", "mp3": "MP3", "sph": "NIST"}
LOSSLESS = ("wav", "flac", "sph")


def _noise(seconds: float, rate_hz: int = 16000) -> np.ndarray:
    return (0.1 * np.random.default_rng(1).standard_normal(round(seconds * rate_hz))).astype(np.float32)


@pytest.mark.parametrize("extension", FORMATS)
def test_every_format(tmp_path, extension):
    path, samples = tmp_path / f"a.{extension}", tone(1.0, 16000)
    soundfile.write(path, samples, 16000, format=FORMATS[extension])
    read, rate_hz = read_file(path)
    assert (read.dtype, read.shape, rate_hz) == (np.float32, (16000,), 16000)
    # 16 bits: a step (libsndfile writes with 32767, reads with 32768); lossy codecs keep a sine to a few per cent.
    assert np.abs(read - samples)[100:-100].max() <= (1 / 32768 if extension in LOSSLESS else 0.03)
    found = info(path)
    assert (found.sample_rate_hz, found.channels, found.samples, found.duration_s) == (16000, 1, 16000, 1.0)


@pytest.mark.parametrize("extension", FORMATS)
def test_segments_are_cut_to_the_sample(make, extension):
    directory = make(
        wav_scp=f"r wav/r.{extension}\n", segments="u1 r 0 0.25\nu2 r 0.4321 1.5\nu3 r 1.5 -1\n", spk2utt=None
    )
    path = directory / "wav" / f"r.{extension}"
    soundfile.write(path, _noise(2.0), 16000, format=FORMATS[extension])
    whole, _ = read_file(path)
    data = read_datadir(directory)
    for key, start, stop in (("u1", 0, 4000), ("u2", 6914, 24000), ("u3", 24000, 32000)):  # 0.4321 s = 6913.6
        np.testing.assert_allclose(load(data, key)[0], whole[start:stop], rtol=0, atol=1e-7)  # mp3: the last bit


def test_segment_end_may_be_rounded_but_not_outside(make):
    data = read_datadir(make(segments="u1 u1 0.1 0.509\nu2 u2 0.1 0.52\nu3 u3 0.5 -1\n"))  # recordings of 0.5 s
    assert len(load(data, "u1")[0]) == 3200
    with pytest.raises(Speech3Error, match=r"u2: .*u2\.wav"):
        load(data, "u2")
    with pytest.raises(Speech3Error, match=r"u3: .*u3\.wav"):
        load(data, "u3")


def test_values_are_those_of_sixteen_bits(tmp_path):
    integers = np.array([-32768, -1, 0, 1, 32767], dtype=np.int16)
    soundfile.write(tmp_path / "a.wav", integers, RATE_HZ)
    np.testing.assert_array_equal(read_file(tmp_path / "a.wav")[0] * 32768, integers)


def test_a_full_disk_leaves_no_file(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(Speech3Error, match="no space left on the disk"):
            write_wav(tmp_path / "wav" / "a.wav", np.zeros(16000), 16000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((tmp_path / "wav").iterdir())


def test_relative_paths_from_the_directory_first_then_from_the_working_directory(make, tmp_path, monkeypatch):
    directory = make(wav_scp="u1 wav/u1.wav\nu2 wav/only_here.wav\nu3 nowhere.wav\n")
    standing = tmp_path / "standing"
    (standing / "wav").mkdir(parents=True)
    soundfile.write(standing / "wav" / "u1.wav", tone(0.1), RATE_HZ)
    soundfile.write(standing / "wav" / "only_here.wav", tone(0.2), RATE_HZ)
    monkeypatch.chdir(standing)
    data = read_datadir(directory)
    assert len(load(data, "u1")[0]) == 4000
    assert len(load(data, "u2")[0]) == 1600
    with pytest.raises(Speech3Error) as caught:
        load(data, "u3")
    message = str(caught.value)
    assert (
        message.startswith("u3: nowhere.wav: no such file") and str(directory) in message and str(standing) in message
    )


@pytest.mark.parametrize("command", ["cat {}/wav/u2.wav |", "cat wav/u2.wav|", "cat wav/u2.wav | tail -c +1 |"])
def test_pipes(make, tmp_path, monkeypatch, command):
    directory = make(wav_scp=f"u1 {command}\nu2 wav/u2.wav\nu3 wav/u3.wav\n".format(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)  # a relative path in a command is looked for as any other
    data = read_datadir(directory)
    np.testing.assert_array_equal(load(data, "u1")[0], load(data, "u2")[0])
    assert info(data.recordings["u1"], directory=directory).samples == 4000


def test_pipe_in_the_working_directory_and_of_segments(make, tmp_path, monkeypatch):
    directory = make(wav_scp="r cat here.wav |\n", segments="u1 r 0 0.1\nu2 r 0.1 0.2\nu3 r 0.2 0.3\n")
    soundfile.write(tmp_path / "here.wav", tone(0.3), RATE_HZ)
    monkeypatch.chdir(tmp_path)
    data = read_datadir(directory)
    joined = np.concatenate([load(data, key)[0] for key in data.utterances])
    np.testing.assert_array_equal(joined, read_file(tmp_path / "here.wav")[0])


def test_wav_of_unknown_length_from_a_pipe(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(), RATE_HZ)
    data = bytearray((tmp_path / "a.wav").read_bytes())
    for promised in (0x7FFFF000, 0xFFFFFFFF):  # sox, ffmpeg
        data[40:44] = struct.pack("<I", promised)
        (tmp_path / "b.wav").write_bytes(data)
        assert len(read_file(f"cat {tmp_path}/b.wav |")[0]) == 4000


def test_pipes_that_fail(tmp_path):
    with pytest.raises(Speech3Error, match=r"cat /nowhere/x.wav \|"):
        read_file("cat /nowhere/x.wav |")
    with pytest.raises(Speech3Error, match="the command wrote nothing"):
        read_file("true |")
    with pytest.raises(Speech3Error, match="is not audio that libsndfile reads"):
        read_file("echo hello |")


@pytest.mark.parametrize("extension", FORMATS)
@pytest.mark.parametrize("part", [0.3, 0.9, 0.97])
def test_truncated(tmp_path, extension, part, capfd):
    path = tmp_path / f"a.{extension}"
    soundfile.write(path, _noise(4.0), 16000, format=FORMATS[extension])
    whole = path.read_bytes()
    path.write_bytes(whole[: round(part * len(whole))])
    with pytest.raises(AudioError) as caught:
        read_file(path)
    assert caught.value.kind == "truncated audio" and str(path) in str(caught.value)
    with pytest.raises(AudioError, match="|".join(("cut short", "decoded", "ends after"))):
        read_file(f"cat {path} |")


@pytest.mark.parametrize("extension", ["wav", "sph"])
def test_a_missing_end_shorter_than_a_tenth_of_a_second(tmp_path, extension):
    path = tmp_path / f"a.{extension}"
    soundfile.write(path, _noise(1.0), 16000, format=FORMATS[extension])
    whole, (samples, _) = path.read_bytes(), read_file(path)
    path.write_bytes(whole[:-726])
    np.testing.assert_array_equal(read_file(path)[0], samples[: 16000 - 363])
    assert info(path).samples == 16000 - 363 and info(path).missing_s == 363 / 16000
    np.testing.assert_array_equal(read_file(path, start_s=0.5, end_s=1.0)[0], samples[8000 : 16000 - 363])
    path.write_bytes(whole[: -2 * 1600])
    with pytest.raises(AudioError, match="cut short: its header promises 32000 bytes of audio, but there are 28800"):
        read_file(path)


def test_other_chunks_before_and_after_the_sound_are_no_truncation(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(), RATE_HZ)
    data = (tmp_path / "a.wav").read_bytes()
    extra = b"LIST" + struct.pack("<I", 5) + b"hello\0"
    (tmp_path / "b.wav").write_bytes(data[:36] + extra + data[36:] + extra)
    assert len(read_file(tmp_path / "b.wav")[0]) == 4000
    (tmp_path / "c.wav").write_bytes(data[:36] + extra + data[36:-1600])
    with pytest.raises(AudioError, match="promises 8000 bytes of audio, but there are 6400"):
        read_file(tmp_path / "c.wav")


def test_empty_and_foreign_files(tmp_path):
    soundfile.write(tmp_path / "none.wav", tone(0), RATE_HZ)
    (tmp_path / "zero.wav").touch()
    (tmp_path / "samples.raw").write_bytes(bytes(1000))
    (tmp_path / "text.wav").write_text("this is no sound\n" * 100)
    shorten = b"NIST_1A\n   1024\nsample_coding -s26 pcm,embedded-shorten-v2.00\nend_head\n"
    (tmp_path / "shorten.sph").write_bytes(shorten.ljust(1024) + b"ajkg" + bytes(100))
    (tmp_path / "pointer.wav").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    (tmp_path / "page.mp3").write_text("<!DOCTYPE html>\n<html>404</html>")
    soundfile.write(tmp_path / "kHz.wav", tone(), 16)
    (tmp_path / "a.wav.gz").write_bytes(gzip.compress((tmp_path / "kHz.wav").read_bytes()))
    soundfile.write(tmp_path / "nan.wav", np.full(1000, np.nan, np.float32), RATE_HZ, subtype="FLOAT")
    soundfile.write(tmp_path / "scale.wav", 32768 * tone(), RATE_HZ, subtype="FLOAT")
    for name, said in {
        "none.wav": "contains no samples",
        "zero.wav": r"is empty \(0 bytes\)",
        "text.wav": "is not audio that libsndfile reads.*ffmpeg",
        "shorten.sph": "sph2pipe",
        "samples.raw": "is not audio that libsndfile reads.*ffmpeg",
        "pointer.wav": "Git LFS.*git lfs pull",
        "page.mp3": "web page.*download",
        "kHz.wav": "sample rate of 16 Hz",
        "a.wav.gz": "compressed.*decompress",
        "nan.wav": "not finite",
        "scale.wav": "full scale is 1.*32768",
        "missing.wav": "no such file",
        ".": "is not a file",
    }.items():
        with pytest.raises(Speech3Error, match=said):
            read_file(tmp_path / name)


def test_eight_channels_are_refused_or_averaged(make):
    directory = make()
    channels = np.stack([np.full(800, k / 16, np.float32) for k in range(8)], axis=1)
    soundfile.write(directory / "wav" / "u2.wav", channels, RATE_HZ)
    data = read_datadir(directory)
    with pytest.raises(Speech3Error, match=r"u2: .*u2\.wav: has 8 channels; set mix_channels: true"):
        load(data, "u2")
    np.testing.assert_array_equal(load(data, "u2", mix_channels=True)[0], np.full(800, 3.5 / 16, np.float32))
    assert info(directory / "wav" / "u2.wav").channels == 8


def test_another_rate_is_refused_or_resampled(make):
    data = read_datadir(make())
    with pytest.raises(Speech3Error, match=r"u1: .*has 8000 Hz where 16000 Hz are expected"):
        load(data, "u1", sample_rate_hz=16000)
    samples, rate_hz = load(data, "u1", sample_rate_hz=16000, resample=True)
    assert (samples.dtype, len(samples), rate_hz) == (np.float32, 8000, 16000)
    assert load(data, "u1", sample_rate_hz=8000)[1] == 8000


@pytest.mark.parametrize(("from_hz", "to_hz"), [(8000, 16000), (16000, 8000), (22050, 16000), (44100, 8000)])
def test_resampled_sine_is_the_sine(from_hz, to_hz):
    expected = tone(0.5, to_hz)
    np.testing.assert_allclose(resample(tone(0.5, from_hz), from_hz, to_hz)[200:-200], expected[200:-200], atol=2e-3)


def test_resampling_stops_what_the_lower_rate_cannot_hold():
    aliased = resample(tone(0.5, 16000, frequency_hz=6000), 16000, 8000)
    assert np.abs(aliased[200:-200]).max() < 0.01


def test_torchaudio_that_cannot_be_imported_at_all(monkeypatch):
    def fail(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(Speech3Error, match="pip install --upgrade torch torchaudio"):
        resample(tone(), RATE_HZ, 2 * RATE_HZ)


def test_utterance_that_is_not_there(make):
    with pytest.raises(Speech3Error, match="no utterance u9"):
        load(read_datadir(make()), "u9")


def test_reading_at_one_rate_does_not_import_torch(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(), RATE_HZ)
    code = (
        "import sys; from speech3.data.audio import read_file; import speech3.data.validation, speech3.corpora.fsdd;"
        f"read_file({str(tmp_path / 'a.wav')!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_reference_recording(tmp_path):
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not here")
    path = next((SHARED / "corpora/fsdd/audio").glob("*.wav"))
    raw = np.frombuffer(path.read_bytes()[44:], dtype="<i2")  # 16 bits, mono, no other chunk after the header
    samples, rate_hz = read_file(path)
    assert rate_hz == 8000
    np.testing.assert_array_equal(samples * 32768, raw[: len(samples)])
    assert len(raw) >= len(samples) > 0
