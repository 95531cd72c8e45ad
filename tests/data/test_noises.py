"""Directories of noise and responses as people keep them; what is read of them."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.data.augment.noises import (
    Sound,
    find_responses,
    find_sounds,
    read_response,
    read_sound,
    read_whole,
    some,
    split_speech,
)
from speech3.errors import Speech3Error

RATE_HZ = 8000


def write(path: Path, samples: np.ndarray, rate_hz: int = RATE_HZ) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate_hz, "FLOAT" if path.suffix == ".wav" else "PCM_16")
    return path


def ramp(count: int) -> np.ndarray:
    """Each sample tells its own place."""
    return (np.arange(count) / 65536).astype(np.float32)


def test_a_tree_as_musan_is(tmp_path: Path) -> None:
    for name in ("noise/free-sound/n2.wav", "music/fma/m1.wav", "speech/librivox/s1.wav", "noise/free-sound/n1.flac"):
        write(tmp_path / "musan" / name, ramp(100))
    (tmp_path / "musan" / "README").write_text("hello")
    (tmp_path / "musan" / "noise" / "ANNOTATIONS").write_text("n1 x")
    (tmp_path / "link").symlink_to(tmp_path / "musan", target_is_directory=True)
    for root in (tmp_path / "musan", tmp_path / "link", tmp_path):
        noise, speech = split_speech(find_sounds(root))
        assert {Path(sound.name).name for sound in noise} == {"m1.wav", "n1.flac", "n2.wav"}
        assert {Path(sound.name).name for sound in speech} == {"s1.wav"}
    assert find_sounds(tmp_path / "musan") == sorted(find_sounds(tmp_path / "musan"), key=lambda sound: sound.name)


def test_a_kaldi_directory_with_segments(tmp_path: Path) -> None:
    write(tmp_path / "d" / "wav" / "r.wav", ramp(RATE_HZ))
    (tmp_path / "d" / "wav.scp").write_text("r wav/r.wav\n")
    (tmp_path / "d" / "segments").write_text("a r 0.0 0.25\nb r 0.5 0.75\n")
    (tmp_path / "d" / "utt2spk").write_text("a a\nb b\n")
    first, second = find_sounds(tmp_path / "d")
    rng = np.random.default_rng(1)
    for sound, start in ((first, 0), (second, 4000)):
        places = np.round(read_sound(sound, RATE_HZ, 500, rng) * 65536)
        assert start <= places.min() and places.max() < start + 2000
        assert len(read_whole(sound, RATE_HZ, 10**6)) == 2000


def test_long_sounds_are_cut_from_anywhere_and_short_ones_repeated_from_anywhere(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    long = Sound("x", str(write(tmp_path / "long.wav", ramp(20_000))), tmp_path)
    starts = []
    for _ in range(50):
        places = np.round(read_sound(long, RATE_HZ, 1000, rng) * 65536)
        assert np.array_equal(places, places[0] + np.arange(1000))
        starts.append(places[0])
    assert min(starts) < 2000 and max(starts) > 17_000
    short = Sound("x", str(write(tmp_path / "short.wav", ramp(300))), tmp_path)
    starts = []
    for _ in range(50):
        places = np.round(read_sound(short, RATE_HZ, 1000, rng) * 65536)
        assert np.array_equal(places, (places[0] + np.arange(1000)) % 300)
        starts.append(places[0])
    assert len(set(starts)) > 30
    exact = read_sound(Sound("x", str(tmp_path / "short.wav"), tmp_path), RATE_HZ, 300, rng)
    assert sorted(np.round(exact * 65536)) == list(range(300))


def test_sounds_of_another_rate_and_of_two_channels_are_converted(tmp_path: Path) -> None:
    time_s = np.arange(32_000) / 16_000
    # The silent channel does not count.
    stereo = np.stack([np.sin(2 * np.pi * 500 * time_s), np.zeros(32_000)], axis=1).astype(np.float32)
    sound = Sound("x", str(write(tmp_path / "x.wav", stereo, 16_000)), tmp_path)
    wave = read_sound(sound, RATE_HZ, 4000, np.random.default_rng(1))
    assert len(wave) == 4000
    spectrum = np.abs(np.fft.rfft(wave * np.hanning(4000)))
    assert spectrum.argmax() == 250 and np.abs(wave[100:-100]).max() == pytest.approx(1, rel=0.01)


def test_responses_by_list_and_by_tree(tmp_path: Path) -> None:
    response = np.zeros((400, 2), np.float32)
    response[10, 0], response[20, 1] = 0.5, 0.9
    root = tmp_path / "RIRS_NOISES"
    write(root / "real" / "type1.wav", response)
    write(root / "real" / "noise.wav", ramp(RATE_HZ * 20))
    by_tree = find_responses(root)
    assert [sound.name for sound in by_tree] == ["real/noise.wav", "real/type1.wav"]
    first = read_response(by_tree[1], RATE_HZ)
    assert first.argmax() == 10 and first[20] == 0, "the first microphone alone"
    with pytest.raises(Speech3Error, match=r"noise\.wav: 20\.0 s is too long for an impulse response"):
        read_response(by_tree[0], RATE_HZ)
    (root / "real" / "rir_list").write_text("--rir-id 1 --room-id r1 RIRS_NOISES/real/type1.wav\n\n")
    (listed,) = find_responses(root)
    assert (listed.name, Path(listed.location)) == ("RIRS_NOISES/real/type1.wav", root / "real" / "type1.wav")
    assert len(read_response(listed, 2 * RATE_HZ)) == 800
    (root / "real" / "rir_list").write_text("--rir-id 1 RIRS_NOISES/real/type2.wav\n")
    with pytest.raises(Speech3Error, match=r"rir_list: RIRS_NOISES/real/type2\.wav: no such file"):
        find_responses(root)


def test_directories_that_are_of_no_use(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(Speech3Error, match=r"no audio file \(.*\.wav.*\) and no wav\.scp"):
        find_sounds(tmp_path)
    with pytest.raises(Speech3Error, match="nowhere: no such directory"):
        find_responses(tmp_path / "nowhere")
    with pytest.raises(Speech3Error, match=r"a\.txt: not a directory"):
        find_sounds(tmp_path / "a.txt")
    silent = Sound("x", str(write(tmp_path / "silent.wav", np.zeros(100))), tmp_path)
    with pytest.raises(Speech3Error, match=r"silent\.wav: every sample is zero"):
        read_response(silent, RATE_HZ)


def test_no_more_than_so_many_are_kept() -> None:
    items = [f"{number}" for number in range(1000)]
    rng = np.random.default_rng(1)
    assert some(items, 1000, rng) == tuple(items)
    kept = some(items, 100, rng)
    assert len(set(kept)) == 100 and list(kept) == sorted(kept, key=int)
    assert some(items, 100, np.random.default_rng(2)) == some(items, 100, np.random.default_rng(2)) != kept
