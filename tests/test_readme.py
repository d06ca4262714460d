"""The README is true: its Python runs, and its commands print what it shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
PYTHON = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
COMMANDS = dict(re.findall(r"```console\n\$ (.*?)\n(.*?)```", README, re.DOTALL))

cpu_only = pytest.mark.skipif(torch.cuda.is_available(), reason="the README shows a machine without a GPU")


def run(command):
    """Run a shell line of the README with the interpreter of this test."""
    words = shlex.split(command)
    assert words[0] == "tokendraw"
    return subprocess.run(
        [sys.executable, "-m", "tokendraw", *words[1:]],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


def test_the_python_examples_run_in_the_order_in_which_they_stand(capsys):
    names = {}
    exec(compile(PYTHON, "README.md", "exec"), names)
    assert names["out"].token_ids.shape == (3,)
    assert capsys.readouterr().out.startswith("native\nsample on cpu: native")


@cpu_only
@pytest.mark.parametrize("command", ["tokendraw list", "tokendraw resolve --explain"])
def test_a_command_prints_what_the_readme_shows(command):
    assert run(command) == COMMANDS[command]


def test_generate_continues_its_prompt_and_repeats_itself():
    """Its words come from the documentation of the running Python, so the README's own hold for one version."""
    (command,) = [line for line in COMMANDS if line.startswith("tokendraw generate")]
    text = run(command)
    assert text.startswith("The import statement")
    assert len(text.split()) > 20
    assert text == run(command)


def test_every_file_that_the_readme_links_to_is_there():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (Path(__file__).parent.parent / link).exists()] == []


def test_the_properties_that_it_shows_are_those_of_the_kit():
    from tokendraw.testing._run import PROPERTIES

    block = README.split("$ tokendraw check native --device cpu --quick\n")[1].split("```")[0]
    shown = re.findall(r"^(\S.*?) {2,}(?:passed|not run) ", block, re.MULTILINE)
    assert len(shown) >= 5
    assert set(shown) <= {prop.name for prop in PROPERTIES}
