"""``--json`` of every command: one object with a version and the error, after every kind of error."""

import json

import click
import numpy as np
import pytest

import tokendraw
from command_line import NATIVE_ON_CPU, OFF, be_on, call
from fake_candidates import FLASHINFER, LAPTOP
from fake_dists import EVERYTHING, plugin
from tokendraw import operations
from tokendraw.backends.discovery import entry_points
from tokendraw.backends.discovery import settings as _settings
from tokendraw.cli import drawing as _drawing
from tokendraw.cli import main

ROOT = click.Context(main)
COMMANDS = {name: main.get_command(ROOT, name) for name in main.list_commands(ROOT)}
ARGUMENTS = {
    "list": (),
    "show": ("native",),
    "resolve": (),
    "doctor": ("--no-build",),
    "check": ("native", "--device", "cpu", "--quick", "--only", "seeds at the edges"),
    "bench": (
        *("--device", "cpu", "--batch", "1", "--vocab-size", "128"),
        *("--filters", "none", "--repeats", "3"),
    ),
    "sample": ("logits.npy", *NATIVE_ON_CPU),
    "generate": ("The", "-n", "2", *NATIVE_ON_CPU),
    "new": ("acme", "acme-tokendraw"),
}
"""Arguments that each command succeeds with."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Working folder with a file of logits, and a small language model."""
    monkeypatch.chdir(tmp_path)
    np.save("logits.npy", np.zeros((2, 5), np.float32))
    monkeypatch.setattr(_drawing, "documentation", lambda: ["The cat sat on the mat."])
    return tmp_path


def bad_value(parameter):
    """A value refused by the type of an option; None for a type that takes any text."""
    if isinstance(parameter.type, (click.Choice, click.types.IntParamType, click.types.FloatParamType)):
        return "?"
    return {"operation": "?", "fuzz_case": "?", "folder": "not-there", "output": "."}.get(parameter.name)


def usage_errors():
    """Every command with every argument refused by click."""
    for name, command in COMMANDS.items():
        yield name, (*ARGUMENTS[name], "--no-such-option")
        yield name, (*ARGUMENTS[name], "one", "too", "many")
        required = [p for p in command.params if isinstance(p, click.Argument)]
        if required:
            yield name, ()
        for parameter in command.params:
            if isinstance(parameter, click.Option) and (value := bad_value(parameter)) is not None:
                yield name, (*ARGUMENTS[name], parameter.opts[0], value)


def error_in_json(*arguments):
    """JSON of a call with ``--json``, after a check that a call without has the same exit code and stderr."""
    plain, in_json = call(*arguments), call(*arguments, "--json")
    assert (in_json.exit_code, in_json.stderr) == (plain.exit_code, plain.stderr)
    assert in_json.exit_code != 0
    output = json.loads(in_json.stdout)
    assert output["schema_version"] == 1
    return output, plain.stderr


def test_every_command_is_looked_at():
    assert list(ARGUMENTS) == list(COMMANDS)


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name != "check"])
@pytest.mark.fast_first
def test_a_result_has_a_version_and_no_error(name):
    result = call(name, *ARGUMENTS[name], "--json")
    output = json.loads(result.stdout)
    assert (result.exit_code, list(output)[:2]) == (0, ["schema_version", "error"])
    assert (output["schema_version"], output["error"]) == (1, None)
    assert len(output) > 2


@pytest.mark.parametrize(("name", "arguments"), [*usage_errors()], ids=str)
def test_a_usage_error_is_an_object(name, arguments):
    output, stderr = error_in_json(name, *arguments)
    assert list(output) == ["schema_version", "error"]
    assert stderr.endswith(f"\nError: {output['error']}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_usage_error_before_the_option_is_an_object(name):
    result = call(name, "--no-such-option", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"].startswith("No such option '--no-such-option'.")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--json",), "No such option '--json'. Did you mean '--version'?"),
        (("--json", "list"), "No such option '--json'. Did you mean '--version'?"),
        (("drwa", "--json"), "No such command 'drwa'."),
        (("list", "--json=1"), "Option '--json' does not take a value."),
    ],
    ids=str,
)
def test_an_error_before_any_command_is_known_is_an_object(arguments, error):
    result = call(*arguments)
    assert (json.loads(result.stdout), result.exit_code) == ({"schema_version": 1, "error": error}, 2)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_malformed_setting_is_an_object(name, monkeypatch):
    if name == "doctor":  # which finds it, and goes on
        return
    monkeypatch.setenv("TOKENDRAW_STRICT", "perhaps")
    output, stderr = error_in_json(name, *ARGUMENTS[name])
    assert list(output) == ["schema_version", "error"]
    assert stderr == f"{output['error']}\n"
    assert output["error"].startswith("'TOKENDRAW_STRICT' needs ")
    assert call(name, *ARGUMENTS[name]).exit_code == 2


class TestAResultThatIsAnError:
    """Commands that exit with 1 after their result print result and error in one object."""

    @pytest.mark.parametrize("candidates", [(), (FLASHINFER, OFF)])
    def test_list(self, monkeypatch, candidates):
        be_on(monkeypatch, LAPTOP, candidates)
        output, _ = self.error_of("list")
        assert len(output["candidates"]) == len(candidates)
        assert output["error"] == (
            "No installed sampler can serve the operation 'sample' here. Read the reasons of the candidates."
            if candidates
            else "No sampler is installed; run `pip install ./plugins/native` in tokendraw's checkout."
        )

    def test_doctor(self, monkeypatch):
        monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
        output, _ = self.error_of("doctor")
        assert (output["error"], output["chosen"]) == ("A program gets no sampler here.", None)

    def test_check(self, dists):
        dists.add_plugin("greedy", plugin("greedy", capabilities=EVERYTHING))
        options = ("--device", "cpu", "--quick", "--only", "distribution", "--jobs", "1")
        output, _ = self.error_of("check", "greedy", *options)
        assert output["error"] == "0 passed, 1 failed, 0 refused, 0 not run."

    def test_bench(self, dists):
        dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING.replace("'counter'", "'launch'")))
        output, _ = self.error_of("bench", *ARGUMENTS["bench"], "--sampler", "acme")
        assert output["error"] == "Nothing could be timed. Read the reasons of the entries."

    @staticmethod
    def error_of(*arguments):
        result = call(*arguments, "--json")
        assert result.exit_code == 1
        return json.loads(result.stdout), result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_an_exception_that_nobody_expected_is_an_object_before_its_traceback(name, monkeypatch, capsys):
    def fail(*arguments, **options):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(_settings, "read_settings", fail)
    monkeypatch.setattr(operations, "find_operation", fail)
    monkeypatch.setattr(entry_points, "find_entry_points", fail)
    monkeypatch.setattr("tokendraw_testing.commands.new.read_settings", fail)
    with pytest.raises(ZeroDivisionError):
        main([name, *ARGUMENTS[name], "--json"], prog_name="tokendraw")
    assert json.loads(capsys.readouterr().out) == {
        "schema_version": 1,
        "error": "ZeroDivisionError: division by zero",
    }


def test_an_interrupt_prints_no_object(monkeypatch):
    def interrupted(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr(tokendraw, "discover", interrupted)
    result = call("list", "--json")
    assert (result.stdout, result.exit_code) == ("", 130)
