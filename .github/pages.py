"""Collects the pages of the documentation site from the repository (a hook of MkDocs; see mkdocs.yml).

The site's pages are the README.md files where they lie, and those in .github/. Links between pages and to pictures are
adapted; a link to a file that is not part of the site, such as a module, becomes plain text. The reference of the
Python API has one page for each package whose ``__init__`` says in ``__all__`` what is public.
"""

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", ".github/*.md", "conf/*.md", "recipes/**/*.md", "speech3/*/README.md", "tests/benchmarks/*.md")
PLACED = (
    "recipes/README.md",
    "recipes/ALIGNMENT.md",
    "recipes/any/",
    "recipes/digits/",
    "recipes/shuzi/",
)  # named in mkdocs.yml
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
DEFINITION = re.compile(r"^\[([\w-]+)\]: (\S+)\n", re.MULTILINE)
PICTURES = ".github/pictures/"


def pages() -> dict[str, str]:
    """Path in the repository -> path in the site, of every page."""
    found = sorted({path.relative_to(ROOT).as_posix() for pattern in PAGES for path in ROOT.glob(pattern)})
    return {page: _place(page) for page in found}


def _place(page: str) -> str:
    if page == "README.md":
        return "index.md"
    return page.removeprefix(".github/").lower() if page.startswith(".github/") else page


def with_links(text: str, page: str, places: dict[str, str]) -> str:
    """The text of a page with its links as they are in the site, reference-style links written out."""
    targets = dict(DEFINITION.findall(text))
    text = DEFINITION.sub("", text)
    for name, target in targets.items():
        text = text.replace(f"][{name}]", f"]({target})")

    def link(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        place = there.removeprefix(PICTURES) if there.startswith(PICTURES) else places.get(there)
        if place is None:
            return label
        return f"{picture}[{label}]({posixpath.relpath(place, posixpath.dirname(places[page]) or '.')}{hash_}{anchor})"

    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def api() -> dict[str, str]:
    """Path in the site -> text, of the pages of the API reference."""
    found = {}
    for init in [ROOT / "speech3/__init__.py", *sorted(ROOT.glob("speech3/*/__init__.py"))]:
        names = _exported(init)
        if names:
            package = init.parent.relative_to(ROOT).as_posix().replace("/", ".")
            lines = [f"# {package}", "", ast.get_docstring(ast.parse(init.read_text("utf-8"))) or ""]
            lines += [text for name in names for text in ("", f"::: {package}.{name}")]
            found[f"api/{package}.md"] = "\n".join(lines) + "\n"
    return found


def _exported(init: Path) -> list[str]:
    """The names of ``__all__``, or those that a package imports under `TYPE_CHECKING` (`speech3.runtime.door`)."""
    names: list[str] = []
    for node in ast.parse(init.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            names += [a.asname or a.name for each in node.body if isinstance(each, ast.ImportFrom) for a in each.names]
    return sorted(names)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the corpora and the packages in the navigation."""
    corpora = [page for page in pages() if page.startswith("recipes/") and not page.startswith(PLACED)]
    lists = {"RECIPES": corpora, "API": list(api())}
    config.nav = _filled(config.nav, lists)
    return config


def _filled(nav: object, lists: dict[str, list[str]]) -> object:
    if isinstance(nav, list):
        return [_filled(item, lists) for item in nav]
    if isinstance(nav, dict):
        return {title: _filled(item, lists) for title, item in nav.items()}
    return lists.get(nav, nav) if isinstance(nav, str) else nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to the pictures, which are what MkDocs has found itself."""
    places = pages()
    for page, place in places.items():
        text = (ROOT / page).read_text("utf-8")
        files.append(File.generated(config, place, content=with_links(text, page, places)))
    for place, text in api().items():
        files.append(File.generated(config, place, content=text))
    return files
