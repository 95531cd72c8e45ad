"""Print the files and lines that lead through the code: `python tests/tour.py train` or `recipe`.

The lists are those of .github/ARCHITECTURE.md, under the headings that begin with the name of the tour.
"""

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / ".github" / "ARCHITECTURE.md"
HEADINGS = {
    "train": "From `speech3 train` to the shard's loop",
    "recipe": "From `speech3 recipe digits` to a word error rate",
}


@dataclass(frozen=True)
class Stop:
    """A file of the house, the functions or classes to read in it, and what they do."""

    path: Path
    names: list[str]
    what: str


def stops(tour: str) -> list[Stop]:
    """The stops of a tour, in order."""
    _, section = PAGE.read_text(encoding="utf-8").split(f"## {HEADINGS[tour]}\n")
    found = []
    for item in re.split(r"\n\d+\. ", re.split(r"\n## |\n<!--", section)[0])[1:]:
        link, names, what = re.fullmatch(r"\[`[^`]+`\]\(([^)]+)\): ([^;]+); (.*)", item.strip(), re.DOTALL).groups()
        found.append(Stop((PAGE.parent / link).resolve(), re.findall(r"`([^`]+)`", names), " ".join(what.split())))
    return found


def line_of(path: Path, name: str) -> int:
    """The line on which a function, class or method (`Class.method`) begins; KeyError if there is none."""
    body, line = ast.parse(path.read_text(encoding="utf-8")).body, 0
    for part in name.split("."):
        nodes = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        body, line = nodes[part].body, nodes[part].lineno
    return line


def main() -> None:
    if sys.argv[1:2] not in ([tour] for tour in HEADINGS):
        sys.exit(f"usage: python tests/tour.py {'|'.join(HEADINGS)}")
    for number, stop in enumerate(stops(sys.argv[1]), 1):
        print(f"{number}. {stop.what}")
        for name in stop.names:
            print(f"   {stop.path.relative_to(ROOT)}:{line_of(stop.path, name)}  {name}")


if __name__ == "__main__":
    main()
