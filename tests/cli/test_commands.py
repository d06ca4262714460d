"""Commands of other distributions: discovery, ``--help``, calls, and failures without harm to other commands."""

import json
import re
import subprocess
import sys

import importlib_metadata
import numpy as np
import pytest

import pages
import tokendraw.commands
from command_line import NATIVE_ON_CPU, be_on, call
from fake_candidates import LAPTOP, NATIVE
from tokendraw.cli.app import OWNERS

OWN = ["list", "show", "resolve", "doctor", "check", "bench", "sample", "generate", "new"]
GREETING = """
import sys

import click

from tokendraw.commands import GuardedCommand, json_option, print_json

print("a banner of the module")


@click.command(cls=GuardedCommand, short_help="Say hello.")
@click.argument("name")
@json_option
def hello(name, as_json):
    if name == "nobody":
        from tokendraw import InvalidParameterError

        raise InvalidParameterError("'name' needs somebody, found nobody. Name one.")
    print_json({"hello": name}) if as_json else click.echo(f"hello {name}")


@click.group(short_help="Two greetings.")
def both():
    pass


both.add_command(hello)
number = 7
"""


@pytest.fixture
def install(dists, monkeypatch):
    """``install({"hello": "fake_greeting:hello"})`` adds a distribution with commands."""
    be_on(monkeypatch, LAPTOP, (NATIVE,))

    def add(commands, name="acme-tools", version="1.0", source=GREETING):
        groups = "".join(
            ["[tokendraw.commands]\n", *(f"{key} = {value}\n" for key, value in commands.items())]
        )
        dists.add(name, version, modules={"fake_greeting": source}, entry_points=groups)

    return add


