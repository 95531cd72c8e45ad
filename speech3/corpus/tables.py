"""Read the text files of a data directory line by line; whatever is wrong becomes a `Fault`, not an exception."""

import re
from dataclasses import dataclass
from pathlib import Path

from speech3.io.text import NotTextError, to_utf8

Utterances = tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """One fault of a data directory, described for the user, and what `speech3 fix` does about it."""

    kind: str  # a few words, the same for all faults of a kind; faults are counted by it
    where: str  # file, or file:line
    subject: str  # utterance, recording or speaker
    problem: str
    remedy: str
    drop: Utterances = ()  # utterances that `fix` leaves out
    repair: str = ""  # what `fix` does if it need not leave out an utterance
    end_s: float | None = None  # the end that `fix` gives the segment `subject`
    mend: str = ""  # the recording of which `fix` writes a mended copy
    warning: bool = False  # worth checking, but nothing will fail because of it

    def __str__(self) -> str:
        subject = f"{self.subject}: " if self.subject else ""
        return f"{'warning: ' if self.warning else ''}{self.where}: {subject}{self.problem}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line ``key value``; the value may be empty."""

    line: int
    value: str


@dataclass(frozen=True)
class Table:
    """The lines of one file by key; of several lines with the same key, the first."""

    path: Path
    entries: dict[str, Entry]

    def where(self, key: str) -> str:
        """``file:line`` of a key."""
        return f"{self.path}:{self.entries[key].line}"


def read_table(path: Path, faults: list[Fault]) -> Table | None:
    """Read ``key value`` lines; None if there is no such file.

    LF, CRLF or CR ends a line, spaces and tabs separate fields, a byte order mark is ignored.
    Faults (bytes that are not UTF-8, duplicate keys) are appended to `faults`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        faults.append(
            Fault(
                "unreadable file",
                str(path),
                "",
                f"cannot be read ({error.strerror})",
                "make it a readable file",
                repair="taken as missing",
            )
        )
        return None
    if (text := _unicode(path, data, faults)) is None:
        return None
    entries: dict[str, Entry] = {}
    for number, raw in enumerate(re.split(rb"\r\n|\n|\r", text), 1):
        key, value = _split(_decode(raw, path, number, faults))
        if not key:
            continue
        if key in entries:
            faults.append(_duplicate(path, number, key, value, entries[key]))
        else:
            entries[key] = Entry(number, value)
    return Table(path, entries)


def _split(line: str) -> tuple[str, str]:
    fields = line.split(None, 1)
    return (fields[0] if fields else "", fields[1].rstrip() if len(fields) > 1 else "")


def _unicode(path: Path, data: bytes, faults: list[Fault]) -> bytes | None:
    """The content as UTF-8, where it is in a Unicode encoding; None if it is not text."""
    try:
        text, was = to_utf8(data, path)
    except NotTextError as error:
        faults.append(Fault("not text", error.where, "", error.problem, error.remedy, repair="taken as missing"))
        return None
    if was:
        remedy = "save it as plain UTF-8"
        faults.append(Fault("not UTF-8", str(path), "", f"is {was} text", remedy, repair="converted to UTF-8"))
    return text


def _decode(raw: bytes, path: Path, number: int, faults: list[Fault]) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        text = raw.decode("latin-1")  # never fails: every byte is a Latin-1 character
        key, byte = _split(text)[0], raw[error.start]
        problem = f"byte 0x{byte:02x} (number {error.start + 1} of the line) is not UTF-8"
        remedy = f"convert the file, for instance: iconv -f latin1 -t utf-8 {path}"
        faults.append(Fault("not UTF-8", f"{path}:{number}", key, problem, remedy, repair="line read as Latin-1"))
        return text


def _duplicate(path: Path, number: int, key: str, value: str, first: Entry) -> Fault:
    where = f"{path}:{number}"
    if value.split() == first.value.split():
        problem = f"occurs a second time, as in line {first.line}"
        return Fault("duplicate id", where, key, problem, "remove one of the lines", repair="second line dropped")
    problem = f"occurs a second time, with another value than in line {first.line}"
    return Fault(
        "duplicate id", where, key, problem, "remove the wrong one", repair=f"line {first.line} kept, this one dropped"
    )
