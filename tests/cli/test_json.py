"""``--json`` of every command: one object, with the keys of json_keys.txt."""

import json
import re
from pathlib import Path

import click
import numpy as np
import pytest

from command_line import ARGUMENTS, OFF, be_on, call
from fake_candidates import FLASHINFER, LAPTOP
from fake_dists import EVERYTHING, plugin
from tokendraw.cli import drawing as _drawing
from tokendraw.cli import main

TABLE = Path(__file__).parent / "json_keys.txt"
SECTIONS = dict(
    re.findall(r"^\[([^\n]+)\]\n(.*?)\n\n", TABLE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
)
"""The keys by command line; a command alone has the arguments of ARGUMENTS."""
ELSEWHERE = {"host": "resolve", "candidates": "list", "candidate": "list", "resolution": "resolve"}
"""Objects of several commands, with the one whose keys the table has."""
BY_NAME = {
    "cases",
    "choice",
    "counts",
    "expected_failures",
    "heavy_imports",
    "need",
    "operations",
    "params",
    "variables",
}
"""Objects whose keys are names of operations, fields or variables."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Working folder with a file of logits, and a small language model."""
    monkeypatch.chdir(tmp_path)
    np.save("logits.npy", np.zeros((2, 5), np.float32))
    monkeypatch.setattr(_drawing, "documentation", lambda: ["The cat sat on the mat."])


def keys(command, value, path=""):
    """The keys of each object, by the path to it; of a list's objects those of the first."""
    if isinstance(value, list):
        value = value[0] if value else None
    name = path.rpartition(".")[2]
    if isinstance(value, dict) and value and name not in BY_NAME and ELSEWHERE.get(name, command) == command:
        yield f"{path}: {' '.join(value)}".removeprefix(": ")
        for key, inner in value.items():
            yield from keys(command, inner, f"{path}.{key}".removeprefix("."))


@pytest.mark.parametrize("line", SECTIONS)
def test_the_object_of_a_command_has_the_keys_of_the_table(line):
    name, *given = line.split()
    found = json.loads(call(name, *(given or ARGUMENTS[name]), "--json").stdout)
    assert (found["schema_version"], found["error"]) == (1, None)
    assert [*keys(name, found)] == SECTIONS[line].splitlines()


def test_the_table_has_every_command():
    assert {line.split()[0] for line in SECTIONS} == set(main.list_commands(click.Context(main)))


def error_of(*arguments):
    result = call(*arguments, "--json")
    assert result.exit_code == 1
    return json.loads(result.stdout)


def test_a_result_that_is_an_error_stands_with_the_error_in_one_object(dists, monkeypatch):
    dists.add_plugin("greedy", plugin("greedy", capabilities=EVERYTHING))
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING.replace("'counter'", "'launch'")))
    options = ("--device", "cpu", "--quick", "--only", "distribution", "--jobs", "1")
    checked = error_of("check", "greedy", *options)
    assert checked["error"] == "0 passed, 1 failed, 0 refused, 0 not run."
    timed = error_of("bench", *ARGUMENTS["bench"][:-1], "acme")
    assert timed["error"] == "Nothing could be timed. Read the reasons of the entries."
    (entry,) = timed["cells"][0]["entries"].values()
    assert (entry["us"], entry["reason"]) == (None, "it does not serve seeded rows")
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native,greedy,acme")
    found = error_of("doctor")
    assert (found["error"], found["chosen"]) == ("A program gets no sampler here.", None)
    be_on(monkeypatch, LAPTOP, (FLASHINFER, OFF))
    listed = error_of("list")
    assert len(listed["candidates"]) == 2
    assert listed["error"] == (
        "No installed sampler can serve the operation 'sample' here. Read the reasons of the candidates."
    )
