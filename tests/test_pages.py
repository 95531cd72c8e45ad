"""The pages: their links, what README.md promises, and the documentation site."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import terminal_picture
import tour

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", ".github/*.md", "conf/*.md", "recipes/**/*.md", "speech3/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    prose = _prose(page)
    defined = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", prose, re.MULTILINE))
    assert set(re.findall(r"\]\[([\w-]+)\]", prose)) == set(defined)
    for target in [*re.findall(r"\]\(([^)\s]+)\)", prose), *defined.values()]:
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page}: no file {target}"
        assert not anchor or anchor in _anchors(there), f"{page}: no heading {target}"


@pytest.mark.parametrize(("name", "most"), [("train", 12), ("recipe", 9)])
def test_tours_name_functions_that_exist_and_few_files(name: str, most: int) -> None:
    stops = tour.stops(name)
    assert 5 < len(stops) <= most and len({stop.path for stop in stops}) == len(stops)
    for stop in stops:
        assert stop.names and stop.what.endswith(".")
        assert all(tour.line_of(stop.path, each) > 0 for each in stop.names)


def test_readme_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 80


def test_python_of_readme_prints_words_and_times(experiment: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    recording = min((experiment / "data" / "test" / "wav").iterdir())
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "digits").symlink_to(experiment)
    done = subprocess.run(
        [sys.executable, "-c", example.replace("s40-000.wav", recording.name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    text, *lines = done.stdout.splitlines()
    assert len(lines) == len(text.split())
    assert all(re.fullmatch(r"\d+\.\d\d to \d+\.\d\d s  \w+  \d+%", line) for line in lines)


def test_picture_of_readme_ends_in_error_rates() -> None:
    rows = re.findall(r"<text [^>]*>([^<]*)<", (ROOT / ".github/pictures/digits.svg").read_text(encoding="utf-8"))
    assert rows[0] == "$ speech3 recipe digits" and rows[0][2:] in README
    assert [re.sub(r"[\d.]+", "0", row) for row in rows[-2:]] == [
        "digits dnn WER 0 [0, 0]",
        "digits sat_dnn WER 0 [0, 0]",
    ]


def test_picture_shows_what_the_command_printed() -> None:
    command = [sys.executable, "-c", "print('a < b'); print('x' * 150)"]
    lines = terminal_picture.record(command)
    assert [line.text for line in lines] == ["a < b", "x" * 150]
    rows = re.findall(r"<text [^>]*>([^<]*)<", terminal_picture.picture(["demo"], lines))
    assert rows == ["$ demo", "a &lt; b", "x" * 100, "x" * 50]
    with pytest.raises(subprocess.CalledProcessError):
        terminal_picture.record([sys.executable, "-c", "raise SystemExit(3)"])


def test_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """`mkdocs build --strict`: the navigation is complete, and links and docstrings are understood."""
    pytest.importorskip("mkdocs", reason="no MkDocs: pip install '.[docs]'")
    pytest.importorskip("mkdocstrings", reason="no mkdocstrings: pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", ROOT / ".github/mkdocs.yml", "-d", tmp_path]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "speech3.Recognizer" in (tmp_path / "api/speech3/index.html").read_text(encoding="utf-8")
    rooms = [
        f"speech3.{path.parent.name}"
        for path in (ROOT / "speech3").glob("*/__init__.py")
        if "= door(" in path.read_text()
    ]
    assert rooms and {path.parent.name for path in tmp_path.glob("api/*/index.html")} >= set(rooms)
