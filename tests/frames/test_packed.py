"""Packed files: what goes in comes out; damage is named."""

import numpy as np
import pytest

from speech3.errors import Speech3Error
from speech3.frames import packed as packed_module
from speech3.frames import sections as sections_module
from speech3.frames.packed import open_packed, pack


def _corpus(count=40, dim=5, senones=7, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 60, count)
    feats = {f"utt-é{i:03d}": rng.normal(3, 2, (n, dim)).astype(np.float32) for i, n in enumerate(lengths)}
    return feats, {utt: rng.integers(0, senones, len(x)).astype(np.int32) for utt, x in feats.items()}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_round_trip(tmp_path, dtype):
    feats, alignments = _corpus()
    order = list(feats)[::-1]
    report = pack(tmp_path / "x.frames", feats, alignments, 7, utterances=order, dtype=dtype, info={"seed": 3})
    packed = open_packed(tmp_path / "x.frames")
    expected_NF = np.concatenate([feats[utt] for utt in order]).astype(dtype)
    senones_N = np.concatenate([alignments[utt] for utt in order])
    np.testing.assert_array_equal(packed.frames_NF, expected_NF)
    np.testing.assert_array_equal(packed.senones_N, senones_N)
    np.testing.assert_array_equal(np.diff(packed.offsets_U1), [len(feats[utt]) for utt in order])
    np.testing.assert_array_equal(packed.counts_S, np.bincount(senones_N, minlength=7))
    np.testing.assert_allclose(packed.mean_F, expected_NF.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(packed.variance_F, expected_NF.astype(np.float64).var(0), rtol=1e-10)
    assert packed.utterances == tuple(order)
    assert (packed.info, packed.num_senones, packed.dim, len(packed)) == ({"seed": 3}, 7, 5, len(senones_N))
    assert (report.utterances, report.frames, report.skipped) == (40, len(senones_N), {})
    assert [path.name for path in tmp_path.iterdir()] == ["x.frames"]


def test_variance_keeps_its_digits_far_from_zero(tmp_path):
    rng = np.random.default_rng(1)
    feats = {"a": (1e4 + rng.normal(0, 0.01, (500, 2))).astype(np.float32)}
    pack(tmp_path / "x", feats, {"a": np.zeros(500, np.int32)}, 1, utterances=["a"])
    np.testing.assert_allclose(open_packed(tmp_path / "x").variance_F, feats["a"].astype(np.float64).var(0), rtol=1e-9)


def test_many_senones_and_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(sections_module, "BLOCK_BYTES", 1000)
    feats, _ = _corpus()
    alignments = {utt: np.full(len(x), 39_999, np.int32) for utt, x in feats.items()}
    pack(tmp_path / "x", feats, alignments, 40_000, utterances=list(feats))
    packed = open_packed(tmp_path / "x")
    packed.verify()
    assert set(packed.senones_N) == {39_999}
    assert len(packed._sections._checksums) > 20


def test_lengths_may_differ_by_two_frames(tmp_path):
    feats = {"a": np.ones((10, 2), np.float32), "b": np.ones((10, 2), np.float32)}
    alignments = {"a": np.zeros(8, np.int32), "b": np.zeros(12, np.int32)}
    report = pack(tmp_path / "x", feats, alignments, 1, utterances=["a", "b"])
    assert report.frames == 18


def test_bad_utterances_are_skipped_and_listed(tmp_path, capsys):
    feats, alignments = _corpus(count=100)
    bad = list(feats)[:4]
    del alignments[bad[0]]
    alignments[bad[1]] = np.concatenate([alignments[bad[1]], [0, 0, 0]])
    feats[bad[2]][0, 0] = np.nan
    feats[bad[3]] = feats[bad[3]][:0]
    alignments[bad[3]] = alignments[bad[3]][:0]
    report = pack(tmp_path / "x", feats, alignments, 7, utterances=list(feats))
    assert set(report.skipped) == set(bad)
    assert open_packed(tmp_path / "x").utterances == tuple(list(feats)[4:])
    said = capsys.readouterr().err
    assert all(f"skipped {utt}: " in said for utt in bad)
    assert "4 of 100 utterances skipped" in said
    for utt in list(feats)[4:6]:
        del alignments[utt]
    with pytest.raises(Speech3Error, match=r"6 of 100 utterances.*\n.*no alignment"):
        pack(tmp_path / "y", feats, alignments, 7, utterances=list(feats))
    assert not (tmp_path / "y").exists()


def test_values_beyond_float16_are_a_bad_utterance(tmp_path):
    feats = {"a": np.full((3, 2), 1e6, np.float32)}
    with pytest.raises(Speech3Error, match="a: features that are not finite numbers in float16"):
        pack(tmp_path / "x", feats, {"a": np.zeros(3, np.int32)}, 1, utterances=["a"], dtype="float16")


def test_senone_beyond_the_count_names_the_utterance(tmp_path):
    feats, alignments = _corpus()
    alignments["utt-é005"][2] = 7
    with pytest.raises(Speech3Error, match="utt-é005, frame 2: senone 7, but there are 7"):
        pack(tmp_path / "x", feats, alignments, 7, utterances=list(feats))


def test_nothing_to_pack(tmp_path):
    with pytest.raises(Speech3Error, match="no utterance"):
        pack(tmp_path / "x", {}, {}, 7, utterances=[])


def test_flipped_byte_is_found_anywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(sections_module, "BLOCK_BYTES", 4096)
    feats, alignments = _corpus()
    path = tmp_path / "x.frames"
    pack(path, feats, alignments, 7, utterances=list(feats))
    whole = path.read_bytes()
    for position in [0, 9, *range(4096, len(whole), 997), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(Speech3Error, match=r"x.frames"):
            open_packed(path)
    damaged = bytearray(whole)
    damaged[4096 + 2 * 4096 + 5] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(Speech3Error, match=r"x.frames: block 2 of \d+ \(bytes 12288 to 16383\)"):
        open_packed(path)


def test_large_files_are_verified_on_request_only(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_module, "_VERIFIED_AT_OPENING_BYTES", 0)
    feats, alignments = _corpus()
    path = tmp_path / "x.frames"
    pack(path, feats, alignments, 7, utterances=list(feats))
    damaged = bytearray(path.read_bytes())
    damaged[5000] ^= 1
    path.write_bytes(damaged)
    packed = open_packed(path)
    with pytest.raises(Speech3Error, match="block 0 of 1"):
        packed.verify()


@pytest.mark.parametrize("length", [0, 10, 4096, 6000, -1])
def test_cut_short(tmp_path, length):
    feats, alignments = _corpus()
    path = tmp_path / "x.frames"
    pack(path, feats, alignments, 7, utterances=list(feats))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(Speech3Error, match=r"x.frames: (cut short in block \d+|not a file of packed frames)"):
        open_packed(path)


def test_senones_beyond_the_count_in_the_file_name_the_block(tmp_path):
    feats, alignments = _corpus()
    pack(tmp_path / "x", feats, alignments, 7, utterances=list(feats))
    packed = open_packed(tmp_path / "x")
    object.__setattr__(packed, "num_senones", int(packed.senones_N.max()))
    with pytest.raises(Speech3Error, match=r"x: block 0: frame \d+ has senone 6, but there are 6"):
        packed.verify()


def test_missing_file(tmp_path):
    with pytest.raises(Speech3Error, match=r"train.frames: no such file"):
        open_packed(tmp_path / "train.frames")
