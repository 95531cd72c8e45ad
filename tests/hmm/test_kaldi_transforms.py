"""Kaldi's final.mat, trans.* and spk2utt, and transform-feats."""

from pathlib import Path

import numpy as np
import pytest

from speech3.errors import MissingError, Speech3Error
from speech3.hmm.kaldi.convert import (
    read_spk2utt,
    read_transforms,
    write_projection,
    write_transforms,
)
from speech3.hmm.transforms import Projection, applied, identity, spliced
from speech3.io.ark import read_mat, read_mat_ark, write_ark

# What copy-matrix writes: "\0B", the type with its size, then rows and columns, each with its size in bytes.
BINARY = b"\0BFM \x04\x02\0\0\0\x04\x03\0\0\0" + np.arange(6, dtype="<f4").tobytes()
TEXT = b" [\n  0 1 2 \n  3 4 5 ]\n"


@pytest.mark.parametrize("content", [BINARY, TEXT])
def test_matrices_without_a_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "final.mat").write_bytes(content)
    np.testing.assert_array_equal(read_mat(tmp_path / "final.mat"), np.arange(6).reshape(2, 3))


def test_a_projection_is_written_as_final_mat(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    projection = Projection(rng.standard_normal((4, 9)), statics=3, context=1, inputs=9)
    write_projection(tmp_path, projection)
    assert (tmp_path / "final.mat").read_bytes().startswith(b"\0BFM \x04\x04\0\0\0\x04\x09\0\0\0")
    assert (tmp_path / "splice_opts").read_text() == "--left-context=1 --right-context=1\n"
    feats_TF = rng.standard_normal((6, 9)).astype(np.float32)
    by_kaldi = spliced(feats_TF[:, :3], 1) @ read_mat(tmp_path / "final.mat").T
    np.testing.assert_allclose(projection(feats_TF), by_kaldi, rtol=1e-5, atol=1e-5)


def test_where_transforms_are(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no transforms .*; pass a directory that has some"):
        read_transforms(tmp_path)
    write_transforms(tmp_path / "sat" / "trans.ark", {"a": identity(2)}, tmp_path / "sat" / "trans.scp")
    with pytest.raises(MissingError, match=rf"no transforms .*; pass {tmp_path / 'sat'}$"):
        read_transforms(tmp_path)
    for number in (1, 3):
        write_transforms(tmp_path / f"trans.{number}", {f"s{number}": identity(2)})
    with pytest.raises(MissingError, match=r"trans\.2: no such file, although trans\.3 exists"):
        read_transforms(tmp_path)


def test_transforms_of_speakers_in_all_their_forms(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    given = {speaker: rng.standard_normal((3, 4)).astype(np.float32).astype(np.float64) for speaker in ("b", "a", "c")}
    write_transforms(
        tmp_path / "trans.ark", given, tmp_path / "trans.scp", tmp_path / "spk2utt", {"u1": "a", "u0": "a"}
    )
    assert (tmp_path / "spk2utt").read_text() == "a u0 u1\n"
    assert read_spk2utt(tmp_path / "spk2utt") == {"u0": "a", "u1": "a"}
    for path in (tmp_path, tmp_path / "trans.ark", tmp_path / "trans.scp"):
        back = read_transforms(path)
        assert list(back) == ["a", "b", "c"]
        assert all((back[speaker] == given[speaker]).all() for speaker in given)
    alone = tmp_path / "alone"
    write_transforms(alone / "trans.ark", given)
    assert (read_transforms(alone)["b"] == given["b"]).all()
    kaldi = tmp_path / "kaldi"
    kaldi.mkdir()
    write_ark(kaldi / "trans.1", [("a", given["a"].astype(np.float32))])
    (kaldi / "trans.2").write_bytes(b"b  [\n  1 0 0 5\n  0 1 0 6\n  0 0 1 7 ]\n")
    back = read_transforms(kaldi)
    np.testing.assert_array_equal(back["a"], given["a"])
    feats_TF = rng.standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_allclose(applied(back["b"], feats_TF), feats_TF + np.array([5, 6, 7]), rtol=1e-6)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match="no transforms"):
        read_transforms(tmp_path)
    for part in ("trans.1", "trans.2"):
        write_ark(tmp_path / part, [("a", np.eye(3, 4, dtype=np.float32))])
    with pytest.raises(Speech3Error, match=r"trans.2: a occurs a second time"):
        read_transforms(tmp_path)
    (tmp_path / "trans.2").write_bytes(b"b " + BINARY[:-3])
    with pytest.raises(Speech3Error, match=r"trans.2: truncated|trans.2: .*truncated"):
        list(read_mat_ark(tmp_path / "trans.2"))
    (tmp_path / "spk2utt").write_text("a u1\nb u1\n")
    with pytest.raises(Speech3Error, match=r"spk2utt:2: u1 belongs to b here, but to a"):
        read_spk2utt(tmp_path / "spk2utt")
