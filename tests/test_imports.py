"""The rooms of the house: imports go one way, through doors, and no file is long.

A package imports only packages that are listed before it in CONTRIBUTING.md, and only the names that their `__init__`
exports.
"""

import ast
import graphlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROAD = re.findall(r"^\| `(\w+)` \|", (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
MODULES = sorted((ROOT / "speech3").rglob("*.py"))
ROOMS = [room for room in ROAD if room not in ("errors", "cli")]  # `errors` is one file; nothing imports `cli`


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "speech3").parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> Iterator[ast.ImportFrom | ast.Import]:
    """Each import from speech3, including those in functions and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "speech3") or (
            isinstance(node, ast.Import) and any(alias.name.startswith("speech3.") for alias in node.names)
        ):
            yield node


def rooms_imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and room of each import."""
    for node in imports_of(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name.split(".")[1]) for a in node.names if a.name.startswith("speech3."))
        elif node.module == "speech3":
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in ROAD)
        else:
            yield node.lineno, str(node.module).split(".")[1]


def test_table_has_every_room() -> None:
    rooms = {room_of(path) for path in MODULES}
    assert sorted(rooms - {"__init__", "__main__"}) == sorted(ROAD)


def test_imports_follow_the_order_of_the_table() -> None:
    against = []
    for path in MODULES:
        if (room := room_of(path)) in ROAD:
            against += [
                f"{path.relative_to(ROOT)}:{line}: {room} imports {other}"
                for line, other in rooms_imported(path)
                if ROAD.index(other) > ROAD.index(room)
            ]
    assert not against, "\n".join(against)


def test_nothing_is_imported_from_behind_a_door() -> None:
    behind = []
    for path in MODULES:
        for node in imports_of(path):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for module in named:
                parts = module.split(".")
                if len(parts) > 2 and parts[1] != room_of(path) and module != "speech3.runtime.door":
                    behind.append(f"{path.relative_to(ROOT)}:{node.lineno}: {module}")
    assert not behind, "\n".join(behind)


@pytest.mark.parametrize("room", ROOMS)
def test_a_door_says_what_its_room_is_for_and_exports_what_is_there(room: str) -> None:
    package = importlib.import_module(f"speech3.{room}")
    assert package.__doc__ and len(package.__doc__.splitlines()) >= 3
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_the_engine_knows_nothing_of_speech() -> None:
    known = {other for path in (ROOT / "speech3" / "engine").rglob("*.py") for _, other in rooms_imported(path)}
    assert known <= {"engine", "errors", "runtime", "config", "io", "models"}


def test_files_are_short() -> None:
    long = [str(path) for path in MODULES if len(path.read_text(encoding="utf-8").splitlines()) > 800]
    assert not long


def test_no_modules_import_each_other() -> None:
    """Neither directly nor in a circle; imports in functions do not count, except in the engine."""
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = ast.walk(tree) if room_of(path) == "engine" else iter(tree.body)
        found = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        graph[name_of(path)] = {n.module or "" for n in found} | {
            f"{n.module}.{a.name}" for n in found for a in n.names
        }
    # A door imports nothing until it is asked.
    doors = {name_of(path) for path in MODULES if path.name == "__init__.py"}
    graph = {module: (others & graph.keys()) - doors for module, others in graph.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises an error if there is a circle
