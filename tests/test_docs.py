"""docs/ is true: its commands run in the order in which they stand and print what it shows, and its Python runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from installing import NATIVE_ALONE, OFFLINE

DOCS = Path(__file__).parent.parent / "docs"
GUIDE = (DOCS / "writing-a-plugin.md").read_text(encoding="utf-8")
WRITTEN = re.findall(r"^\$ (.*)\n((?:(?!\$ |```).*\n)*)", GUIDE, re.MULTILINE)
"""Every command of the guide, with the lines that it shows below."""


def run(line, folder):
    """Run a line of the guide in ``folder``: offline, and with what it installs kept there."""
    words = shlex.split(line)
    site = folder / "site"
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    environ |= {"PYTHONPATH": f"{NATIVE_ALONE}{os.pathsep}{site}", "OMP_NUM_THREADS": "1"}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environ[name] = value
    if words[0] == "pip":
        words.remove("--editable")  # no link is followed in a folder of PYTHONPATH
        words += ["--quiet", *OFFLINE, "--target", str(site)]
    return subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=folder,
        env=environ,
        timeout=400,
    )


def pattern(shown):
    """What the guide shows, with ``...`` for whatever a machine or a version decides: rests of lines, or lines."""
    lines = [
        "(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
        for line in shown.splitlines()
    ]
    return "".join(lines)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the guide shows a machine without a GPU")
def test_the_commands_run_in_order_and_print_what_the_guide_shows(tmp_path):
    assert [line.split()[:2] for line, _ in WRITTEN[:3]] == [
        ["tokendraw", "new"],
        ["pip", "install"],
        ["tokendraw", "list"],
    ]
    for line, shown in WRITTEN:
        result = run(line, tmp_path)
        assert result.returncode == 0, (line, result.stdout, result.stderr)
        assert re.fullmatch(pattern(shown), result.stdout), (line, result.stdout)
        assert result.stderr == "", line


def test_the_python_is_a_test_that_passes(tmp_path):
    (source,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "test_guide.py").write_text(source, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.stdout.splitlines()[-1].startswith("1 passed"), result.stdout


def test_every_line_of_the_kit_that_the_guide_names_exists():
    from tokendraw.testing._run import PROPERTIES

    known = {prop.name for prop in PROPERTIES}
    (table,) = re.findall(r"tests it by \|\n(.*?)\n\n", GUIDE, re.DOTALL)
    named = {name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[3])}
    assert named - {"--device"} <= known


def test_every_capability_stands_in_the_table_of_the_guide():
    from tokendraw._validation import FIELDS

    (table,) = re.findall(r"tests it by \|\n(.*?)\n\n", GUIDE, re.DOTALL)
    named = {word for row in table.splitlines() for word in re.findall(r"`(\w+)", row.split("|")[1])}
    assert set(FIELDS) <= named


def test_every_file_that_the_guide_links_to_is_there():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", GUIDE) if "://" not in link]
    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []


def test_the_python_of_the_page_on_routing_runs():
    page = (DOCS / "routing.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(source, names)
    assert names["metadata"].row_kinds is names["row_kinds"]


def test_the_page_on_routing_states_the_rule_and_the_figures_that_it_links_to():
    from tokendraw._splitting import LEAST_ROWS

    page = (DOCS / "routing.md").read_text(encoding="utf-8")
    assert f"at least {LEAST_ROWS} rows stay" in page
    measured = (DOCS / "../benchmarks/results/h200_routing.md").read_text(encoding="utf-8")
    for rows, two, whole in re.findall(r"^\| (\d+) \| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE):
        line = (
            rf"\| {rows} x 151936 bfloat16 \| {two.replace(',', '')} \(\d+\) \| {whole.replace(',', '')} \("
        )
        assert re.search(line, measured), rows
