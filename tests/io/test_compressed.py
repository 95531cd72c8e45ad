"""Compressed matrices, against bytes and values that Kaldi's own C++ made (kaldi_native_io 1.23.0)."""

import io
from pathlib import Path

import numpy as np
import pytest

from speech3.errors import FormatError, Speech3Error
from speech3.io.ark import ArkReader, read_compressed, write_ark, write_compressed

ORIGINAL = np.array(
    [[0.5, -3], [1.25, 7], [-2, 100], [3, 55.5], [0.1, 0], [0.2, -1], [9, 2], [4, 3], [1, 1], [0, 20]], np.float32
)
KALDI = {  # archives with the utterance u: of ORIGINAL (twice the first three rows), and of [[0, 0.25], [0.5, 1]]
    "CM": "75200042434d20000040c00000ce420a000000020000007c02b407900ad31d00007507db18ffff"
    "6dc000ce404bffd6a43d00c0ffe1402b657752c9",
    "CM2": "75200042434d3220000040c00000ce420300000002000000b3080000900adb187c02ffff",
    "CM3": "75200042434d3320000040c00000ce42030000000200000009000b1902ff",
    "CM3 from 0 to 1": "75200042434d3320000000000000803f020000000200000000407fff",
}
VALUES = {
    "CM": [
        [0.5038132667541504, -3.0],
        [1.2498207092285156, 7.0005950927734375],
        [-2.0004119873046875, 100.0],
        [2.972031831741333, 55.714569091796875],
        [0.09935140609741211, 0.000335693359375],
        [0.19821986556053162, -0.9841494560241699],
        [8.999771118164062, 2.023848056793213],
        [3.9561524391174316, 3.0082597732543945],
        [0.9981555342674255, 0.9847471714019775],
        [0.0009250640869140625, 20.286224365234375],
    ],
    "CM2": [[0.5001296997070312, -3.0], [1.2498207092285156, 7.0005950927734375], [-2.0004119873046875, 100.0]],
    "CM3": [[0.6352941989898682, -3.0], [1.4431371688842773, 7.098039627075195], [-2.1921567916870117, 100.0]],
    "CM3 from 0 to 1": [[0.0, 0.250980406999588], [0.49803924560546875, 1.0]],
}


def archive(tmp_path: Path, data: bytes, location: str = "feats.ark:2") -> ArkReader:
    (tmp_path / "feats.ark").write_bytes(data)
    (tmp_path / "feats.scp").write_text(f"u {location}\n")
    return ArkReader(tmp_path / "feats.scp")


@pytest.mark.parametrize("kind", KALDI)
def test_kaldis_bytes_give_kaldis_values(tmp_path: Path, kind: str) -> None:
    found = archive(tmp_path, bytes.fromhex(KALDI[kind]))["u"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(VALUES[kind], np.float32))


@pytest.mark.parametrize(("kind", "rows"), [("CM", 10), ("CM2", 3)])
def test_our_bytes_are_kaldis(tmp_path: Path, kind: str, rows: int) -> None:
    write_ark(tmp_path / "feats.ark", [("u", ORIGINAL[:rows])], compress=True)
    assert (tmp_path / "feats.ark").read_bytes().hex() == KALDI[kind]


@pytest.mark.parametrize("kind", KALDI)
def test_an_archive_cut_anywhere_names_file_and_utterance(tmp_path: Path, kind: str) -> None:
    whole = bytes.fromhex(KALDI[kind])
    for length in range(3, len(whole)):
        with pytest.raises(FormatError, match=r"feats\.scp"):
            archive(tmp_path, whole[:length])["u"]


@pytest.mark.parametrize("shape", [(1, 1), (8, 3), (9, 3), (300, 13)])
def test_there_and_back(shape: tuple[int, int]) -> None:
    feats_TF = np.random.default_rng(0).normal(5, np.linspace(0.1, 20, shape[1]), shape).astype(np.float32)
    stream = io.BytesIO()
    write_compressed(stream, feats_TF)
    stream.seek(0)
    token = stream.read(3) if shape[0] > 8 else stream.read(4)
    found_TF = read_compressed(token, stream)
    assert stream.read() == b""
    # a step is no wider than a 63rd of the column's upper quarter, or a 65,535th of the matrix's range
    np.testing.assert_array_less(np.abs(found_TF - feats_TF).max(0), np.ptp(feats_TF, axis=0) / 60 + 1e-2)


def test_columns_that_do_not_vary() -> None:
    feats_TF = np.zeros((20, 3), np.float32)
    feats_TF[:, 1], feats_TF[:, 2] = 4.0, np.arange(20)
    stream = io.BytesIO()
    write_compressed(stream, feats_TF)
    stream.seek(3)
    np.testing.assert_allclose(read_compressed(b"CM ", stream)[:, :2], feats_TF[:, :2], atol=2e-3)


def test_no_frame_and_no_number(tmp_path: Path) -> None:
    stream = io.BytesIO()
    write_compressed(stream, np.zeros((0, 3), np.float32))
    stream.seek(3)
    assert read_compressed(b"CM ", stream).shape == (0, 0)
    with pytest.raises(Speech3Error, match=r"feats\.ark: u: values that are not finite"):
        write_ark(tmp_path / "feats.ark", [("u", np.array([[np.nan]]))], compress=True)
    assert not list(tmp_path.iterdir())


def test_parts_of_a_matrix(tmp_path: Path) -> None:
    whole = bytes.fromhex(KALDI["CM"])
    values = np.array(VALUES["CM"], np.float32)
    np.testing.assert_array_equal(archive(tmp_path, whole, "feats.ark:2[2:4]")["u"], values[2:5])
    np.testing.assert_array_equal(archive(tmp_path, whole, "feats.ark:2[0:9,1:1]")["u"], values[:, 1:])
    np.testing.assert_array_equal(archive(tmp_path, whole, "feats.ark:2[8:11]")["u"], values[8:])  # as Kaldi does
    for wrong in ("[4:2]", "[0:30]", "[0:1,0:2]"):
        with pytest.raises(Speech3Error, match=r"feats\.scp: u: .*has 10 rows and 2 columns"):
            archive(tmp_path, whole, f"feats.ark:2{wrong}")["u"]
