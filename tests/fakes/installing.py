"""Distributions that are installed for a test, for real, without a network and without touching this environment."""

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NATIVE_ALONE = Path(__file__).parent / "native_alone"
"""A folder for PYTHONPATH: of the samplers in this environment, an interpreter then finds native and no other."""
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
"""Options of pip: what the project needs, hatchling included, is in this environment already."""


def install(project: Path, site: Path) -> None:
    """Build ``project`` and install it into the folder ``site``, which holds its ``dist-info`` afterwards."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        *OFFLINE,
        "--target",
        str(site),
        str(project),
    ]
    subprocess.run(command, check=True, timeout=120)


@contextlib.contextmanager
def importable(site: Path) -> Iterator[None]:
    """Put a folder that was installed into on the path of this process; take its modules out again afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            here = f"{site}{os.sep}"
            for name, module in list(sys.modules.items()):
                if (getattr(module, "__file__", None) or "").startswith(here):
                    del sys.modules[name]


def run_with(site: Path, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a module of this interpreter, such as ``tokendraw list``, with what is in ``site`` and native."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    return subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        env=environ | {"PYTHONPATH": f"{NATIVE_ALONE}{os.pathsep}{site}"},
        **options,
    )
