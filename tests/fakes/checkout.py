"""Tells copies of tokendraw, as ``pip install ./core`` leaves, from this checkout.

As a script, for the Makefile: prints the options of pip that put the checkout back in the place of every copy.
"""

import filecmp
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = {
    "tokendraw": "core",
    "tokendraw_testing": "testing",
    "tokendraw_bench": "bench",
    "tokendraw_native": "plugins/native",
    "tokendraw_triton_gumbel": "plugins/triton_gumbel",
    "tokendraw_flashinfer": "plugins/flashinfer",
    "tokendraw_aiter": "plugins/aiter",
    "tokendraw_sglang": "integrations/sglang",
    "tokendraw_transformers": "integrations/transformers",
    "tokendraw_vllm": "integrations/vllm",
}
"""Import name to the folder of its distribution."""


def copies(projects: Mapping[str, str] = PROJECTS) -> Iterator[tuple[str, Path]]:
    """Yield the packages imported from elsewhere and the folder of each, without importing any."""
    for name, project in projects.items():
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            found = Path(spec.origin).resolve().parent
            if found != ROOT / project / "src" / name:
                yield name, found


def stale(projects: Mapping[str, str] = PROJECTS) -> str:
    """Name the copies that differ from the checkout, and the command that mends each; "" without any."""
    sentences = []
    for name, found in copies(projects):
        project = projects[name]
        source = ROOT / project / "src" / name
        files = {path.relative_to(top) for top in (source, found) for path in top.rglob("*.py")}
        _, different, missing = filecmp.cmpfiles(source, found, sorted(map(str, files)), shallow=False)
        if different or missing:
            files_differ = f"{len(different) + len(missing)} of {len(files)} files differ"
            sentences.append(
                f"'{name}' needs to be that of the checkout, found a copy in '{found}', in which {files_differ}. "
                f"Run `make test`, or `pip install --editable ./{project}`."
            )
    return "\n".join(sentences)


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT / "tests" / "fakes"]
    print(*(f"--editable ./{PROJECTS[name]}" for name, _ in copies()))
