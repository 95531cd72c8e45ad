"""The door of a package: its public names, each imported when it is first used.

A package's `__init__` lists its public names as imports under `TYPE_CHECKING`, where type checkers and editors read
them (`extract as extract` tells them that a name is exported, PEP 484), and its `__getattr__` is `door(__file__)`. So
`from speech3.features import extract` needs only the module that defines `extract`, and `speech3 --help` imports
neither PyTorch nor numba.
"""

import ast
import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path


@cache
def names_of(file: str) -> dict[str, tuple[str, str]]:
    """Module and name in it of each name that ``__init__.py`` imports under `TYPE_CHECKING`; a module has no name."""
    found = {}
    for block in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for node in block.body:
                assert isinstance(node, ast.ImportFrom) and node.module
                found.update({alias.asname or alias.name: (node.module, alias.name) for alias in node.names})
    return found


def door(file: str) -> Callable[[str], object]:
    """`__getattr__` of a package (PEP 562) whose ``__init__.py`` is `file`."""
    room = Path(file).parent.name

    def public(name: str) -> object:
        if name == "__all__":
            return list(names_of(file))
        try:
            module, original = names_of(file)[name]
        except KeyError:
            raise AttributeError(f"the package {room} has no public name {name!r}") from None
        if module.endswith(f".{room}"):  # a module of this package
            return importlib.import_module(f"{module}.{original}")
        return getattr(importlib.import_module(module), original)

    return public
