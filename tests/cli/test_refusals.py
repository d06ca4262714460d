"""What the command line refuses: the table in refusals.txt, every wrong option, and the same in ``--json``."""

import io
import json
import re
import shlex
import sys
from pathlib import Path
from unittest.mock import Mock

import click
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tokendraw
from command_line import ARGUMENTS, NATIVE_ON_CPU, call
from fake_dists import ONE_OF_THE_OPERATIONS
from tokendraw import operations
from tokendraw.backends.discovery import entry_points
from tokendraw.backends.discovery import settings as _settings
from tokendraw.cli import main

TABLE = (Path(__file__).parent / "refusals.txt").read_text(encoding="utf-8")
ROOT = click.Context(main)
COMMANDS = {name: main.get_command(ROOT, name) for name in main.list_commands(ROOT)}
ROWS = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.0, -2.5]])
BAD = {
    "cube": torch.zeros(2, 3, 4),
    "number": torch.zeros(()),
    "no-rows": torch.zeros(0, 3),
    "no-tokens": torch.zeros(3, 0),
    "integers": torch.ones(2, 3, dtype=torch.int64),
    "far": torch.tensor([[0.0, -1e300]], dtype=torch.float64),
}
"""What files of both formats hold."""


def refusals():
    """The lines of the table: a command line, the exit code, the sentence."""
    for line, code, sentence in re.findall(r"^\$ (.*)\n(\d): (.*)$", TABLE, re.MULTILINE):
        before, _, rest = line.partition("{")
        choices, _, after = rest.partition("}")
        for choice in choices.split("|"):
            filled = sentence.replace("{}", choice).replace("ONE_OF_THE_OPERATIONS", ONE_OF_THE_OPERATIONS)
            yield before + choice + after, int(code), filled.replace("ENDING", Path(choice).suffix)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of logits, damaged and other files, and settings."""
    folder = tmp_path_factory.mktemp("files")
    texts = {
        "nobody.toml": "sampler = 'nobody'",
        "number.toml": "sampler = 7",
        "form.json": '{"cells": [{}]}',
    }
    for name, text in {**texts, **dict.fromkeys(["x", "x.csv", "x.npz", "x.pt"], "1,2")}.items():
        (folder / name).write_text(text, encoding="utf-8")
    np.save(folder / "logits.npy", np.zeros((2, 5), np.float32))
    for name, values in BAD.items():
        np.save(folder / f"{name}.npy", values.numpy())
        save_file({"logits": values}, folder / f"{name}.safetensors")
    save_file({"logits": ROWS, "other": ROWS + 1}, folder / "two.safetensors")
    save_file({f"layer{i}": ROWS + i for i in range(10)}, folder / "ten.safetensors")
    save_file({}, folder / "none.safetensors")
    np.save(folder / "objects.npy", np.array([{}, 1], dtype=object))  # a pickle, which is not loaded
    np.save(folder / "raw.npy", np.zeros(3, dtype="V2"))  # how ml_dtypes saves bfloat16
    np.save(folder / "half.npy", ROWS.numpy())
    npy = (folder / "half.npy").read_bytes()
    save_file({"logits": ROWS}, folder / "cut.safetensors")
    safetensors = (folder / "cut.safetensors").read_bytes()
    header = io.BytesIO()  # of a file whose shape costs no memory
    lie = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 10)}
    np.lib.format.write_array_header_1_0(header, lie)
    damaged = {"half.npy": npy[: len(npy) // 2], "cut.npy": npy[:-1], "cut.safetensors": safetensors[:-1]}
    damaged |= {"really.npy": safetensors, "boasting.npy": header.getvalue()}
    for name, content in {**damaged, "nothing.npy": b"", "nothing.safetensors": b""}.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(autouse=True)
def in_the_folder(files, monkeypatch):
    """A torch without a GPU, on every machine, and the folder of files."""
    monkeypatch.chdir(files)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)


@pytest.mark.parametrize(("line", "exit_code", "sentence"), [*refusals()], ids=str)
def test_a_refusal_is_one_sentence_an_exit_code_and_an_object(line, exit_code, sentence, files, monkeypatch):
    before = sorted(files.iterdir())
    settings, _, words = line.rpartition("tokendraw ")
    for assignment in settings.split():
        monkeypatch.setenv(*assignment.split("="))
    arguments = shlex.split(words)
    plain, in_json = call(*arguments), call(*arguments, "--json")
    for result in (plain, in_json):
        assert result.stderr.splitlines()[-1].removeprefix("Error: ") == sentence
        assert (result.stderr, result.exit_code) == (plain.stderr, exit_code)
    assert plain.stdout == ""
    found = json.loads(in_json.stdout)
    assert (found.pop("schema_version"), found.pop("error")) == (1, sentence)
    # with the reasons where no sampler can be given
    assert set(found) == (
        {"chosen", "decisions", "operation", "settings"} if "resolve" in words and exit_code == 1 else set()
    )
    assert sorted(files.iterdir()) == before


def bad_value(parameter):
    """A value refused by the type of an option; None for a type that takes any text."""
    if isinstance(parameter.type, (click.Choice, click.types.IntParamType, click.types.FloatParamType)):
        return "?"
    return {"operation": "?", "fuzz_case": "?", "folder": "not-there", "output": "."}.get(parameter.name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_usage_error_is_an_object_with_the_sentence_of_stderr(name):
    given, params = (name, *ARGUMENTS[name]), COMMANDS[name].params
    wrong = [(*given, "--no-such-option"), (*given, "one", "too", "many")]
    wrong += [(name,)] if any(isinstance(p, click.Argument) for p in params) else []
    options = [(p, bad_value(p)) for p in params if isinstance(p, click.Option)]
    wrong += [(*given, option.opts[0], value) for option, value in options if value is not None]
    for arguments in wrong:
        plain, in_json = call(*arguments), call(*arguments, "--json")
        assert (in_json.exit_code, in_json.stderr) == (plain.exit_code, plain.stderr) == (2, plain.stderr)
        found = json.loads(in_json.stdout)
        assert list(found) == ["schema_version", "error"]
        assert plain.stderr.endswith(f"\nError: {found['error']}\n")
    first = json.loads(call(name, "--no-such-option", "--json").stdout)
    assert first["error"].startswith("No such option '--no-such-option'.")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--json",), "No such option '--json'. Did you mean '--version'?"),
        (("--json", "list"), "No such option '--json'. Did you mean '--version'?"),
        (("list", "--json=1"), "Option '--json' does not take a value."),
    ],
    ids=str,
)
def test_an_error_before_any_command_is_known_is_an_object(arguments, error):
    result = call(*arguments)
    assert (json.loads(result.stdout), result.exit_code) == ({"schema_version": 1, "error": error}, 2)


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
    error = {"schema_version": 1, "error": "ZeroDivisionError: division by zero"}
    assert json.loads(capsys.readouterr().out) == error


def test_an_interrupt_prints_no_object_even_where_a_library_makes_an_error_of_it(monkeypatch):
    def interrupted(**arguments):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise tokendraw.SamplerUnavailableError("Drawing needs torch, found no torch.") from error

    monkeypatch.setattr(tokendraw, "discover", interrupted)
    for line in (["list"], ["list", "--json"]):
        result = call(*line)
        assert (result.stdout, result.stderr, result.exit_code) == ("", "\n", 130)


@pytest.mark.parametrize("content", [b"", b"0.5 1.0 2.0", b"PK\x03\x04 and no more"])
def test_standard_input_without_logits_is_refused_in_one_line(content):
    result = call("sample", "-", *NATIVE_ON_CPU, standard_input=content)
    assert (result.stdout, result.exit_code) == ("", 1)
    assert result.stderr == (
        f"'standard input' needs to be a complete .safetensors file of numbers, found {len(content)} bytes "
        "that are not. Write it again.\n"
    )


def test_a_missing_library_of_a_format_and_a_file_that_may_not_be_read_say_so(monkeypatch):
    monkeypatch.setattr(np, "load", Mock(side_effect=PermissionError(13, "Permission denied")))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    missing = "needs the library 'safetensors' to be read, found it not installed. "
    for name, why in {
        "two.safetensors": f"{missing}Run `pip install safetensors`.\n",
        "logits.npy": "cannot be read: Permission denied. Check its permissions.\n",
    }.items():
        assert call("sample", name, *NATIVE_ON_CPU).stderr == f"'{name}' {why}"
