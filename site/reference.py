"""Pages of the reference: one for each public module of the core, made from its docstrings."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

CORE = "core/src/tokendraw"
DISTRIBUTIONS = {"tokendraw.testing": "testing/src", "tokendraw.bench": "bench/src"}
"""Modules whose names another distribution defines, with its sources."""

_OPTIONS = "    options:\n      heading_level: 2\n"
_MODULE = (
    "    options:\n      members: []\n      show_root_heading: false\n      show_root_toc_entry: false\n"
)


def public_modules(root: Path) -> list[str]:
    """List the public modules of the core: all that the kit and the bench may import."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contracts = settings["importlinter"]["contracts"]
    (private,) = [
        contract["forbidden_modules"] for contract in contracts if "use the public faces" in contract["name"]
    ]
    paths = sorted((root / CORE).iterdir())
    names = [
        f"tokendraw.{path.stem}" for path in paths if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    private += ["tokendraw.paged_kv", "tokendraw.sm90_w4"]  # they only say where they went
    return ["tokendraw", *(name for name in names if name not in private and "._" not in name)]


def source_of(root: Path, module: str) -> Path:
    """Return the file of a module, of the package in another distribution where it repeats that package's names."""
    if module in DISTRIBUTIONS:
        return root / DISTRIBUTIONS[module] / module.replace(".", "_") / "__init__.py"
    path = root / CORE / Path(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def public_names(source: str, module: str) -> dict[str, str]:
    """Map the public names of a module to the modules that define them.

    These are the names in ``__all__`` if it has one, those that it imports ``as`` themselves, or those of its own
    definitions.

    :param source: its text.
    :param module: its name.
    """
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name: (str(node.module), alias.asname is not None)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    defined: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if names == ["__all__"] and node.value is not None:
                listed = ast.literal_eval(node.value)
                return {name: imported.get(name, (module, True))[0] for name in listed}
            defined += names
    exported = {name: home for name, (home, is_exported) in imported.items() if is_exported}
    return exported or {name: module for name in defined if not name.startswith("_")}


def summary(source: str) -> str:
    """Return the first sentence of a module's docstring, in Markdown."""
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return docstring.partition("\n")[0]


def make_pages(root: Path) -> dict[str, str]:
    """Make the pages of the reference, by path: an index, and one page a module.

    A name that several modules export is described where it is exported first; the others link to it.
    """
    described: dict[tuple[str, str], str] = {}
    pages: dict[str, str] = {}
    rows: list[str] = []
    for module in public_modules(root):
        source = source_of(root, module).read_text(encoding="utf-8")
        package = module.replace(".", "_") if module in DISTRIBUTIONS else module
        names = public_names(source, package)
        parts = [f"# {module} {{#{module}}}\n", f"::: {package}\n{_MODULE}"]
        for name, home in sorted(names.items(), key=lambda item: item[0].lower()):
            if name.startswith("__"):
                continue
            first = described.setdefault((home, name), f"{package}.{name}")
            if first == f"{package}.{name}":
                parts.append(f"::: {first}\n{_OPTIONS}")
            else:
                parts.append(f"## {name} {{#{package}.{name}}}\n\nThe same as [`{first}`][{first}].\n")
        pages[f"reference/{module}.md"] = "\n".join(parts)
        rows.append(f"| [{module}]({module}.md) | {summary(source).replace('``', '`')} |")
    table = "\n".join(["| module | holds |", "|---|---|", *rows])
    intro = "The public modules of tokendraw, from their docstrings. Names without a place here are private."
    return {"reference/index.md": f"# API reference\n\n{intro}\n\n{table}\n"} | pages
