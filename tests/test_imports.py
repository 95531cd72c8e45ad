"""A package of speech3 imports only packages that are listed before it in CONTRIBUTING.md."""

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROAD = re.findall(r"^\| `(\w+)` \|", (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
MODULES = sorted((ROOT / "speech3").rglob("*.py"))


def room(module: str) -> str:
    return module.split(".")[1]


def rank(name: str) -> int:
    """The place of a package; `lexicon` and `lm` are one room, `language`, in DESIGN.md."""
    return ROAD.index("lexicon" if name == "lm" else name)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and package of each import from speech3, including imports in functions and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "speech3":
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in ROAD)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("speech3."):
            yield node.lineno, room(node.module or "")
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, room(a.name)) for a in node.names if a.name.startswith("speech3."))


def test_the_table_has_every_room() -> None:
    rooms = {path.relative_to(ROOT / "speech3").parts[0].removesuffix(".py") for path in MODULES}
    assert sorted(rooms - {"__init__", "__main__"}) == sorted(ROAD)


def test_imports_follow_the_road() -> None:
    against = []
    for path in MODULES:
        of = path.relative_to(ROOT / "speech3").parts[0].removesuffix(".py")
        if of in ROAD:
            against += [
                f"{path.relative_to(ROOT)}:{line}: {of} imports {other}"
                for line, other in imported(path)
                if rank(other) > rank(of)
            ]
    assert not against, "\n".join(against)


def test_the_engine_knows_nothing_of_speech() -> None:
    known = {other for path in (ROOT / "speech3" / "engine").rglob("*.py") for _, other in imported(path)}
    assert known <= {"engine", "errors", "config", "io", "models"}


def test_files_are_short() -> None:
    long = [str(path) for path in MODULES if len(path.read_text(encoding="utf-8").splitlines()) > 800]
    assert not long


def test_no_modules_of_the_engine_import_each_other() -> None:
    """Neither directly nor in a circle; imports for types and inside functions count."""
    graph: dict[str, set[str]] = {}
    for path in (ROOT / "speech3" / "engine").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        graph[module] = {node.module or "" for node in found} | {f"{n.module}.{a.name}" for n in found for a in n.names}
    graph = {module: others & graph.keys() for module, others in graph.items()}
    assert "speech3.engine.pool" in graph["speech3.engine.shared"]
    graphlib.TopologicalSorter(graph).prepare()  # raises an error if there is a circle
