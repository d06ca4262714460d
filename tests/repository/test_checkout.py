"""The tests run this checkout: pytest refuses copies in the environment, and make replaces copies."""

import shutil
import subprocess
import sys

import pytest

import checkout
import pages

ROOT = checkout.ROOT


@pytest.fixture
def copy(tmp_path):
    """A copy of the native sampler, as after ``pip install``."""
    folder = tmp_path / "tokendraw_native"
    shutil.copytree(
        ROOT / "plugins/native/src/tokendraw_native", folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder


def test_every_distribution_of_the_checkout_is_looked_at():
    folders = {
        path.parent for part in ("*", "plugins/*", "integrations/*") for path in ROOT.glob(f"{part}/src")
    }
    assert {ROOT / project for project in checkout.PROJECTS.values()} == folders


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def environment_of_make(folder, script):
    """A fake environment for make, whose programs are a script with the words that come before the arguments."""
    programs = folder / "venv" / "bin"
    programs.mkdir(parents=True)
    for name, words in {"python": "", "tokendraw": "-m tokendraw"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script.format(words=words, python=sys.executable)}\n")
        (programs / name).chmod(0o755)
    (folder / "venv" / "compiled").mkdir()
    for stamp in (".runtime", ".tools", "compiled/.ready"):
        (folder / "venv" / stamp).touch()
    return f"VENV={folder / 'venv'}"


@needs_make
@pytest.mark.parametrize(("target", "mended"), [("demo", True), ("test", True), ("test", False)])
def test_make_mends_copies_before_it_runs_anything(target, mended, copy, tmp_path):
    """The environment's programs are stand-ins with a log of command lines."""
    log, path = tmp_path / "log", tmp_path if mended else ""
    script = f'if [ "$1" = tests/fakes/checkout.py ]; then PYTHONPATH="{path}" exec "{{python}}" "$@"; fi\n'
    script += f'echo "$(basename "$0") $*" >> "{log}"'
    command = ["make", target, environment_of_make(tmp_path, script)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
    first, *rest = log.read_text().splitlines()
    if mended:
        assert first.startswith("python -m pip install ")
        assert first.endswith(" --no-deps --editable ./plugins/native")
        first = rest[0]
    assert first.startswith({"demo": "tokendraw list", "test": "python -m pytest"}[target])


@needs_make
@pytest.mark.slow
def test_make_demo_shows_which_sampler_serves_and_draws_a_text(tmp_path):
    """The words come from the documentation of the running Python."""
    command = ["make", "demo", "--no-print-directory"]
    command += [environment_of_make(tmp_path, 'exec "{python}" {words} "$@"')]
    environ = pages.environment()
    printed = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert printed.startswith("name ")
    assert "\nsample on cpu: native\n" in printed
    assert len(printed.partition("\nThe import statement")[2].split()) > 20
