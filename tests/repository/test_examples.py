"""examples/ are distributions: installable, found by tokendraw, with passing tests."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import pages
from pages import install, run_python, run_with
from tokendraw_testing.filter_check import line_names

EXAMPLE = Path(__file__).parents[2] / "examples" / "top_n_sigma"
PAGE = pages.text_of("docs/add-a-filter.md")
SHOWN = dict(pages.commands(PAGE))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder with the installed example, beside the plain environment."""
    folder = tmp_path_factory.mktemp("site")
    install(EXAMPLE, folder)
    return folder


def test_the_example_is_shown_as_the_page_has_it(site):
    result = run_with(site, "tokendraw", "show", "top_n_sigma_sample")
    assert (result.stdout, result.stderr) == (SHOWN["tokendraw show top_n_sigma_sample"], "")


def test_the_example_is_listed_with_the_shipped_filters(site):
    listed = run_with(site, "tokendraw", "list").stdout.partition("\nfilter ")[2]
    states = dict(re.findall(r"^(\w+) +(\w+)  ", listed, re.MULTILINE))
    names = ("epsilon_cutoff", "eta_cutoff", "p_less", "top_n_sigma", "top_n_sigma_sample")
    assert states == {"state": "moments"} | dict.fromkeys(names, "available") or states == dict.fromkeys(
        names, "available"
    )


def test_the_code_of_the_page_is_the_example():
    shown, draw, test = pages.blocks(PAGE, "python")
    module = (EXAMPLE / "top_n_sigma_filter.py").read_text(encoding="utf-8")
    assert module.partition('"""\n\n')[2] == shown
    assert len(shown.splitlines()) <= 12
    (entry_point,) = pages.blocks(PAGE, "toml")
    assert entry_point in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    assert "top_n_sigma_sample" in draw
    assert test in (EXAMPLE / "tests" / "test_filter.py").read_text(encoding="utf-8")


def test_the_python_of_the_page_prints_the_kept_tokens(site):
    draw = pages.blocks(PAGE, "python")[1]
    (printed,) = re.findall(r"print\(.*\)  # (.*)", draw)
    result = run_python(draw, site)
    assert (result.stdout, result.stderr) == (f"{printed}\n", "")


@pytest.mark.slow
def test_the_check_of_the_page_prints_what_the_page_shows(site):
    (command,) = [line for line in SHOWN if line.startswith("tokendraw check")]
    assert command in (EXAMPLE / "README.md").read_text(encoding="utf-8")
    result = run_with(site, *shlex.split(command), folder=EXAMPLE.parents[1])
    assert re.fullmatch(pages.pattern(SHOWN[command]), result.stdout), result.stdout
    assert (result.stderr, result.returncode) == ("", 0)


def test_the_page_explains_every_line_of_a_check():
    table = PAGE.partition("| line | fails")[2]
    named = [name for cell, _ in pages.rows(table, 2) for name in re.findall(r"`([^`]+)`", cell)]
    assert named[: len(line_names())] == list(line_names())
    assert named == [name.removesuffix(", native") for name in line_names(["native"])]


@pytest.mark.slow
def test_the_tests_of_the_example_pass(site):
    result = run_with(site, "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_python_of_the_example_s_readme_runs(site):
    (code,) = re.findall(
        r"```python\n(.*?)```", (EXAMPLE / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    result = run_python(f"{code}\nprint(list(out.token_ids.shape))", site)
    assert (result.stdout, result.stderr) == ("[2]\n", "")


def test_an_import_of_the_example_loads_no_torch(site):
    code = "import sys, top_n_sigma_filter; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=pages.environment(site)
    )
    assert result.stdout == "False\n"


def test_every_file_named_in_the_readme_exists():
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    named = [*re.findall(r"\| `([^`]+)` \|", readme), *re.findall(r"\]\((\.[^)#]+)\)", readme)]
    assert len(named) == 5
    assert [path for path in named if not (EXAMPLE / path).exists()] == []
