"""Text files as people have them: compressed, in any Unicode encoding, with letters that are written in several ways.

What a file is, is told by its first bytes and not by its name. Every reader of text goes through this module.

Every reader of words changes them to one Unicode form, so that the same word is the same in every file: keyboards and
macOS write é as one character, or as e and a combining accent. The form is composed (NFC). Of the compatibility forms
(NFKC), only those are changed that never are another letter: full-width Latin letters and digits, and the ligatures of
Latin type (U+FB00 to U+FB06). NFKC as a whole would change letters that orthographies use, such as the sign of
aspiration, U+02B0, and the vowel sign am of Thai. Characters that are not seen are left out. Phones are not changed:
models have them as they are.
"""

import bz2
import codecs
import gzip
import importlib
import io
import lzma
import re
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from speech3.errors import FormatError, MissingError, SettingError, Speech3Error

UNREADABLE = (EOFError, OSError, zlib.error, lzma.LZMAError)  # what reading a file, compressed or not, may raise

_HEAD = 1 << 16  # bytes from which a file is recognised
_MARK = codecs.BOM_UTF8
_MIN_NUL = 0.3  # share of NUL bytes in UTF-16 that is otherwise ASCII
_SPACES = "\t\n\v\f\r"
_MOST_LAYERS = 3  # of compression, one in the other

_UNPACK = "unpack it and pass a text file of it"
_ARPA = "pass the ARPA file that it was made of"
_OTHER_FILE = "pass the text file"
_BINARY: tuple[tuple[bytes, str, str], ...] = (  # the first bytes, what has them, what to do
    (b"PK\x03\x04", "a zip archive or a document of an office program", "unpack it, or save it as plain text"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (b"Rar!\x1a\x07", "a rar archive", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd, which this Python cannot read", "decompress it: zstd -d"),
    (b"\x1f\x9d", "compressed with compress", "decompress it: gzip -d"),
    (b"\x1f\x1e", "compressed with pack", "decompress it: gzip -d"),
    (b"\x1f\xa0", "compressed with compress", "decompress it: gzip -d"),
    (b"LZIP", "compressed with lzip", "decompress it: lzip -d"),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "decompress it: lz4 -d"),
    (b"mmap lm http://kheafield.com/code", "a binary language model of KenLM", _ARPA),
    (b"SRILM_BINARY_NGRAM", "a binary language model of SRILM", "write it as ARPA: ngram -lm IN -write-lm OUT"),
    (b"blmt ", "a binary language model of IRSTLM", _ARPA),
    (b"Qblmt ", "a binary language model of IRSTLM", _ARPA),
    (b"Trie Language Model", "a binary language model of Sphinx", "write it as ARPA: sphinx_lm_convert"),
    (b"\xd6\xfd\xb2\x7e", "a binary transducer of OpenFst", "pass the text that it was made of, or print it: fstprint"),
    (b"\0B", "a binary file of Kaldi", "write it as text (--binary=false), or pass the text that it was made of"),
    (b"ooBinaryFile", "a binary file of Praat", "open it in Praat and save it with Save as text file"),
    (b"fLaC", "audio (flac)", _OTHER_FILE),
    (b"OggS", "audio (ogg)", _OTHER_FILE),
    (b"NIST_1A", "audio (NIST sphere)", _OTHER_FILE),
    (b"\x1aE\xdf\xa3", "audio or video (Matroska)", _OTHER_FILE),
    (b".snd\0", "audio (au)", _OTHER_FILE),
    (b"#!AMR", "audio (AMR)", _OTHER_FILE),
    (b"\xff\xfb", "audio (mp3)", _OTHER_FILE),
    (b"\xff\xf3", "audio (mp3)", _OTHER_FILE),
    (b"\xff\xf2", "audio (mp3)", _OTHER_FILE),
    (b"\x89PNG", "a picture", _OTHER_FILE),
    (b"\xff\xd8\xff", "a picture", _OTHER_FILE),
    (b"%PDF-", "a PDF document", "save its text as plain text"),
    (b"{\\rtf", "a document in rich text format", "save it as plain text"),
    (b"\xd0\xcf\x11\xe0", "a document of an office program", "save it as plain text"),
    (b"\x7fELF", "a program", _OTHER_FILE),
    (b"\x93NUMPY", "an array of numpy", _OTHER_FILE),
    (b"\x89HDF", "an HDF5 file", _OTHER_FILE),
    (b"SQLite format 3\0", "a database of SQLite", "export its text"),
    (b"version https://git-lfs.github.com/spec", "only a pointer of Git LFS, not the file", "fetch it: git lfs pull"),
)

_FOLDED = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\ufb00-\ufb06]+")
# Decompositions of letters that look like others; "compat" would be too wide (Thai, Lao, Korean letters).
_LOOKALIKE = ("<wide>", "<narrow>", "<square>", "<circle>", "<font>", "<isolated>", "<initial>", "<medial>", "<final>")
# Soft hyphens, marks of direction and joiners of lines are not seen and are no part of a word. The space without width
# is one, except in scripts that divide words by it (Thai, Lao, Burmese, Khmer). U+200C and U+200D change letters.
_DIVIDED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_UNSEEN = re.compile(
    f"[\u00ad\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]|(?<![{_DIVIDED}])\u200b|\u200b(?![{_DIVIDED}])"
)
_said: set[str] = set()  # files whose letters were changed


