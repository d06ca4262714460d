"""The README is true: its Python runs, and its commands print what it shows."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from installing import NATIVE_ALONE

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PYTHON = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
COMMANDS = dict(re.findall(r"```console\n\$ (.*?)\n(.*?)```", README, re.DOTALL))
GENERATE = [line for line in COMMANDS if line.startswith("tokendraw generate")]
"""Plain, and with speculation."""

cpu_only = pytest.mark.skipif(torch.cuda.is_available(), reason="the README shows a machine without a GPU")


def run(command, stderr=subprocess.PIPE):
    """Run a shell line of the README with the interpreter of this test; what it writes to stdout."""
    words = shlex.split(command)
    assert words[0] == "tokendraw"
    path = os.pathsep.join(filter(None, [str(NATIVE_ALONE), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "tokendraw", *words[1:]],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": path},
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


@pytest.mark.slow
def test_generate_continues_its_prompt_and_repeats_itself():
    """Its words come from the documentation of the running Python, so the README's own hold for one version."""
    command, _ = GENERATE
    text = run(command)
    assert text.startswith("The import statement")
    assert len(text.split()) > 20
    assert text == run(command)


@pytest.mark.slow
@cpu_only
def test_generate_speculates_as_the_readme_shows():
    """Its words and counts too hold for one version of Python; their form holds for all."""
    _, command = GENERATE
    printed = run(command, stderr=subprocess.STDOUT)
    assert printed == run(command, stderr=subprocess.STDOUT)
    for shown in (printed, COMMANDS[command]):
        first, *text, counted, accepted = shown.splitlines()
        assert first == "verified by native on cpu: best available, priority 0"
        assert text[0].startswith("A class is ")
        evaluations = int(re.match(r"17 tokens from (\d+) evaluations? of the target, ", counted)[1])
        assert counted.endswith(f", where plain sampling takes 17: {17 / evaluations:.2f} times fewer")
        places = re.findall(r"(?:1st|2nd|3rd|4th) (\d+) of (\d+) \((\d+) %\)", accepted)
        assert len(places) == 4
        assert evaluations + sum(int(n) for n, _, _ in places) == 17
        assert all(f"{100 * int(n) / int(of):.0f}" == share for n, of, share in places)
    coupled = f"{command} --verify-mode coupled"
    assert run(coupled) == run(command.partition(" --speculate")[0])


def test_every_file_that_the_readme_links_to_is_there():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (Path(__file__).parents[2] / link).exists()] == []


def test_the_properties_that_it_shows_are_those_of_the_kit():
    from tokendraw.testing import properties

    block = README.split("$ tokendraw check native --device cpu --quick\n")[1].split("```")[0]
    shown = re.findall(r"^(\S.*?) {2,}(?:passed|not run) ", block, re.MULTILINE)
    assert len(shown) >= 5
    assert set(shown) <= {prop.name for prop in properties()}
