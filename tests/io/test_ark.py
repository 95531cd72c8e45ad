"""Archives: written here and read by kaldi_io, written by kaldi_io and read here; damage is named."""

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from speech3.errors import DataError, FormatError, Speech3Error
from speech3.io.ark import ArkReader, IntArkReader, _kaldi_io, read_int_ark, read_scp, write_ark

RNG = np.random.default_rng(0)
MATRICES = {
    "zoë-1": RNG.standard_normal((7, 3)).astype(np.float32),
    "a": RNG.standard_normal((1, 3)),
    "数字": RNG.standard_normal((2, 3)).astype(np.float32),
    "empty-no-frame": np.zeros((0, 3), np.float32),
}
VECTORS = {"zoë-1": np.array([3, 1, 2**30, 0], np.int32), "a": np.array([7], np.int32), "none": np.zeros(0, np.int32)}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    matrices = {key: value for key, value in MATRICES.items() if len(value)}
    assert write_ark(tmp_path / "feats.ark", matrices.items(), tmp_path / "feats.scp") == 3
    return tmp_path / "feats.scp"


def test_matrices_come_back_as_float32_whatever_they_were(archive: Path) -> None:
    reader = ArkReader(archive)
    assert sorted(reader) == sorted(key for key in MATRICES if len(MATRICES[key])) and len(reader) == 3
    for key in reader:
        assert reader[key].dtype == np.float32 and reader[key].flags.writeable
        np.testing.assert_array_equal(reader[key], MATRICES[key].astype(np.float32))
    assert "b" not in reader
    with pytest.raises(KeyError):
        reader["b"]
    again = pickle.loads(pickle.dumps(reader))
    np.testing.assert_array_equal(again["a"], reader["a"])


def test_kaldi_io_reads_it_with_its_own_precision(archive: Path) -> None:
    found = dict(_kaldi_io.read_mat_scp(str(archive)))
    assert {key: value.dtype for key, value in found.items()} == {
        "a": np.dtype(np.float64),
        "zoë-1": np.dtype(np.float32),
        "数字": np.dtype(np.float32),
    }
    for key, value in found.items():
        np.testing.assert_array_equal(value, MATRICES[key])


def test_the_index_is_sorted_and_absolute(archive: Path) -> None:
    lines = archive.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(lines)
    assert all(line.split(" ", 1)[1].startswith(f"{archive.parent}/feats.ark:") for line in lines)