class NotTextError(FormatError):
    """A file that is not text: `where` it is, the `problem`, the `remedy`."""

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        self.where, self.problem, self.remedy = where, problem, remedy
        super().__init__(f"{where}: {problem}; {remedy}")


def read_utf8(path: Path | str, otherwise: str = "") -> str:
    """The text of a file, without a byte order mark; compressed by gzip, bzip2 or xz or not.

    `otherwise` is the encoding of files in no Unicode encoding; without one they are errors.
    """
    return decode(read_bytes(path), path, otherwise)


def numbered_lines(path: Path | str) -> Iterator[tuple[str, str]]:
    """Each line of a text file that is not blank, after its place for messages, ``file:number``."""
    for number, line in enumerate(read_utf8(path).splitlines(), 1):
        if line.strip():
            yield f"{path}:{number}", line


def read_bytes(path: Path | str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise MissingError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise FormatError(f"{path}: is a directory; pass a text file") from error
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror}); make it readable") from error


def decode(content: bytes, path: Path | str, otherwise: str = "") -> str:
    """The text of a file's content, as `read_utf8`; `path` is its name for messages."""
    plain, _ = to_utf8(content, path)
    try:
        return plain.decode("utf-8")
    except UnicodeDecodeError as error:
        if otherwise:
            return plain.decode(otherwise)
        raise not_utf8(path, plain, error) from error


def not_utf8(path: Path | str, content: bytes, error: UnicodeDecodeError, first: int = 1) -> Speech3Error:
    """The error for text that is not UTF-8; `first` is the number of the first line of `content`."""
    number = first + content.count(b"\n", 0, error.start)
    return FormatError(f"{path}:{number}: not UTF-8 text ({error}); convert it, for instance with iconv")


def to_utf8(content: bytes, path: Path | str) -> tuple[bytes, str]:
    """Decompress and convert the content of a text file.

    Returns UTF-8 without byte order marks, if the content was in a Unicode encoding (else its bytes as they are); and
    what it was, for messages: ``gzip``, ``UTF-16``, or nothing if it was plain. Damaged text is an error.
    """
    kinds = []
    for _ in range(_MOST_LAYERS):
        if not (packed := _compression(content)):
            break
        kind, opened = packed
        try:
            content = opened(io.BytesIO(content)).read()
        except UNREADABLE as error:
            raise NotTextError(str(path), f"cannot be read ({error})", "copy it again") from error
        kinds.append(kind)
    head = content[:_HEAD]
    encoding = _encoding(head)
    if encoding:
        try:
            content = content.decode(encoding).encode()
        except UnicodeDecodeError as error:
            problem = f"is {_shown(encoding)}, but cut short or damaged ({error})"
            raise NotTextError(str(path), problem, "copy it again") from error
        kinds.append(_shown(encoding))
    else:
        _refuse_binary(head, path)
    if _MARK in content:  # in front, or where files were joined
        content = content.replace(_MARK, b"")
    if b"\0" in content:
        raise has_nul(path, content)
    return content, " and ".join(kinds)


