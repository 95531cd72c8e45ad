"""Archives without an scp: the offsets are those that the scp says."""

from pathlib import Path

import numpy as np
import pytest

from speech3.errors import FormatError, Speech3Error
from speech3.io.ark import ark_entries, is_ark, is_integer_ark, read_matrix, read_scp, write_ark

RNG = np.random.default_rng(0)
MATRICES = {
    "zoë-1": RNG.standard_normal((70, 3)).astype(np.float32),
    "a": RNG.standard_normal((1, 3)),
    "数字": RNG.standard_normal((9, 5)).astype(np.float32),
}


@pytest.mark.parametrize("compress", [False, True])
def test_the_offsets_of_the_scp(tmp_path: Path, compress: bool) -> None:
    ark = tmp_path / "feats.ark"
    write_ark(ark, MATRICES.items(), tmp_path / "feats.scp", compress=compress)
    assert is_ark(ark.read_bytes()[:100]) and not is_integer_ark(ark.read_bytes()[:100])
    entries = list(ark_entries(ark))
    assert [key for key, _ in entries] == list(MATRICES)
    assert dict(entries) == read_scp(tmp_path / "feats.scp")


def test_the_third_compressed_format(tmp_path: Path) -> None:
    """Bytes that Kaldi's own C++ made, see test_compressed."""
    cm3 = bytes.fromhex("75200042434d3320000040c00000ce42030000000200000009000b1902ff")
    (tmp_path / "feats.ark").write_bytes(cm3 + cm3.replace(b"u ", b"v ", 1))
    assert [place.rpartition(":")[2] for _, place in ark_entries(tmp_path / "feats.ark")] == ["2", str(len(cm3) + 2)]


def test_text(tmp_path: Path) -> None:
    ark = tmp_path / "feats.ark"
    ark.write_text("u1  [\n 1 2\n 3 4 ]\nu2  [ 5 6 ]\n")
    assert is_ark(ark.read_bytes())
    places = dict(ark_entries(ark))
    assert read_matrix(places["u1"], tmp_path).tolist() == [[1, 2], [3, 4]]
    assert list(places) == ["u1", "u2"]


def test_archives_that_are_none_or_cut(tmp_path: Path) -> None:
    ark = tmp_path / "feats.ark"
    write_ark(ark, MATRICES.items())
    whole = ark.read_bytes()
    for length in (len(whole) - 1, len(whole) - 130, 20):
        ark.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"feats\.ark"):
            list(ark_entries(ark))
    rows = whole.index(b"\x04", whole.index(b"\0B")) + 1
    ark.write_bytes(whole[:rows] + b"\xff" * 4 + whole[rows + 4 :])  # -1 rows: the next matrix would be this one again
    with pytest.raises(Speech3Error, match="truncated or not an archive of matrices"):
        list(ark_entries(ark))
    write_ark(ark, [("u", np.arange(3))])
    assert is_integer_ark(ark.read_bytes()) and not is_ark(ark.read_bytes())
    with pytest.raises(Speech3Error, match="after its beginning"):
        list(ark_entries(ark))
    with pytest.raises(Speech3Error, match="No such file"):
        list(ark_entries(tmp_path / "none.ark"))
    assert not is_ark(b"RIFF1234WAVEfmt ") and not is_ark(b"u /some/where.ark:12\n")