def test_relative_paths_are_found_from_the_directory_of_the_scp(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.write_text(archive.read_text(encoding="utf-8").replace(f"{archive.parent}/", ""), encoding="utf-8")
    expected = MATRICES["zoë-1"]
    elsewhere = archive.parent / "elsewhere"
    elsewhere.mkdir()
    for directory in (elsewhere, archive.parent):
        monkeypatch.chdir(directory)
        np.testing.assert_array_equal(ArkReader(archive)["zoë-1"], expected)
        np.testing.assert_array_equal(ArkReader(os.path.relpath(archive))["zoë-1"], expected)


def test_a_text_matrix_without_an_offset_is_read(tmp_path: Path) -> None:
    (tmp_path / "one.mat").write_text(" [\n 1 2\n 3 4 ]\n")
    (tmp_path / "feats.scp").write_text("u one.mat\n")
    np.testing.assert_array_equal(ArkReader(tmp_path / "feats.scp")["u"], [[1, 2], [3, 4]])


def test_an_archive_cut_short_names_the_utterance(archive: Path) -> None:
    ark = archive.with_name("feats.ark")
    last = max(read_scp(archive).items(), key=lambda entry: int(entry[1].rpartition(":")[2]))[0]
    ark.write_bytes(ark.read_bytes()[:-5])
    reader = ArkReader(archive)
    for key in reader:
        if key == last:
            with pytest.raises(Speech3Error, match=rf"feats\.scp: {key}: .*feats\.ark:\d+ is truncated or not a Kaldi"):
                reader[key]
        else:
            np.testing.assert_array_equal(reader[key], MATRICES[key].astype(np.float32))


def test_an_archive_that_is_gone_or_a_pipe(archive: Path) -> None:
    archive.with_name("feats.ark").unlink()
    with pytest.raises(Speech3Error, match=r"feats\.scp: a: .*feats\.ark:\d+: No such file"):
        ArkReader(archive)["a"]
    archive.write_text("a copy-feats ark:x ark:- |\n")
    with pytest.raises(Speech3Error, match="a: reading features through a pipe is not supported"):
        ArkReader(archive)["a"]


def test_scp_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.scp"
    path.write_text("b  some where with spaces \n\na\tx.ark:3\r\n")
    assert read_scp(path) == {"b": "some where with spaces", "a": "x.ark:3"}
    for content, message in (
        (b"a x\nb\n", r"a\.scp:2: b has no value"),
        (b"a x\nb y\na z\n", r"a\.scp:3: a occurs a second time"),
        (b"a \xff\n", r"a\.scp:1: not UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(Speech3Error, match=message):
            read_scp(path)
    with pytest.raises(Speech3Error, match=r"b\.scp: no such file"):
        read_scp(tmp_path / "b.scp")


def test_a_relative_path_is_of_the_directory_that_names_it_whoever_stands_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("data", 1), ("here", 2)):
        write_ark(tmp_path / name / "feats.ark", [("a", np.full((2, 2), value, np.float32))])
    (tmp_path / "data" / "feats.scp").write_text("a feats.ark:2\n")
    monkeypatch.chdir(tmp_path / "here")
    assert ArkReader(tmp_path / "data" / "feats.scp")["a"][0, 0] == 1
    (tmp_path / "data" / "feats.ark").unlink()
    assert ArkReader(tmp_path / "data" / "feats.scp")["a"][0, 0] == 2


def test_a_failing_source_leaves_neither_file(tmp_path: Path) -> None:
    def broken():
        yield "a", np.ones((2, 2), np.float32)
        raise Speech3Error("u7: unreadable")

    with pytest.raises(Speech3Error, match="u7"):
        write_ark(tmp_path / "feats.ark", broken(), tmp_path / "feats.scp")
    assert not list(tmp_path.iterdir())


def test_integer_vectors_plain_gzipped_and_by_kaldi_io(tmp_path: Path) -> None:
    ark = tmp_path / "ali.ark"
    write_ark(ark, VECTORS.items())
    packed = tmp_path / "ali.ark.gz"
    packed.write_bytes(gzip.compress(ark.read_bytes()))
    theirs = {key.encode("latin1").decode(): value for key, value in _kaldi_io.read_vec_int_ark(str(ark))}
    for found in (read_int_ark(ark), read_int_ark(packed), theirs, pickle.loads(pickle.dumps(IntArkReader(ark)))):
        assert list(found) == list(VECTORS)
        for key, value in VECTORS.items():
            assert found[key].dtype == np.int32
            np.testing.assert_array_equal(found[key], value)
    with ark.open("wb") as stream:
        _kaldi_io.write_vec_int(stream, VECTORS["a"], key="a")
    np.testing.assert_array_equal(read_int_ark(ark)["a"], VECTORS["a"])


def test_integer_archives_cut_anywhere_are_errors_but_between_vectors(tmp_path: Path) -> None:
    ark = tmp_path / "ali.ark"
    write_ark(ark, [("first", np.arange(3)), ("second", np.arange(2))])
    whole = ark.read_bytes()
    first_ends = whole.index(b"second")
    for length in range(1, len(whole)):
        ark.write_bytes(whole[:length])
        if length == first_ends:
            assert list(read_int_ark(ark)) == list(IntArkReader(ark)) == ["first"]
            continue
        for read in (read_int_ark, IntArkReader):
            with pytest.raises(FormatError, match=r"ali\.ark"):
                read(ark)


def test_an_utterance_twice_in_an_integer_archive(tmp_path: Path) -> None:
    write_ark(tmp_path / "ali.ark", [("a", np.arange(3)), ("b", np.arange(2))])
    write_ark(tmp_path / "more.ark", [("a", np.arange(4))])
    (tmp_path / "ali.ark").write_bytes((tmp_path / "ali.ark").read_bytes() + (tmp_path / "more.ark").read_bytes())
    for read in (read_int_ark, IntArkReader):
        with pytest.raises(Speech3Error, match=r"ali\.ark: a occurs a second time; make the archive again"):
            read(tmp_path / "ali.ark")


@pytest.mark.parametrize(
    ("key", "array"),
    [
        ("two words", np.zeros((1, 1), np.float32)),
        ("", np.zeros((1, 1), np.float32)),
        ("a", np.zeros((1, 1), np.float32)),
        ("long", np.arange(4) + 2**40),
        ("real", np.ones(4, np.float32)),
        ("half", np.ones((2, 2), np.float16)),
        ("integers", np.ones((2, 2), np.int32)),
        ("swapped", np.ones((2, 2), ">f4")),
        ("axes", np.ones((2, 2, 2), np.float32)),
    ],
)
def test_what_an_archive_cannot_hold_is_refused(tmp_path: Path, key: str, array: np.ndarray) -> None:
    with pytest.raises(DataError, match=rf"feats\.ark: .*{key}"):
        write_ark(tmp_path / "feats.ark", [("a", np.zeros((1, 1), np.float32)), (key, array)])
    assert not (tmp_path / "feats.ark").exists()


def test_integer_archives_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=r"no\.ark: No such file"):
        read_int_ark(tmp_path / "no.ark")
    (tmp_path / "bad.ark.gz").write_bytes(b"not gzip at all")
    with pytest.raises(Speech3Error, match=r"bad\.ark\.gz: .*make it again"):
        read_int_ark(tmp_path / "bad.ark.gz")
    whole = gzip.compress(os.urandom(1000))
    (tmp_path / "cut.ark.gz").write_bytes(whole[:500])
    with pytest.raises(Speech3Error, match=r"cut\.ark\.gz: truncated"):
        read_int_ark(tmp_path / "cut.ark.gz")
    write_ark(tmp_path / "feats.ark", [("a", np.ones((2, 2), np.float32))])
    for read in (read_int_ark, IntArkReader):
        with pytest.raises(Speech3Error, match="not an archive of integer vectors"):
            read(tmp_path / "feats.ark")