def has_nul(path: Path | str, content: bytes, first: int = 1) -> NotTextError:
    """The error for a NUL byte in `content`; `first` is the number of the first line of it."""
    number = first + content.count(b"\n", 0, content.index(b"\0"))
    return NotTextError(f"{path}:{number}", "has NUL bytes: it is binary or damaged, not text", _OTHER_FILE)


@contextmanager
def open_text(path: Path) -> Iterator[tuple[IO[bytes], Callable[[], int]]]:
    """Open a text file to read it piece by piece: a stream of what `to_utf8` returns, and the bytes read so far.

    Bytes read are those of the file, compressed or not; 0 if that is not known. NUL bytes and byte order marks within
    the file, and what the file system and damaged files raise (`UNREADABLE`), are left to the caller.
    """
    with path.open("rb") as raw:
        yield text_stream(raw, path), raw.tell if raw.seekable() else (lambda: 0)


def check_standard_input(remedy: str) -> None:
    """Raise an error, with this remedy, if standard input is closed."""
    if sys.stdin is None or sys.stdin.closed:
        raise SettingError(f"-: standard input is closed; {remedy}")


def text_stream(raw: IO[bytes], path: Path) -> IO[bytes]:
    """The text of a stream as a stream of UTF-8, as `open_text`."""
    for _ in range(_MOST_LAYERS):
        head, raw = _peeked(raw)
        if not (packed := _compression(head)):
            break
        raw = packed[1](raw)
    head, raw = _peeked(raw)
    if encoding := _encoding(head):
        return io.BufferedReader(_Converted(raw, encoding), _HEAD)
    _refuse_binary(head, path)
    if head.startswith(_MARK):
        raw.read(len(_MARK))
    return raw


