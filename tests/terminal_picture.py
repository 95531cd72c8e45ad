"""A picture of a terminal for README.md: runs a command and draws what it printed as an animated SVG.

    python tests/terminal_picture.py .github/pictures/digits.svg speech3 recipe digits --out exp/digits

The text is the command's own, line by line. Long waits are shortened: a wait of t seconds is shown for
0.05 sqrt(t) + 0.03 s. Viewers without animations show the end of the output.
"""

import itertools
import math
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLUMNS, ROWS = 100, 18
FONT, CHAR, LINE, MARGIN = 12, 7.23, 17, 14
RESULT = re.compile(r"\S+ \S+ (WER|CER) ")
HOLD_S = 6.0  # how long the end is shown before the animation starts again

STYLE = """
text { font: %dpx ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #c9d1d9; white-space: pre }
.prompt { fill: #7ee787 } .result { fill: #ffffff; font-weight: bold } .progress { fill: #8b949e }
@media (prefers-reduced-motion: no-preference) {
"""


@dataclass(frozen=True)
class Printed:
    """A line of output and when it came, in seconds since the command began."""

    at_s: float
    text: str


def record(command: list[str]) -> list[Printed]:
    """Run a command; its standard output and standard error, line by line.

    Raises ``subprocess.CalledProcessError`` if it fails, since a picture of a failed run is of no use.
    """
    began, lines = time.monotonic(), []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", file=sys.stderr)
            lines.append(Printed(time.monotonic() - began, line.rstrip("\n")))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return lines


def wrapped(lines: list[Printed]) -> list[Printed]:
    """The rows of the terminal: longer lines continue in the next row."""
    return [
        Printed(line.at_s, line.text[start : start + COLUMNS])
        for line in lines
        for start in range(0, max(1, len(line.text)), COLUMNS)
    ]


def picture(command: list[str], lines: list[Printed]) -> str:
    """An SVG in which the rows appear one after the other and scroll as in a terminal."""
    rows = wrapped([Printed(0.0, "$ " + " ".join(command)), *lines])
    waits = [math.sqrt(max(0.0, after.at_s - before.at_s)) for before, after in itertools.pairwise(rows)]
    shown = list(itertools.accumulate([0.0, *(0.05 * wait + 0.03 for wait in waits)]))
    total = shown[-1] + HOLD_S
    # One animation scrolls the rows: a step for each row that does not fit. Another, one a row, makes it appear.
    scrolls, appears = [], []
    for index, at in enumerate(shown):
        percent = 100 * at / total
        before, from_here = f"0%, {percent:.2f}% {{ opacity: 0 }}", f"{percent + 0.01:.2f}%, 100% {{ opacity: 1 }}"
        if index >= ROWS:
            scrolls.append(f"{percent:.2f}% {{ transform: translateY({-(index - ROWS + 1) * LINE}px) }}")
        appears.append(
            f"@keyframes r{index} {{ {before} {from_here} }}\n.r{index} {{ animation: r{index} {total:.1f}s infinite }}"
        )
    last = -max(0, len(rows) - ROWS) * LINE
    motion = "\n".join(
        [
            f"@keyframes scroll {{ 0% {{ transform: none }} {' '.join(scrolls)} }}",
            f".all {{ animation: scroll {total:.1f}s step-end infinite }}",
            *appears,
        ]
    )
    texts = [
        f'<text class="r{index} {_kind(row.text)}" y="{(index + 1) * LINE - 5}">{escape(row.text, quote=False)}</text>'
        for index, row in enumerate(rows)
    ]
    width, height = round(COLUMNS * CHAR), ROWS * LINE
    label = escape("; ".join(row.text for row in rows if _kind(row.text) in ("prompt", "result")))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
            f'viewBox="0 0 {width + 2 * MARGIN} {height + 2 * MARGIN}" width="{width + 2 * MARGIN}">',
            f"<style>{STYLE % FONT}{motion}\n}}</style>",
            '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>',
            f'<svg x="{MARGIN}" y="{MARGIN}" width="{width}" height="{height}">',
            f'<g class="all" style="transform: translateY({last}px)">',
            *texts,
            "</g></svg></svg>",
        ]
    )


def _kind(row: str) -> str:
    if row.startswith("$ "):
        return "prompt"
    if RESULT.match(row):
        return "result"
    return "progress" if "/s, " in row else "line"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python tests/terminal_picture.py OUT.svg COMMAND ...")
    Path(sys.argv[1]).write_text(picture(sys.argv[2:], record(sys.argv[2:])) + "\n", encoding="utf-8")
