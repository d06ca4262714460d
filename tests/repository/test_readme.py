"""The README agrees with the code: running Python, and output of commands."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

import pages
from pages import OFFLINE, ROOT

README = pages.text_of("README.md")
PYTHON = "\n".join(pages.blocks(README, "python"))
COMMANDS = dict(pages.commands(README))
MAKE, INSTALL, PLUGIN = (
    [line.partition("  #")[0].strip() for line in block.splitlines()] for block in pages.blocks(README, "")
)

cpu_only = pytest.mark.skipif(torch.cuda.is_available(), reason="the README shows a machine without a GPU")
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def test_the_first_screen_has_a_reason_a_figure_and_an_example():
    """On the first screen a reader meets a reason, a figure and an example."""
    assert len(README.splitlines()) < 130
    first_screen = README.splitlines()[:35]
    assert any("FlashInfer" in line and " us" in line for line in first_screen)
    assert "out = sampler.sample(logits, metadata)" in first_screen


def test_the_python_runs(capsys):
    names = {}
    exec(compile(PYTHON, "README.md", "exec"), names)
    assert names["out"].token_ids.shape == (3,)
    assert names["out"].logprobs.logprobs.shape == (3, 6)
    assert capsys.readouterr().out.startswith("sample on cpu: native")


@cpu_only
def test_the_explanation_is_the_documented_one():
    command = "tokendraw resolve --explain"
    assert pages.run(command) == COMMANDS[command]


@pytest.fixture(scope="module")
def drawn():
    """Output of the README's ``tokendraw generate``."""
    (command,) = [line for line in COMMANDS if line.startswith("tokendraw generate")]
    return pages.run(command)


@pytest.mark.slow
def test_generate_continues_the_prompt(drawn):
    """The words come from the documentation of the running Python, so the README's text holds for one version."""
    assert drawn.startswith("The import statement")
    assert len(drawn.split()) > 20


@pytest.fixture
def environment_of_make(tmp_path):
    """A fake environment for make, with programs of the current environment."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for name, command in {"python": "", "tokendraw": "-m tokendraw "}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command}"$@"\n')
        (programs / name).chmod(0o755)
    (tmp_path / "venv" / "compiled").mkdir()
    for stamp in (".runtime", ".tools", "compiled/.ready"):
        (tmp_path / "venv" / stamp).touch()
    return tmp_path / "venv"


@pytest.mark.slow
@cpu_only
@needs_make
def test_make_demo_shows_which_sampler_serves_and_draws_the_same_text(environment_of_make, drawn):
    demo, _ = MAKE
    result = subprocess.run(
        [*demo.split(), "--no-print-directory", f"VENV={environment_of_make}"],
        cwd=ROOT,
        env=pages.environment(),
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=120,
    )
    listed, resolved = pages.run("tokendraw list"), COMMANDS["tokendraw resolve --explain"]
    assert result.stdout.startswith(f"{listed}\n{resolved}\n{drawn.rstrip()}")


@needs_make
def test_make_test_runs_the_tests(environment_of_make):
    _, test = MAKE
    result = subprocess.run(
        [*test.split(), "--dry-run", f"VENV={environment_of_make}"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert f"{environment_of_make}/bin/python -m pytest " in result.stdout


def test_make_help_lists_the_targets():
    # Not as a part of the make that may run this test, which would name its folders.
    environ = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    result = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True, env=environ
    )
    targets = re.findall(r"^([\w-]+):.*  ## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [line.split()[0] for line in result.stdout.splitlines()] == targets


@pytest.mark.slow
def test_installed_distributions_run_the_readme_python(tmp_path):
    """Install without a network into a folder before the checkout on the path."""
    for line in INSTALL:
        command = f"{line} --quiet --target {tmp_path} {' '.join(OFFLINE)}"
        subprocess.run(f"'{sys.executable}' -m {command}", shell=True, cwd=ROOT, check=True, timeout=240)
    (tmp_path / "example.py").write_text(f"{PYTHON}\nprint(tokendraw.__file__)\n", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, tmp_path / "example.py"],
        env=pages.environment(tmp_path),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert result.stdout.startswith("sample on cpu: native")
    assert result.stdout.endswith(f"{tmp_path}/tokendraw/__init__.py\n")


def test_the_commands_for_plugins_are_commands_of_the_guide():
    guide = [line for line, _ in pages.commands(pages.text_of("docs/plugin-authors.md"))]
    assert [line for line in guide if line in PLUGIN] == PLUGIN


def test_the_figures_equal_the_tables():
    """Of each backend the cell of float32 logits with top-k and top-p."""
    figure = {name: text for name, _, _, text in pages.rows(README, 4)}
    (native,) = re.findall(
        r"([\d.]+) ms on 2 CPU threads, where a sort-based pipeline takes ([\d.]+) ms", figure["native"]
    )
    cpu = [
        row[2:4]
        for row in pages.rows(pages.text_of("benchmarks/results/cpu.md"), 6)
        if row[:2] == ["zipf 1.0", "k = 50, p = 0.9"]
    ]
    assert cpu == [[native[1], native[0]]]

    (gumbel,) = re.findall(r"([\d.]+) us, ([\d.]+) times a read", figure["triton-gumbel"])
    design = {
        row[2]: (row[7], row[8])
        for row in pages.rows(pages.text_of("benchmarks/results/h200_design.md"), 10)
        if row[:2] + row[3:5] == ["1024", "151936", "both", "gaussian"]
    }
    assert design["float32"][0] == f"{gumbel[0]} ({gumbel[1]}x)"
    first_screen = [row[1:] for row in pages.rows(README, 3) if row[1].endswith(" us")]
    assert first_screen == [
        [f"{design[dtype][column].partition(' ')[0]} us" for dtype in ("float32", "bfloat16")]
        for column in (0, 1)
    ]

    exact, cut = re.findall(r"([\d,]+) us", figure["flashinfer"])
    ways = {
        row[0]: row[7].partition(" ")[0]
        for row in pages.rows(pages.text_of("benchmarks/results/h200_flashinfer.md"), 9)
    }
    assert ways["top_k_first: top_k_renorm_probs, top_p_sampling_from_probs"] == exact.replace(",", "")
    assert ways["top_k_first: cake_sampling.top_k_top_p_sampling_from_probs"] == cut
