"""Packed files: what goes in comes out; damage is named."""

import json
import os
import pickle
import re

import numpy as np
import pytest

from speech3.errors import FormatError, Speech3Error
from speech3.frames import packed as packed_module, packed as sections_module
from speech3.frames.packed import PackedFrames, open_packed, verify_once, write_frames


def _corpus(count=40, dim=5, senones=7, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 60, count)
    feats = {f"utt-é{i:03d}": rng.normal(3, 2, (n, dim)).astype(np.float32) for i, n in enumerate(lengths)}
    return feats, {utt: rng.integers(0, senones, len(x)).astype(np.int32) for utt, x in feats.items()}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_round_trip(tmp_path, dtype):
    feats, alignments = _corpus()
    order = list(feats)[::-1]
    report = write_frames(tmp_path / "x.frames", feats, alignments, 7, utterances=order, dtype=dtype, info={"seed": 3})
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
    write_frames(tmp_path / "x", feats, {"a": np.zeros(500, np.int32)}, 1, utterances=["a"])
    np.testing.assert_allclose(open_packed(tmp_path / "x").variance_F, feats["a"].astype(np.float64).var(0), rtol=1e-9)


def test_many_senones_and_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(sections_module, "BLOCK_BYTES", 1000)
    feats, _ = _corpus()
    alignments = {utt: np.full(len(x), 39_999, np.int32) for utt, x in feats.items()}
    write_frames(tmp_path / "x", feats, alignments, 40_000, utterances=list(feats))
    packed = open_packed(tmp_path / "x")
    packed.verify()
    assert set(packed.senones_N) == {39_999}
    assert len(packed._sections._checksums) > 20


def test_lengths_may_differ_by_two_frames(tmp_path):
    feats = {"a": np.ones((10, 2), np.float32), "b": np.ones((10, 2), np.float32)}
    alignments = {"a": np.zeros(8, np.int32), "b": np.zeros(12, np.int32)}
    report = write_frames(tmp_path / "x", feats, alignments, 1, utterances=["a", "b"])
    assert report.frames == 18


def test_bad_utterances_are_skipped_and_listed(tmp_path, capsys):
    feats, alignments = _corpus(count=100)
    bad = list(feats)[:4]
    del alignments[bad[0]]
    alignments[bad[1]] = np.concatenate([alignments[bad[1]], [0, 0, 0]])
    feats[bad[2]][0, 0] = np.nan
    feats[bad[3]] = feats[bad[3]][:0]
    alignments[bad[3]] = alignments[bad[3]][:0]
    report = write_frames(tmp_path / "x", feats, alignments, 7, utterances=list(feats))
    assert set(report.skipped) == set(bad)
    assert open_packed(tmp_path / "x").utterances == tuple(list(feats)[4:])
    said = capsys.readouterr().err
    assert all(f"skipped {utt}: " in said for utt in bad)
    assert "4 of 100 utterances skipped" in said
    for utt in list(feats)[4:8]:
        del alignments[utt]
    with pytest.raises(Speech3Error, match=r"6 of 100 utterances so far.*\n.*no alignment"):  # not after the last
        write_frames(tmp_path / "y", feats, alignments, 7, utterances=list(feats))
    assert not (tmp_path / "y").exists()


def test_values_beyond_float16_are_a_bad_utterance(tmp_path):
    feats = {"a": np.full((3, 2), 1e6, np.float32)}
    with pytest.raises(Speech3Error, match="a: features that are not finite numbers in float16"):
        write_frames(tmp_path / "x", feats, {"a": np.zeros(3, np.int32)}, 1, utterances=["a"], dtype="float16")


def test_senone_beyond_the_count_names_the_utterance(tmp_path):
    feats, alignments = _corpus()
    alignments["utt-é005"][2] = 7
    with pytest.raises(Speech3Error, match="utt-é005, frame 2: senone 7, but there are 7"):
        write_frames(tmp_path / "x", feats, alignments, 7, utterances=list(feats))


def test_nothing_to_pack(tmp_path):
    with pytest.raises(Speech3Error, match="x: no utterance to pack"):
        write_frames(tmp_path / "x", {}, {}, 7, utterances=[])