def listed(heading="Commands"):
    """Map the names below a heading of ``--help`` to their text."""
    section = call("--help").stdout.partition(f"\n{heading}:\n")[2].split("\n\n")[0]
    entries = re.findall(r"^  (\S+) +(.*(?:\n {3,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def in_doctor():
    return json.loads(call("doctor", "--no-build", "--json").stdout)


def test_a_command_of_another_distribution_is_one_of_tokendraw(install):
    install({"hello": "fake_greeting:hello", "greet": "fake_greeting:both"})
    assert call("list").exit_code == 0
    assert call("check", "--list").exit_code == 0
    assert "fake_greeting" not in sys.modules  # it is imported where it is called
    result = call("hello", "world")
    assert (result.exit_code, result.stdout) == (0, "hello world\n")
    assert result.stderr == "a banner of the module\n"  # stdout is the command's own
    assert call("greet", "hello", "world").stdout == "hello world\n"
    refused = call("hello", "nobody", "--json")
    assert refused.exit_code == 2
    error = {"schema_version": 1, "error": "'name' needs somebody, found nobody. Name one."}
    assert json.loads(refused.stdout) == error
    commands = listed()
    assert list(commands) == [*OWN, "greet", "hello"]
    assert (commands["greet"], commands["hello"]) == ("Two greetings.", "Say hello.")
    assert "\n  hello  acme-tools 1.0\n" in call("doctor", "--no-build").stdout


def test_the_command_in_the_docstring_of_the_face_works(install):
    _, _, rest = tokendraw.commands.__doc__.partition("::\n")
    source, _, _ = rest.partition("\nThe module is imported")
    lines = [line.removeprefix("    ") for line in source.splitlines()]
    entry = next(line for line in lines if "acme_tools:" in line).removeprefix("#").strip()
    name, _, value = entry.partition(" = ")
    install({name: value.strip('"').replace("acme_tools", "fake_greeting")}, source="\n".join(lines))
    assert json.loads(call(name, "--json").stdout)["states"]["available"] >= 1
    assert call(name).stdout.startswith("state ")


def test_a_reserved_name_and_one_that_two_claim_are_not_used(install):
    install({"hello": "fake_greeting:hello", "list": "fake_greeting:hello"})
    install({"hello": "fake_greeting:both"}, name="other-tools", version="2.0")
    assert listed("Commands that cannot be used")["list"].endswith(
        "the name 'list' is reserved for the distribution tokendraw, found it in acme-tools 1.0; rename the entry point"
    )
    why = "the name 'hello' is claimed by acme-tools 1.0 and other-tools 2.0; uninstall one of them.\n"
    assert call("hello", "world").stderr.endswith(f" cannot be used: {why}")


LOADING = "loading 'fake_greeting:hello' raised "
BROKEN = {
    f"{LOADING}ModuleNotFoundError: No module named 'nonesuch' (fake_greeting.py:1)": (
        "hello",
        "import nonesuch",
    ),
    f"{LOADING}SystemExit: gone (fake_greeting.py:1)": ("hello", "raise SystemExit('gone')"),
    "'fake_greeting:number' needs to be a click command, found int": ("number", GREETING),
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_broken_command_says_why_and_harms_no_other(install, why):
    name, source = BROKEN[why]
    install({"hello": f"fake_greeting:{name}"}, source=source)
    assert list(listed()) == OWN
    assert listed("Commands that cannot be used") == {"hello": f"acme-tools 1.0: {why}"}
    called = call("hello", "world", "--loud", "--json")
    message = f"'hello' of acme-tools 1.0 cannot be used: {why}."
    assert (called.exit_code, called.stderr.splitlines()[-1]) == (1, message)
    assert json.loads(called.stdout) == {"schema_version": 1, "error": message}
    found = in_doctor()
    reasons = {command["name"]: command["reason"] for command in found["commands"]}
    assert reasons == {"bench": None, "check": None, "hello": why, "new": None}
    assert {"problem": f"The command {message}", "mend": None} in found["findings"]
    assert call("list").exit_code == 0


@pytest.mark.parametrize(("name", "part"), [("check", "testing"), ("new", "testing"), ("bench", "bench")])
def test_a_missing_distribution_is_named_with_the_command_to_install(monkeypatch, name, part):
    everything = importlib_metadata.distributions

    def distributions(**context):
        owners = {*OWNERS.values()}
        return (dist for dist in everything(**context) if dist.metadata["Name"] not in owners)

    monkeypatch.setattr(importlib_metadata, "distributions", distributions)
    message = (
        f"{name!r} needs the distribution tokendraw-{part}, which is not installed; run "
        f"`pip install ./{part}` in tokendraw's checkout."
    )
    result = call(name, "native", "--quick", "--jobs", 2)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"{message}\n")
    assert json.loads(call(name, "native", "--json").stdout) == {"schema_version": 1, "error": message}
    assert " ".join(call(name, "--help").stdout.split()).count(message) == 1
    assert list(listed()) == OWN
    assert listed()[name] == f"Needs tokendraw-{part}, which is not installed."


WITHOUT_DOCSTRINGS = """
import json
from click.testing import CliRunner
from tokendraw.cli import drawing
from tokendraw.cli.app import main

documentation = drawing.documentation
drawing.documentation = lambda: documentation()[:100]  # a small language model
names = main.list_commands(main.make_context("tokendraw", [], resilient_parsing=True))
lines = [["--help"], *([name, "--help"] for name in names), ["list"], ["show", "p_less"], ["check", "--list"]]
results = {" ".join(line): CliRunner().invoke(main, line) for line in lines}
print(json.dumps({line: (result.exit_code, result.output) for line, result in results.items()}))
"""


@pytest.mark.slow
def test_without_docstrings_every_command_says_what_it_does():
    run = subprocess.run(
        [sys.executable, "-OO", "-c", WITHOUT_DOCSTRINGS], capture_output=True, text=True, check=True
    )
    results = json.loads(run.stdout)
    assert {code for code, _ in results.values()} == {0}
    for line, (_, output) in results.items():
        if line.endswith("--help"):
            assert re.match(r"Usage: .*\n(  .*\n)*\n  [A-Z].*\.", output), line
    rule = "Keep tokens with p >= sum p^2, the probability that two draws agree."
    assert rule in results["list"][1]
    assert f"summary       {rule}" in results["show p_less"][1]
    assert re.search(r"^threads  +\w", results["check --list"][1], re.MULTILINE)


def test_the_commands_of_the_core_work_without_kit_and_bench(tmp_path):
    """An environment after ``pip install ./core ./plugins/native``."""
    np.save(tmp_path / "logits.npy", np.zeros((2, 5), np.float32))
    lines = [("list",), ("show", "native"), ("resolve", "--explain"), ("doctor", "--no-build")]
    lines += [("sample", "logits.npy", *NATIVE_ON_CPU), ("generate", "The import", "-n", "2", *NATIVE_ON_CPU)]
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_DOCSTRINGS.replace("lines = ", f"lines = {lines} or ")],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=pages.environment(CORE_ALONE="1"),
    )
    results = json.loads(run.stdout)
    assert {code for code, _ in results.values()} == {0}
    assert all(output for _, output in results.values())
