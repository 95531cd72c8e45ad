"""Bytes of a stream to samples: raw, WAV, cut anywhere; what is no such stream is named."""

import io
import os
import struct
import threading
import time
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from speech3.data import pcm
from speech3.data.pcm import PcmDecoder, arriving_bytes
from speech3.errors import Speech3Error

SAMPLES = np.random.default_rng(0).integers(-32768, 32767, 500).astype("<i2")


def wav(samples_SC: np.ndarray, rate_hz: int = 8000) -> bytes:
    """As Python's own library writes it."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as out:
        out.setnchannels(1 if samples_SC.ndim == 1 else samples_SC.shape[1])
        out.setsampwidth(2)
        out.setframerate(rate_hz)
        out.writeframes(samples_SC.tobytes())
    return stream.getvalue()


def with_length(data: bytes, length: int) -> bytes:
    """The same WAV file, with another length in the header of its samples."""
    at = data.index(b"data") + 4
    return data[:at] + struct.pack("<I", length) + data[at + 4 :]


def decoded(data: bytes, sizes: list[int], rate_hz: int | None = None) -> tuple[np.ndarray, PcmDecoder]:
    decoder, out, at = PcmDecoder("mic", rate_hz, 16000), [], 0
    while at < len(data):
        size = sizes[len(out) % len(sizes)]
        out.append(decoder.feed(data[at : at + size]))
        at += size
    return np.concatenate([np.zeros(0, np.float32), *out]), decoder


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_any_pieces_give_the_same_samples(sizes: list[int]) -> None:
    expected = (SAMPLES / 32768).astype(np.float32)
    found, decoder = decoded(SAMPLES.tobytes(), sizes)
    assert (decoder.rate_hz, decoder.ended, decoder.fault()) == (16000, False, "")
    np.testing.assert_array_equal(found, expected)
    found, decoder = decoded(wav(SAMPLES), sizes)
    assert (decoder.rate_hz, decoder.ended, decoder.fault()) == (8000, True, "")
    np.testing.assert_array_equal(found, expected)
    stereo_S2 = np.stack([SAMPLES, SAMPLES[::-1]], 1)
    found, decoder = decoded(wav(stereo_S2), sizes)
    np.testing.assert_allclose(found, stereo_S2.mean(1) / 32768, atol=1e-7)


def test_chunks_around_the_samples_of_a_wav_file() -> None:
    data = wav(SAMPLES)
    at = data.index(b"fmt ")
    more = data[:at] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + data[at:] + b"LIST" + struct.pack("<I", 2) + b"xy"
    found, decoder = decoded(more, [10])
    assert len(found) == len(SAMPLES) and decoder.ended and decoder.fault() == ""


@pytest.mark.parametrize("length", [0, 0xFFFFFFFF, 0x7FFFF000])
def test_a_header_that_does_not_know_the_length(length: int) -> None:
    found, decoder = decoded(with_length(wav(SAMPLES), length), [64])
    assert len(found) == len(SAMPLES) and not decoder.ended and decoder.fault() == ""


def test_opposite_polarity_is_not_averaged() -> None:
    level_S = np.repeat(np.random.default_rng(1).uniform(1, 4, 100), 80)  # of syllables
    sound_S = (10**level_S * np.random.default_rng(2).uniform(-1, 1, 8000)).astype("<i2")
    stereo_S2 = np.stack([sound_S, -sound_S], 1)
    found, decoder = decoded(wav(stereo_S2), [400])
    np.testing.assert_allclose(found[1600:], sound_S[1600:] / 32768, atol=1e-7)
    again, _ = decoded(wav(stereo_S2), [3001])
    np.testing.assert_array_equal(again, found)
    assert "channel 1 is used, the better one: the channels have opposite polarity" in decoder.fault()


def test_a_header_that_gives_too_few_samples() -> None:
    found, decoder = decoded(with_length(wav(SAMPLES), 100), [600])
    assert len(found) == len(SAMPLES) and "more audio than its header gives" in decoder.fault()


def test_a_silent_stream_is_named() -> None:
    for silent in (np.zeros(600, "<i2"), np.full(600, 3, "<i2")):
        assert "is silent" in decoded(silent.tobytes(), [50])[1].fault()
        assert "is silent" in decoded(wav(silent), [50])[1].fault()
    assert "is silent" not in decoded(np.append(silent, 4).astype("<i2").tobytes(), [50])[1].fault()


def test_streams_that_end_too_early() -> None:
    assert "ends in the middle of a sample; 1 byte was left out" in decoded(SAMPLES.tobytes()[:-1], [50])[1].fault()
    found, decoder = decoded(wav(SAMPLES)[:-100], [50])
    assert len(found) == 450 and decoder.fault() == "mic: is cut short: its header promises 100 bytes more"
    with pytest.raises(Speech3Error, match=r"mic: is empty \(0 bytes\)"):
        decoded(b"", [1])[1].fault()
    for size in (1, 3, 30):
        with pytest.raises(Speech3Error, match=rf"mic: ends after {size} bytes?, before any audio"):
            decoded(wav(SAMPLES)[:size], [7])[1].fault()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"fLaC" + bytes(40), r"mic: is FLAC; a stream must be raw .* ffmpeg -i IN -f s16le -ac 1 -ar 16000"),
        (b"ID3" + bytes(40), "mic: is MP3"),
        (b"OggS" + bytes(40), "mic: is Ogg"),
        (b"\xff\xf3\x48\xc4" + bytes(40), "mic: is MP3"),
        (b"\0\0\0\x20ftypM4A " + bytes(40), "mic: is MP4"),
        (wav(SAMPLES).replace(b"\x10\x00data", b"\x18\x00data"), "of format 1 with 24 bits, 1 channel, 8000 Hz"),
        (b"RIFF\0\0\0\0WAVEdata\0\0\0\0", "does not say its format"),
        (b"RIFF" + bytes(2_000_000), "no audio in its first"),
    ],
)
def test_other_streams_are_named(data: bytes, message: str) -> None:
    with pytest.raises(Speech3Error, match=message):
        decoded(data, [1000])


def test_the_rate_that_was_said() -> None:
    assert decoded(SAMPLES.tobytes(), [100], 11025)[1].rate_hz == 11025
    assert decoded(wav(SAMPLES), [100], 8000)[1].rate_hz == 8000
    with pytest.raises(Speech3Error, match="--rate 16000, but its header says 8000 Hz; leave --rate out"):
        decoded(wav(SAMPLES), [100], 16000)


def test_a_growing_file_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pcm, "PATIENCE_S", 0.6)
    path = tmp_path / "growing.raw"
    path.write_bytes(b"ab")

    def grow() -> None:
        for _ in range(4):
            time.sleep(0.15)
            with path.open("ab") as stream:
                stream.write(b"cd")

    writer = threading.Thread(target=grow)
    writer.start()
    assert b"".join(arriving_bytes(str(path), lambda: False)) == b"abcdcdcdcd"
    writer.join()


def test_reading_stops_on_request(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with path.open("r+b", buffering=0) as writer:  # open at both ends, so nobody waits
        writer.write(b"abc")
        stopped, seen = [False], []
        for data in arriving_bytes(str(path), lambda: stopped[0]):
            seen.append(data)
            stopped[0] = True  # nothing more comes, and the pipe stays open
        assert seen == [b"abc"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name, message in (("gone", "gone: no such file"), (".", "is a directory")):
        with pytest.raises(Speech3Error, match=message):
            list(arriving_bytes(str(tmp_path / name), lambda: False))


@pytest.mark.parametrize("first", [-1025, -3073, -3585, -7169])
def test_a_sample_that_looks_like_the_begin_of_a_frame_is_a_sample(first: int) -> None:
    samples = np.concatenate([np.array([first], "<i2"), np.arange(4000, dtype="<i2")])
    assert len(decoded(samples.tobytes(), [8192])[0]) == 4001