def test_flipped_byte_is_found_anywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(sections_module, "BLOCK_BYTES", 4096)
    feats, alignments = _corpus()
    path = tmp_path / "x.frames"
    write_frames(path, feats, alignments, 7, utterances=list(feats))
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


@pytest.mark.parametrize("section", ["frames", "senones", "offsets", "counts", "mean", "variance", "ids", "checksums"])
def test_flipped_byte_of_a_large_file_is_found_when_it_is_verified(tmp_path, monkeypatch, section):
    monkeypatch.setattr(packed_module, "_VERIFIED_AT_OPENING_BYTES", 0)
    feats, alignments = _corpus()
    path = tmp_path / "x.frames"
    write_frames(path, feats, alignments, 7, utterances=list(feats))
    start, size = open_packed(path)._sections._places[section]
    whole = path.read_bytes()
    for position in (start, start + size // 2, start + size - 1):
        damaged = bytearray(whole)
        damaged[position] ^= 64
        path.write_bytes(damaged)
        with pytest.raises(Speech3Error, match=r"x.frames: .*pack it again"):
            verify_once(open_packed(path), tmp_path / "verified.json")
    assert not (tmp_path / "verified.json").exists()


def test_flipped_byte_in_the_head(tmp_path):
    feats, alignments = _corpus()
    path = tmp_path / "x.frames"
    write_frames(path, feats, alignments, 7, utterances=list(feats))
    whole = path.read_bytes()
    for position in range(sections_module._HEAD.size):
        for bit in (1, 128):
            damaged = bytearray(whole)
            damaged[position] ^= bit
            path.write_bytes(damaged)
            with pytest.raises(Speech3Error, match=r"x.frames: (not a file of packed frames|.*pack it again)"):
                open_packed(path)


@pytest.fixture
def verified(monkeypatch):
    """Names of the files that were read whole; files of every size are large."""
    names = []
    whole = PackedFrames.verify

    def verify(packed):
        names.append(packed.path.name)
        whole(packed)

    monkeypatch.setattr(packed_module, "_VERIFIED_AT_OPENING_BYTES", 0)
    monkeypatch.setattr(PackedFrames, "verify", verify)
    return names


def test_files_are_verified_once_a_run(tmp_path, verified):
    feats, alignments = _corpus()
    paths, record = (
        [tmp_path / "data" / name for name in ("train.frames", "heldout.frames")],
        tmp_path / "run" / "v.json",
    )
    for path in paths:
        write_frames(path, feats, alignments, 7, utterances=list(feats))
    (tmp_path / "data").chmod(0o500)
    try:
        for _ in range(2):
            for path in paths:
                verify_once(open_packed(path), record)
    finally:
        (tmp_path / "data").chmod(0o700)
    assert verified == ["train.frames", "heldout.frames"]
    assert sorted((tmp_path / "data").iterdir()) == sorted(paths)
    os.utime(paths[0], ns=(1, 1))
    for path in paths:
        verify_once(open_packed(path), record)
    assert verified[2:] == ["train.frames"]
    record.write_text("{", encoding="utf-8")
    verify_once(open_packed(paths[1]), record)
    assert verified[3:] == ["heldout.frames"]
    assert list(json.loads(record.read_text(encoding="utf-8"))) == [str(paths[1].resolve())]


def test_pickled_it_is_its_path(tmp_path):
    feats, alignments = _corpus()
    path = tmp_path / "x.frames"
    write_frames(path, feats, alignments, 7, utterances=list(feats))
    pickled = pickle.dumps(open_packed(path))
    assert len(pickled) < 500
    np.testing.assert_array_equal(pickle.loads(pickled).frames_NF, open_packed(path).frames_NF)
    feats[next(iter(feats))][0] += 1
    write_frames(path, feats, alignments, 7, utterances=list(feats))
    with pytest.raises(Speech3Error, match=r"x.frames: was packed again while it was in use"):
        pickle.loads(pickled)


def test_cut_short(tmp_path):
    feats, alignments = _corpus()
    path = tmp_path / "x.frames"
    write_frames(path, feats, alignments, 7, utterances=list(feats))
    whole = path.read_bytes()
    for length in [*range(40), *range(40, len(whole), 499), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"x.frames"):
            open_packed(path)


def _write(path, *, dim=2, offsets=(0, 3, 5), **counts):
    """A file whose checksums are right, whatever it says."""
    frames = counts.pop("frames", offsets[-1])
    with path.open("wb") as stream:
        writer = sections_module.SectionWriter(stream)
        for name, size in (("frames", 4 * 5 * dim), ("senones", 2 * 5), ("counts", 8), ("mean", 8 * dim)):
            writer.section(name, [bytes(size)])
        writer.section("variance", [bytes(8 * dim)])
        writer.section("offsets", [np.array(offsets, "<i8").tobytes()])
        writer.section("ids", [b"a\nb"])
        about = {"frames": frames, "utterances": len(offsets) - 1, "dim": dim, "dtype": "<f4", "senone_dtype": "<i2"}
        writer.close({**about, "num_senones": 1, "info": {}, **counts})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"frames": 0}, r"holds no frames \(0 of 2 feature bins\); pack it again"),
        ({"dim": 0}, r"holds no frames \(5 of 0 feature bins\); pack it again"),
        ({"frames": 4}, r"10 values in section frames instead of 8; pack it again"),
        ({"num_senones": 2}, r"1 values in section counts instead of 2; pack it again"),
        ({"utterances": 3}, r"3 values in section offsets instead of 4; pack it again"),
        ({"offsets": (0, 3, 3, 5)}, r"block 0: the table of utterances .* \(utterance 1: frames 3 up to 3\)"),
        (
            {"offsets": (0, 4, 3, 5)},
            r"the table of utterances does not rise from 0 to 5 frames \(utterance 1: ",
        ),
        ({"offsets": (1, 3, 5)}, r"the table of utterances does not rise from 0 to 5 frames"),
        ({"offsets": (0, 3, 6), "frames": 5}, r"the table of utterances does not rise from 0 to 5 frames"),
    ],
)
def test_files_that_contradict_themselves(tmp_path, wrong, told):
    _write(tmp_path / "x.frames")
    assert len(open_packed(tmp_path / "x.frames")) == 5
    _write(tmp_path / "x.frames", **wrong)
    with pytest.raises(Speech3Error, match=r"x.frames: .*" + told):
        open_packed(tmp_path / "x.frames")