class _Prefixed(io.RawIOBase):
    """Bytes that were already read, followed by the rest of their stream."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._head[: len(buffer)] or self._rest.read(len(buffer))
        self._head = self._head[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


class _Converted(io.RawIOBase):
    def __init__(self, raw: IO[bytes], encoding: str) -> None:
        self._raw, self._decoder, self._held = raw, codecs.getincrementaldecoder(encoding)(), b""
        self._encoding = encoding

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            data = self._raw.read(len(buffer))
            try:
                self._held = self._decoder.decode(data, final=not data).encode()
            except UnicodeDecodeError as error:
                raise OSError(f"it is {_shown(self._encoding)}, but cut short or damaged") from error
            if not data and not self._held:
                return 0
        data, self._held = self._held[: len(buffer)], self._held[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


def _peeked(raw: IO[bytes]) -> tuple[bytes, IO[bytes]]:
    head = b""
    while len(head) < _HEAD and (more := raw.read(_HEAD - len(head))):
        head += more
    if raw.seekable() and not isinstance(raw, gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile):
        raw.seek(-len(head), io.SEEK_CUR)
        return head, raw
    return head, io.BufferedReader(_Prefixed(head, raw), _HEAD)


def _compression(head: bytes) -> tuple[str, Callable[[IO[bytes]], Any]] | None:
    if head.startswith(b"\x1f\x8b"):
        return "gzip", lambda stream: gzip.GzipFile(fileobj=stream)
    if head.startswith(b"BZh") and head[4:10] == b"1AY&SY":
        return "bzip2", bz2.BZ2File
    if head.startswith((b"\xfd7zXZ\0", b"\x5d\0\0")):
        return "xz", lzma.LZMAFile
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            zstd = importlib.import_module("compression.zstd")  # from Python 3.14
        except ImportError:
            return None
        return "zstd", zstd.ZstdFile
    return None


def _shown(encoding: str) -> str:
    return encoding.upper().removesuffix("-LE").removesuffix("-BE")


def _encoding(head: bytes) -> str:
    """The encoding of text that is not UTF-8, by its byte order mark or by where its NUL bytes are; empty if none."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" not in head or _binary(head)[0]:  # a space or an end of line of UTF-16 has one
        return ""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut in two
    except UnicodeDecodeError:
        pass
    else:
        few = head.count(b"\0") < _MIN_NUL * len(head)
        if few and not any(c < " " and c not in _SPACES for c in text.replace("\0", "")):
            return ""  # UTF-8 that was damaged; its letters in pairs are Chinese characters of UTF-16
    whole = head[: len(head) // 4 * 4]
    for encoding in ("utf-32-le", "utf-32-be"):
        if len(head) >= 4 and _plausible(whole, encoding):
            return encoding
    found = {encoding: _plausible(whole or head, encoding) for encoding in ("utf-16-le", "utf-16-be")}
    best = max(found, key=lambda encoding: found[encoding])
    return best if found[best] else ""


def _plausible(head: bytes, encoding: str) -> int:
    """How many spaces, ends of lines and ASCII letters the text has in this encoding; 0 if it is not text in it."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)  # a pair of surrogates may be cut in two
    except UnicodeDecodeError:
        return 0
    if any(unicodedata.category(c) in ("Cn", "Co", "Cs") or (c < " " and c not in _SPACES) for c in set(text)):
        return 0
    return sum(c.isascii() for c in text)


def _refuse_binary(head: bytes, path: Path | str) -> None:
    what, remedy = _binary(head)
    if what:
        raise NotTextError(str(path), f"is {what}, not text", remedy)
    if b"\0" in head:
        raise has_nul(path, head)


def foreign_content(head: bytes) -> tuple[str, str]:
    """What a file is that should be a recording or an archive, by its first bytes, and what to do; empty if unknown."""
    if packed := _compression(head):
        return f"compressed ({packed[0]})", "decompress it"
    what, remedy = _binary(head)
    if what.startswith("audio"):
        return "", ""
    return what, "pass the right file" if remedy == _OTHER_FILE else remedy.replace("a text file", "a file")


def _binary(head: bytes) -> tuple[str, str]:
    """What a file is that is not text, and what to do; empty if that is not known."""
    for start, kind, remedy in _BINARY:
        if head.startswith(start) and not head.startswith(b"\0B\0"):  # a B in UTF-16
            return kind, remedy
    if head.startswith((b"RIFF", b"RF64", b"FORM")) and head[8:12] in (b"WAVE", b"AIFF", b"AIFC", b"AVI "):
        return "audio (wav or aiff)", _OTHER_FILE
    if head.startswith(b"ID3") and head[3:4] < b" ":
        return "audio (mp3)", _OTHER_FILE
    if head[4:8] == b"ftyp":
        return "audio or video (mp4)", _OTHER_FILE
    if head[257:262] == b"ustar":
        return "a tar archive", _UNPACK
    if head[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "a web page", "download the file itself"
    return "", ""


def to_one_form(text: str) -> str:
    """A text in the form that all words have."""
    if text.isascii():
        return text
    text = _UNSEEN.sub("", text)
    return unicodedata.normalize("NFC", _FOLDED.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text))


def composed(text: str, path: Path | str) -> str:
    """The words of a file, or of a part of it, in one form; if that changes something, a line says so, once a file."""
    if text.isascii() or (changed := to_one_form(text)) == text:
        return text
    if str(path) not in _said:
        from speech3.runtime.reporting import say  # only here, since it loads rich

        _said.add(str(path))
        pairs = zip(text.split(), changed.split(), strict=False)
        word, read = next((pair for pair in pairs if pair[0] != pair[1]), (text, changed))
        if unseen := _UNSEEN.search(word):
            say(f"  {path}: invisible characters (U+{ord(unseen[0]):04X}) are left out, as in {read}")
        elif _FOLDED.search(word):
            say(f"  {path}: full-width letters and ligatures are read as ordinary letters (NFKC): {word} as {read}")
        else:
            say(f"  {path}: some letters are not in Unicode's composed form (NFC) and are read in it, as in {read}")
    return changed


def compatibility_words(words: Iterable[str]) -> dict[str, str]:
    """Words with letters that stand for others in Unicode (half-width kana, ㎏, Ⅷ), and the words that they look like.

    These are left as they are, since they may be meant.
    """
    return {
        word: unicodedata.normalize("NFKC", word)
        for word in words
        if not word.isascii() and any(map(_stands_for_another, word))
    }


def _stands_for_another(letter: str) -> bool:
    kind = unicodedata.decomposition(letter).partition(" ")[0]
    roman = "\u2160" <= letter <= "\u217f"
    return roman or (kind in _LOOKALIKE and unicodedata.category(letter)[0] in "LNS")
