"""Files are UTF-8 in every locale, and printing is never an error."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import speech3
from speech3.runtime.files import write_text

_MODES = {"open": 1, "read_text": None, "write_text": None, "fdopen": 1}  # temporary files are binary by default


def _is_text(call: ast.Call, name: str) -> bool:
    """Does this call open text? Modes are the argument after the path, or the first of a method of `Path`."""
    place = _MODES[name]
    if place is None:
        return True
    given = [*call.args, *(each.value for each in call.keywords if each.arg == "mode")]
    modes = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return not any("b" in mode and len(mode) <= 3 for mode in modes)


def _not_given(path: Path) -> list[str]:
    """Calls that would take the encoding of text from the locale."""
    found = []
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        module = getattr(getattr(function, "value", None), "id", "")
        if module in ("os", "wave", "tarfile", "zipfile", "webbrowser", "Image"):
            continue
        keys = {each.arg for each in call.keywords}
        if (
            name in ("run", "Popen", "check_output")
            and keys & {"text", "universal_newlines"}
            and "encoding" not in keys
        ):
            found.append(f"{path}:{call.lineno}: {name}")
        if name not in _MODES or "encoding" in keys or not _is_text(call, name):
            continue
        if name in ("read_text", "write_text") and (call.args or isinstance(function, ast.Name)):
            continue  # the functions of speech3.runtime.files and speech3.evaluate.text, which write and read UTF-8
        if name == "open" and isinstance(function, ast.Attribute) and re.search(r"'[rwa][+]?b'", ast.unparse(call)):
            continue
        found.append(f"{path}:{call.lineno}: {name}")
    return found


def test_no_text_file_is_opened_in_the_encoding_of_the_locale() -> None:
    root = Path(speech3.__file__).parent
    assert [each for path in sorted(root.rglob("*.py")) for each in _not_given(path)] == []


@pytest.fixture(scope="module")
def latin1(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of an ISO-8859-1 locale, made for the test."""
    if not shutil.which("localedef"):
        pytest.skip("needs localedef to make a locale that is not UTF-8")
    path = tmp_path_factory.mktemp("locale")
    name = path / "en_US.ISO-8859-1"
    done = subprocess.run(["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(name)], capture_output=True)
    if not name.is_dir():
        pytest.skip(f"localedef made no locale: {done.stderr.decode(errors='replace')}")
    kept = {
        key: value for key, value in os.environ.items() if key != "LANG" and not key.startswith(("LC_", "PYTHONIO"))
    }
    return kept | {"LOCPATH": str(path), "LC_ALL": name.name}


_PROGRAM = [sys.executable, "-c", "from speech3.cli import main; main()"]


def _run(environment: dict[str, str], folder: Path, *arguments: str) -> tuple[int, bytes, bytes]:
    done = subprocess.run([*_PROGRAM, *arguments], cwd=folder, env=environment, capture_output=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def chinese(tmp_path: Path) -> Path:
    write_text(tmp_path / "參考", "u1 你好 b\nu2 c\n")
    write_text(tmp_path / "hyp", "u1 你 b\nu2 c\n")
    return tmp_path


def test_a_locale_that_is_not_utf8_changes_nothing_in_files_and_pipes(latin1: dict[str, str], chinese: Path) -> None:
    status, said, errors = _run(latin1, chinese, "score", "參考", "hyp", "--details", "詳")
    assert status == 0, errors.decode()
    assert "你好" in said.decode("utf-8") and "WER 33.33" in said.decode("utf-8")
    assert "你好" in (chinese / "詳" / "confusions").read_text(encoding="utf-8")
    assert chinese / "詳" in set(chinese.iterdir())
    status, _, errors = _run(latin1, chinese, "score", "不", "hyp")
    assert (status, errors.decode("utf-8")) == (1, "error: 不: no such file\n")


def test_an_encoding_without_the_letters_gets_question_marks(chinese: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    status, said, errors = _run(environment, chinese, "score", "參考", "hyp")
    assert status == 0, errors.decode()
    assert "WER 33.33" in said.decode("ascii") and "??" in said.decode("ascii")


def test_a_terminal_gets_its_own_encoding(latin1: dict[str, str], tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    write_text(tmp_path / "ref", "u1 é 你\n")
    write_text(tmp_path / "hyp", "u1 è 你\n")
    primary, secondary = pty.openpty()
    done = subprocess.run(
        [*_PROGRAM, "score", "ref", "hyp"], cwd=tmp_path, env=latin1, stdout=secondary, stderr=subprocess.PIPE
    )
    os.close(secondary)
    said = b""
    while True:
        try:
            block = os.read(primary, 4096)
        except OSError:
            break
        if not block:
            break
        said += block
    os.close(primary)
    assert done.returncode == 0, done.stderr.decode()
    assert b"\xe9" in said and b"WER 50.00" in said and "é".encode() not in said