def test_an_utterance_of_another_size_is_left_out(tmp_path):
    feats = {f"u{n:02}": np.ones((5, 2 if n != 8 else 3), np.float32) for n in range(30)}
    report = write_frames(
        tmp_path / "x", feats, {key: np.zeros(5, np.int32) for key in feats}, 1, utterances=list(feats)
    )
    assert report.skipped == {"u08": "3 feature bins, those before it have 2"}
    assert list(open_packed(tmp_path / "x").utterances) == [key for key in feats if key != "u08"]


@pytest.mark.parametrize("shape", [(5, 0), (5,)])
def test_features_without_bins_are_a_bad_utterance(tmp_path, shape):
    with pytest.raises(Speech3Error, match=rf"a: features of shape {re.escape(str(shape))}, not frames x bins"):
        write_frames(
            tmp_path / "x", {"a": np.ones(shape, np.float32)}, {"a": np.zeros(5, np.int32)}, 1, utterances=["a"]
        )


def test_senones_beyond_the_count_in_the_file_name_the_block(tmp_path):
    feats, alignments = _corpus()
    write_frames(tmp_path / "x", feats, alignments, 7, utterances=list(feats))
    packed = open_packed(tmp_path / "x")
    object.__setattr__(packed, "num_senones", int(packed.senones_N.max()))
    with pytest.raises(Speech3Error, match=r"x: block 0: frame \d+ has senone 6, but there are 6"):
        packed.verify()


def test_missing_file(tmp_path):
    with pytest.raises(Speech3Error, match=r"train.frames: no such file"):
        open_packed(tmp_path / "train.frames")
