"""Text is recognised by its first bytes, whatever the name of the file."""

import bz2
import gzip
import io
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from speech3.errors import Speech3Error
from speech3.runtime.text import open_text, read_utf8, text_stream

TEXT = "u1 ZÉRO deux\nu2 три 四 五\nu3 \U0001f600 six\n"
FORMS: dict[str, Callable[[str], bytes]] = {
    "UTF-8": lambda text: text.encode(),
    "UTF-8 with a mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16 with a mark": lambda text: text.encode("utf-16"),
    "UTF-16 LE": lambda text: text.encode("utf-16-le"),
    "UTF-16 BE": lambda text: text.encode("utf-16-be"),
    "UTF-16 BE with a mark": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "UTF-32 with a mark": lambda text: text.encode("utf-32"),
    "UTF-32 LE": lambda text: text.encode("utf-32-le"),
    "UTF-32 BE": lambda text: text.encode("utf-32-be"),
    "gzip": lambda text: gzip.compress(text.encode()),
    "bzip2": lambda text: bz2.compress(text.encode()),
    "xz": lambda text: lzma.compress(text.encode()),
    "lzma": lambda text: lzma.compress(text.encode(), lzma.FORMAT_ALONE),
    "gzip of UTF-16": lambda text: gzip.compress(text.encode("utf-16")),
    "gzip of gzip": lambda text: gzip.compress(gzip.compress(text.encode())),
}
BINARY = {
    b"mmap lm http://kheafield.com/code format version 5\n\0\0\0\xff": "binary language model of KenLM.*ARPA",
    struct.pack("<i", 2125659606) + b"\6\0\0\0vector": "transducer of OpenFst.*fstprint",
    b"PK\x03\x04\x14\0\0\0": "zip archive",
    b"RIFF\x24\0\0\0WAVEfmt ": "audio",
    b"fLaC\0\0": "audio",
    b"ID3\x03\0": "audio",
    b"\xff\xfb\x90\0": "audio",
    b"\0BFM \4": "binary file of Kaldi",
    b"\x28\xb5\x2f\xfd\0": "zstd",
    b"%PDF-1.7\n": "PDF",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n": "git lfs pull",
    b"<!DOCTYPE html>\n<html>": "web page",
    b"name\0" * 20 + b"data": "NUL bytes",
    b"\x01\x02\x00\x05" * 9: "NUL bytes",
}


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.gz"])
@pytest.mark.parametrize("form", FORMS)
def test_whole_and_as_a_stream(tmp_path: Path, form: str, name: str) -> None:
    path = write(tmp_path / name, FORMS[form](TEXT))
    assert read_utf8(path) == TEXT
    with open_text(path) as (stream, _):
        assert stream.read().decode() == TEXT


@pytest.mark.parametrize("text", ["привет мир\nда\n", "四 五 六\n", "한국어 말\n", "かな カナ\n", "a b\n", "ñandú\n"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_any_script_without_a_mark(tmp_path: Path, text: str, encoding: str) -> None:
    assert read_utf8(write(tmp_path / "a", text.encode(encoding))) == text


@pytest.mark.parametrize("form", FORMS)
def test_longer_than_what_is_looked_at(form: str) -> None:
    text = "".join(f"{number} ein Wört 四\n" for number in range(20_000))
    raw = io.BytesIO(FORMS[form](text))
    assert text_stream(raw, Path("a")).read().decode() == text


def test_a_pipe_cannot_be_read_twice() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    for form in FORMS.values():
        assert text_stream(Pipe(form(TEXT)), Path("-")).read().decode() == TEXT


@pytest.mark.parametrize("content", BINARY)
def test_what_is_no_text_is_named(tmp_path: Path, content: bytes) -> None:
    for path in (write(tmp_path / "a.txt", content), write(tmp_path / "a.gz", gzip.compress(content))):
        with pytest.raises(Speech3Error, match=f"{path.name}.*{BINARY[content]}"):
            read_utf8(path)
        with pytest.raises(Speech3Error, match=f"{path.name}.*{BINARY[content]}"), open_text(path):
            pass


def test_damaged_text_is_not_taken_for_another_encoding(tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=r"a:2: has NUL bytes"):
        read_utf8(write(tmp_path / "a", b"one two three\nfour \0 five six\n"))
    with pytest.raises(Speech3Error, match=r"a:2: not UTF-8 text.*iconv"):
        read_utf8(write(tmp_path / "a", b"one\ncaf\xe9\n"))
    assert read_utf8(tmp_path / "a", otherwise="latin-1") == "one\ncafé\n"
    with pytest.raises(Speech3Error, match=r"a: is UTF-16, but cut short or damaged"):
        read_utf8(write(tmp_path / "a", "one two".encode("utf-16")[:-1]))
    with pytest.raises(Speech3Error, match=r"a: cannot be read.*copy it again"):
        read_utf8(write(tmp_path / "a", bz2.compress(b"one two" * 99)[:-9]))


def test_marks_remain_where_files_were_joined(tmp_path: Path) -> None:
    assert read_utf8(write(tmp_path / "a", "one\n".encode("utf-8-sig") * 2)) == "one\none\n"
