"""Tells copies of tokendraw, as ``pip install ./core`` leaves, from this checkout.

As a script, for the Makefile: prints the options of pip that put the checkout back in the place of every copy.
"""

import filecmp
import importlib.util
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKSPACE = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["uv"]["workspace"]["members"]
PROJECTS = {
    init.parent.name: str(init.parents[2].relative_to(ROOT))
    for member in WORKSPACE
    for init in sorted(ROOT.glob(f"{member}/src/*/__init__.py"))
}
"""Import name to the folder of its distribution."""


def copies(projects: Mapping[str, str] = PROJECTS) -> Iterator[tuple[str, Path]]:
    """Yield the packages imported from elsewhere and the folder of each, without importing any."""
    for name, project in projects.items():
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).resolve().parent
            if folder != ROOT / project / "src" / name:
                yield name, folder


def stale(projects: Mapping[str, str] = PROJECTS) -> str:
    """Name the copies that differ from the checkout, and the command that mends each; "" without any."""
    sentences = []
    for name, folder in copies(projects):
        project = projects[name]
        source = ROOT / project / "src" / name
        files = {path.relative_to(top) for top in (source, folder) for path in top.rglob("*.py")}
        _, different, missing = filecmp.cmpfiles(source, folder, sorted(map(str, files)), shallow=False)
        if different or missing:
            files_differ = f"{len(different) + len(missing)} of {len(files)} files differ"
            sentences.append(
                f"'{name}' needs to be that of the checkout, found a copy in '{folder}', in which {files_differ}. "
                f"Run `make test`, or `pip install --editable ./{project}`."
            )
    return "\n".join(sentences)


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT / "tests" / "fakes"]
    print(*(f"--editable ./{PROJECTS[name]}" for name, _ in copies()))
