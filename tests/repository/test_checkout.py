"""The tests run this checkout: pytest refuses copies in the environment, and make replaces copies."""

import os
import shutil
import subprocess
import sys

import pytest

import checkout

ROOT = checkout.ROOT


@pytest.fixture
def copy(tmp_path):
    """A copy of the native sampler, as after ``pip install``."""
    folder = tmp_path / "tokendraw_native"
    shutil.copytree(
        ROOT / "plugins/native/src/tokendraw_native", folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder


def pytest_with(folder):
    """Collect a test in a process with ``folder`` first on the path."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [*command, "tests/calls/test_processes.py"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_the_tests_run_this_checkout():
    assert checkout.stale() == ""


def test_every_distribution_of_the_checkout_is_looked_at():
    folders = {
        path.parent for part in ("*", "plugins/*", "integrations/*") for path in ROOT.glob(f"{part}/src")
    }
    assert {ROOT / project for project in checkout.PROJECTS.values()} == folders


@pytest.mark.slow
def test_an_equal_copy_is_as_good(copy):
    assert pytest_with(copy.parent).returncode == 0


@pytest.mark.slow
def test_a_differing_copy_is_refused_with_a_remedy(copy):
    files = len(list(copy.rglob("*.py")))
    (copy / "draw.py").write_text("# from last week\n")
    (copy / "filters.py").unlink()
    result = pytest_with(copy.parent)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert (
        f"ERROR: 'tokendraw_native' needs to be that of the checkout, found a copy in '{copy}', in which "
        f"2 of {files} files differ. Run `make test`, or `pip install --editable ./plugins/native`.\n"
    ) in result.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["demo", "test", "test-all", "bench"])
@pytest.mark.parametrize("mended", [True, False])
def test_make_mends_copies_before_it_runs_anything(target, mended, copy, tmp_path):
    """The environment's programs are stand-ins with a log of command lines."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    log = tmp_path / "log"
    path = tmp_path if mended else ""
    stand_in = (
        "#!/bin/sh\n"
        f'if [ "$1" = tests/fakes/checkout.py ]; then PYTHONPATH="{path}" exec "{sys.executable}" "$@"; fi\n'
        f'echo "$(basename "$0") $*" >> "{log}"\n'
    )
    for name in ("python", "tokendraw"):
        (programs / name).write_text(stand_in)
        (programs / name).chmod(0o755)
    (tmp_path / "venv" / "compiled").mkdir()
    for stamp in (".runtime", ".tools", "compiled/.ready"):
        (tmp_path / "venv" / stamp).touch()
    command = ["make", target, f"VENV={tmp_path / 'venv'}"]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
    first, *rest = log.read_text().splitlines()
    if mended:
        assert first.startswith("python -m pip install ")
        assert first.endswith(" --no-deps --editable ./plugins/native")
        first = rest[0]
    assert "pip install" not in first
    assert first.startswith(
        {"demo": "tokendraw list", "bench": "python benchmarks"}.get(target, "python -m pytest")
    )
