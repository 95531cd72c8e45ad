"""Headers that lie: the audio in the file is read, and said."""

import io
import re
import struct

import numpy as np
import pytest
import soundfile

from speech3.data.audio import AudioError, info, read_blocks, read_file
from speech3.data.validation import validate

RATE_HZ, SAMPLES = 16000, 64000
NOISE_S = (0.1 * np.random.default_rng(1).standard_normal(SAMPLES)).astype(np.float32)
SIZES = {"a third": SAMPLES * 2 // 3 // 2 * 2, "zero": 0, "streamed": 0xFFFFFFFF, "sox": 0x7FFFF000}


def _made(kind, subtype=None, samples=NOISE_S, **options):
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", RATE_HZ, 1, format=kind, subtype=subtype, **options) as sound:
        sound.write(samples)
    return bytearray(buffer.getvalue())


def _check(path, content, sound=NOISE_S, tolerance=2 / 32768, claim=r"it has 4\.00 s"):
    path.write_bytes(content)
    found = info(path)
    assert abs(found.samples - len(sound)) <= 2300  # the delay of an mp3 without LAME's header is unknown
    assert re.search(claim, found.claim), found
    read, _ = read_file(path)
    assert len(read) == found.samples
    if tolerance:
        np.testing.assert_allclose(read, sound, atol=tolerance)
    blocks = np.concatenate(list(read_blocks(path, 0.7)))
    np.testing.assert_allclose(blocks, read, atol=1e-6)
    half, _ = read_file(path, start_s=2.0, end_s=3.0)
    np.testing.assert_allclose(half, read[32000:48000], atol=1e-3)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("extensible", [False, True])
def test_wav(tmp_path, name, extensible):
    content = _made("WAVEX" if extensible else "WAV")
    place = content.find(b"data")
    content[place + 4 : place + 8] = struct.pack("<I", SIZES[name])
    _check(tmp_path / "a.wav", content)
    content[4:8] = bytes(4)
    _check(tmp_path / "a.wav", content)


@pytest.mark.parametrize("size", [42668, 0, (1 << 64) - 1])
def test_rf64(tmp_path, size):
    content = _made("RF64")
    place = content.find(b"ds64")
    content[place + 16 : place + 24] = struct.pack("<Q", size)
    _check(tmp_path / "a.wav", content)


@pytest.mark.parametrize("size", [42668, 0, 0xFFFFFFFF])
def test_au_aiff_wave64_and_caf(tmp_path, size):
    content = _made("AU")
    content[8:12] = struct.pack(">I", size)
    _check(tmp_path / "a.au", content)
    content = _made("AIFF")
    place = content.find(b"SSND")
    content[place + 4 : place + 8] = struct.pack(">I", size)
    _check(tmp_path / "a.aiff", content)
    content = _made("W64")
    place = content.find(b"data\xf3\xac")
    content[place + 16 : place + 24] = struct.pack("<Q", size)
    _check(tmp_path / "a.w64", content)
    content = _made("CAF")
    place = content.find(b"data")
    content[place + 4 : place + 12] = struct.pack(">q", size if size < 0xFFFFFFFF else 1 << 40)
    _check(tmp_path / "a.caf", content)


def test_nist_sphere(tmp_path):
    content = bytes(_made("NIST"))
    for count in (b"21333", b"0    "):
        _check(tmp_path / "a.sph", content.replace(b"-i 64000", b"-i " + count))


def test_a_wav_that_wrapped_at_4_gb_but_has_tags_at_its_end(tmp_path):
    tags = b"LIST" + struct.pack("<I", 26) + b"INFOISFT" + struct.pack("<I", 14) + b"Lavf58.45.100\0"
    content = _made("WAV")
    content[40:44] = struct.pack("<I", 2000)
    _check(tmp_path / "a.wav", content + tags)


def test_chunks_texts_and_zeros_behind_the_sound_are_no_sound(tmp_path):
    whole = bytes(_made("WAV"))
    for extra in (
        b"LIST" + struct.pack("<I", 4) + b"INFO",
        b"bext" + struct.pack("<I", 6000) + b"x" * 6000,
        b"abcd" + struct.pack("<I", 5) + b"hello" + b"LIST" + struct.pack("<I", 4) + b"INFO",  # without padding
        b"LIST" + struct.pack("<I", 40000) + b"INFO" + bytes(8000),  # which lost its end
        b"<xml>" * 2000,
        bytes(20000),
    ):
        (tmp_path / "a.wav").write_bytes(whole + extra)
        assert info(tmp_path / "a.wav").claim == ""
        assert info(tmp_path / "a.wav").samples == SAMPLES


@pytest.mark.parametrize("total", [0, 21333, 300000])
def test_flac(tmp_path, total):
    content = _made("FLAC")
    packed = int.from_bytes(content[18:26], "big")
    content[18:26] = (packed >> 36 << 36 | total).to_bytes(8, "big")
    _check(tmp_path / "a.flac", content)


def test_a_streamed_flac_that_lost_its_end_is_read_to_its_last_whole_frame(tmp_path):
    content = _made("FLAC")
    packed = int.from_bytes(content[18:26], "big")
    content[18:26] = (packed >> 36 << 36).to_bytes(8, "big")
    (tmp_path / "a.flac").write_bytes(content[: len(content) // 2])
    found = info(tmp_path / "a.flac")
    assert 28000 < found.samples < 36000 and "its last frame is incomplete" in found.claim
    np.testing.assert_allclose(read_file(tmp_path / "a.flac")[0], NOISE_S[: found.samples], atol=2 / 32768)


def _xing(content):
    place = max(content.find(b"Xing"), content.find(b"Info"))
    return place, struct.unpack(">I", content[place + 8 : place + 12])[0]


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE", "AVERAGE"])
@pytest.mark.parametrize("factor", [0, 1 / 3, 3])
def test_mp3_whose_count_of_frames_is_wrong(tmp_path, mode, factor):
    content = _made("MP3", "MPEG_LAYER_III", bitrate_mode=mode, compression_level=0.3)
    place, frames = _xing(content)
    content[place + 8 : place + 12] = struct.pack(">I", round(factor * frames))
    _check(tmp_path / "a.mp3", content, tolerance=None, claim=r"it has 4\.1\d s")
    assert info(tmp_path / "a.mp3").samples == SAMPLES


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE", "AVERAGE"])
@pytest.mark.parametrize("cut", [False, True])
def test_mp3_without_a_count_of_frames(tmp_path, mode, cut):
    quiet = NOISE_S.copy()
    quiet[16000:40000] *= 0.001
    content = _made("MP3", "MPEG_LAYER_III", quiet, bitrate_mode=mode, compression_level=0.3)
    place, _ = _xing(content)
    content[place : place + 4] = bytes(4)
    begin = content.find(bytes(content[:2]), place) if cut else 0
    claim = "^$" if mode == "CONSTANT" else r"it has 4\.\d\d s"
    _check(tmp_path / "a.mp3", content[begin:], quiet, None, claim)


def test_an_mp3_that_is_cut_short_is_named(tmp_path):
    content = _made("MP3")
    (tmp_path / "a.mp3").write_bytes(content[: len(content) // 2])
    with pytest.raises(AudioError, match=r"is cut short: its header promises 114 frames, but there are 5\d"):
        info(tmp_path / "a.mp3")


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_ogg_whose_last_page_is_not_marked_as_the_last(tmp_path, subtype):
    content = _made("OGG", subtype)
    last = content.rfind(b"OggS")
    content[last + 5] &= ~4
    content[last + 22 : last + 26] = bytes(4)
    content[last + 22 : last + 26] = struct.pack("<I", _ogg_checksum(content[last:]))
    _check(tmp_path / "a.ogg", content, tolerance=None, claim="its last page is not marked")
    assert info(tmp_path / "a.ogg").samples == SAMPLES
    (tmp_path / "a.ogg").write_bytes(content[:-50])
    with pytest.raises(AudioError, match="is cut short: its last page is missing"):
        info(tmp_path / "a.ogg")


def _ogg_checksum(page):
    value = 0
    for byte in page:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1 ^ (0x04C11DB7 if value & 0x80000000 else 0)) & 0xFFFFFFFF
    return value


@pytest.mark.parametrize("kind", ["WAV", "OGG", "FLAC"])
def test_of_several_recordings_in_a_row_the_first_is_read_and_the_others_are_mentioned(tmp_path, kind):
    content = _made(kind) + _made(kind, samples=NOISE_S[:20000])
    (tmp_path / "a").write_bytes(content)
    found = info(tmp_path / "a")
    assert found.samples == SAMPLES and "in a row, of which only the first is read" in found.claim


def test_formats_whose_header_is_not_compared_are_mentioned(tmp_path):
    for name in ("VOC", "MAT5"):
        path = tmp_path / f"a.{name.lower()}"
        soundfile.write(path, NOISE_S, RATE_HZ, format=name)
        assert name in info(path).claim
    soundfile.write(tmp_path / "a.xi", NOISE_S, RATE_HZ, format="XI", subtype="DPCM_16")
    with pytest.raises(AudioError, match="XI"):  # libsndfile returns 44,100 Hz for any rate
        info(tmp_path / "a.xi")


def test_mp3_files_in_a_row_are_one_recording(tmp_path):
    (tmp_path / "a.mp3").write_bytes(_made("MP3") * 2)
    assert info(tmp_path / "a.mp3").samples > 2 * SAMPLES and "8.2" in info(tmp_path / "a.mp3").claim


def test_validate_warns_and_the_length_is_that_of_the_sound(make):
    directory = make()
    path = directory / "wav" / "u2.wav"
    content = bytearray(path.read_bytes())
    content[40:44] = struct.pack("<I", 800)
    path.write_bytes(content)
    report = validate(directory)
    assert not report.faults
    (warning,) = report.warnings
    assert (warning.kind, warning.subject) == ("wrong header", "u2")
    assert warning.problem == "its header says 0.05 s, but it has 0.50 s"
