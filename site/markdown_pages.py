"""The pages of the site: Markdown files of the checkout, their groups and links, and the reference from docstrings.

Plain Python, so that the tests of the repository need none of the site's tools.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
INDEX = "docs/README.md"
PAGE_PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "plugins/*/*.md",
    "integrations/*/README.md",
    "examples/*/README.md",
    *("testing/README.md", "bench/README.md", "engine_ops/*.md"),
    "benchmarks/results/*.md",
)
IMAGE_PATTERNS = ("docs/**/*.svg", "docs/**/*.png")
CORE = "core/src/tokendraw"
DISTRIBUTIONS = {"tokendraw.testing": "testing/src", "tokendraw.bench": "bench/src"}
"""Modules whose names another distribution defines, with its sources."""

_CODE_OR_LINK = re.compile(
    r"^ *(?P<fence>```|~~~).*?^ *(?P=fence) *$|`+[^`\n]+`+|\]\((?P<link>[^)\s]+)\)", re.MULTILINE | re.DOTALL
)
_OF_A_NAME = "    options: {heading_level: 2}\n"
_OF_A_MODULE = "    options: {members: [], show_root_heading: false, show_root_toc_entry: false}\n"


def find(patterns: tuple[str, ...]) -> list[str]:
    """List the files of a checkout that match any of the patterns, by their path in the checkout."""
    return [path.relative_to(ROOT).as_posix() for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def repository_url() -> str:
    """Return the web address of the repository."""
    project = tomllib.loads((ROOT / "core/pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])


def navigation(pages: list[str], index: str, reference: list[str]) -> list[object]:
    """Arrange every page: the front page, the groups of the documentation, packages, reference, results.

    :param pages: all pages, by path in the checkout.
    :param index: the text of ``docs/README.md``: headings of groups, each with a table of linked pages.
    :param reference: the pages of the reference.
    :raises ValueError: a page of ``docs/`` has no row in the index.
    """
    groups: dict[str, list[str]] = {}
    for line in index.splitlines():
        if heading := re.fullmatch(r"## (.+)", line):
            group = groups.setdefault(heading[1], [])
        elif page := re.match(r"\| \[[^\]]+\]\(([^)#]+\.md)\)", line):
            group.append(posixpath.normpath(posixpath.join(posixpath.dirname(INDEX), page[1])))
    listed = {page for group in groups.values() for page in group}
    others = [page for page in pages if page not in listed and page != INDEX]
    if missing := [page for page in others if page.startswith("docs/")]:
        raise ValueError(f"{INDEX!r} needs a row for each page of docs/, found none for {missing}. Add it.")
    return [
        {"Home": ["README.md", {"All pages": INDEX}]},
        *({heading: group} for heading, group in groups.items() if group),
        {"Packages": [page for page in others if "/" in page and not page.startswith("benchmarks/")]},
        {"API": reference},
        {"Results": [{Path(page).stem: page} for page in pages if page.startswith("benchmarks/")]},
        {"Project": [page for page in pages if "/" not in page and page != "README.md"]},
    ]


def with_links_of_the_site(text: str, page: str, pages: Mapping[str, object], url: str) -> str:
    """Return a page whose links to folders and files that are no pages lead to the repository's web address.

    :param page: path of the page in the checkout, by which ``pages`` has what is on the site.
    :param url: address of the repository's files, ``.../blob/main``. Folders are at ``tree`` in place of ``blob``.
    :raises ValueError: a link leads to nothing in the checkout.
    """

    def of_the_site(match: re.Match[str]) -> str:
        path, hash_, anchor = (match["link"] or "").partition("#")
        if not path or re.match(r"[a-z]+:", path):  # code, a heading, an address
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if target in pages:
            return match[0]
        place = ROOT / target
        if not place.exists():
            raise ValueError(
                f"link {match['link']!r} of {page!r} needs a file in the checkout, found none. Mend the link."
            )
        readme = posixpath.join(target, "README.md")
        if readme in pages:
            return f"]({os.path.relpath(readme, posixpath.dirname(page) or '.')}{hash_}{anchor})"
        address = url.replace("/blob/", "/tree/") if place.is_dir() else url
        return f"]({address}/{target}{hash_}{anchor})"

    return _CODE_OR_LINK.sub(of_the_site, text)


def public_modules() -> list[str]:
    """List the public modules of the core: all that the kit and the bench may import."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (faces,) = [c for c in tools["importlinter"]["contracts"] if "use the public faces" in c["name"]]
    private = faces["forbidden_modules"]
    paths = [p for p in (ROOT / CORE).iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
    names = [f"tokendraw.{path.stem}" for path in sorted(paths)]
    return ["tokendraw", *(name for name in names if name not in private and "._" not in name)]


def source_of(module: str) -> Path:
    """Return the file of a module, of the package in another distribution where it repeats that package's names."""
    if module in DISTRIBUTIONS:
        return ROOT / DISTRIBUTIONS[module] / module.replace(".", "_") / "__init__.py"
    path = ROOT / CORE / Path(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def public_names(source: str, module: str) -> dict[str, str]:
    """Map the public names of a module to the modules that define them.

    These are the names in ``__all__`` if it has one, those that it imports ``as`` themselves, or those of its own
    definitions.
    """
    tree = ast.parse(source)
    imports = [
        (str(node.module), alias)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    homes = {alias.asname or alias.name: home for home, alias in imports}
    defined = {node.name: None for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
    if listed := defined.get("__all__"):
        return {name: homes.get(name, module) for name in ast.literal_eval(listed)}
    exported = {alias.asname: home for home, alias in imports if alias.asname}
    return exported or {name: module for name in defined if not name.startswith("_")}


def reference() -> dict[str, str]:
    """Make the pages of the reference, by path: an index, and one page a public module of the core.

    A name that several modules export is described where it is exported first; the others link to it.
    """
    described: dict[tuple[str, str], str] = {}
    pages: dict[str, str] = {}
    rows: list[str] = []
    for module in public_modules():
        source = source_of(module).read_text(encoding="utf-8")
        package = module.replace(".", "_") if module in DISTRIBUTIONS else module
        names = public_names(source, package)
        parts = [f"# {module} {{#{module}}}\n", f"::: {package}\n{_OF_A_MODULE}"]
        for name, home in sorted(names.items(), key=lambda item: item[0].lower()):
            if name.startswith("__"):
                continue
            first = described.setdefault((home, name), f"{package}.{name}")
            if first == f"{package}.{name}":
                parts.append(f"::: {first}\n{_OF_A_NAME}")
            else:
                parts.append(f"## {name} {{#{package}.{name}}}\n\nThe same as [`{first}`][{first}].\n")
        pages[f"reference/{module}.md"] = "\n".join(parts)
        summary = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].replace("``", "`")
        rows.append(f"| [{module}]({module}.md) | {summary} |")
    table = "\n".join(["| module | holds |", "|---|---|", *rows])
    intro = "The public modules of tokendraw, from their docstrings. Names without a place here are private."
    return {"reference/index.md": f"# API reference\n\n{intro}\n\n{table}\n"} | pages
