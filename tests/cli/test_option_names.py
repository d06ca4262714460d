"""Errors of the command line name options in place of arguments of the library."""

import pytest

from command_line import call
from tokendraw.cli.app import main
from tokendraw.cli.command import in_options

NO_GPU = (
    "'cuda' needs a CUDA or ROCm device, found none to use: the installed torch is built for the CPU alone. "
    "Pass --device cpu, or mend that.\n"
)
NO_XPU = "'xpu' needs a device of that name, found cpu. Pass --device cpu, or mend that.\n"
NO_SUCH_PLUGIN = (
    "'nobody', asked for by --sampler, cannot serve the operation 'sample' on cpu: no plugin of that name is "
    "installed. Available here: native. Leave out --sampler to let tokendraw choose.\n"
)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """A torch without a GPU, on every machine."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)


@pytest.mark.parametrize(
    "command",
    [["sample", "{file}"], ["generate", "The"], ["resolve"], ["check", "native"], ["bench"]],
    ids=lambda command: command[0],
)
def test_every_command_that_takes_a_device_calls_it_by_its_option(command, file):
    command = [word.format(file=file) for word in command]
    result = call(*command, "--device", "cuda")
    assert (result.stderr, result.exit_code) == (NO_GPU, 1)
    result = call(*command, "--device", "xpu")
    assert (result.stderr, result.exit_code) == (NO_XPU, 1)
    result = call(*command, "--device", "rocm")
    assert result.stderr == (
        "'--device' needs a name such as cpu, cuda or cuda:1, found 'rocm'. Pass --device cuda for AMD GPUs too.\n"
    )
    assert result.exit_code == 2


@pytest.mark.parametrize(
    "command", [["sample", "{file}"], ["generate", "The"], ["resolve"]], ids=lambda command: command[0]
)
def test_every_command_that_chooses_a_sampler_says_who_asked(command, file, monkeypatch):
    command = [word.format(file=file) for word in command]
    result = call(*command, "--device", "cpu", "--sampler", "nobody")
    assert (result.stderr, result.exit_code) == (NO_SUCH_PLUGIN, 1)
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "nobody")
    by_variable = NO_SUCH_PLUGIN.replace("by --sampler", "by TOKENDRAW_SAMPLER").replace(
        "Leave out --", "Unset "
    )
    assert call(*command, "--device", "cpu").stderr == by_variable.replace(
        "Unset sampler", "Unset TOKENDRAW_SAMPLER"
    )


def test_reasons_and_json_say_who_asked_as_well():
    stdout = call("resolve", "--explain", "--sampler", "native", "--device", "cpu").stdout
    assert "\n  native  available  asked for by --sampler\n" in stdout


def test_a_key_of_the_configuration_file_is_no_option(tmp_path, monkeypatch):
    (tmp_path / "config.toml").write_text("sampler = 7\n")
    monkeypatch.setenv("TOKENDRAW_CONFIG", str(tmp_path / "config.toml"))
    result = call("resolve")
    assert (
        result.stderr == f"'sampler' in '{tmp_path / 'config.toml'}' needs a string, found 7. Correct it.\n"
    )
    (tmp_path / "config.toml").write_text("sampler = 'nobody'\n")
    assert call("resolve", "--device", "cpu").stderr.endswith(
        f"Take 'sampler' out of {tmp_path / 'config.toml'} to let tokendraw choose.\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'top_k' of row 0 needs an integer, found -2.", "'--top-k' needs an integer, found -2."),
        (
            "'seed' of row 0 needs an integer or None, found 'x'.",
            "'--seed' needs an integer, found 'x'.",
        ),
        ("Leave out logprobs=, or give it.", "Leave out --logprobs, or give it."),
        ("'need' needs something.", "'need' needs something."),
        ("'acme' needs a licence of 'seed'.", "'acme' needs a licence of 'seed'."),
    ],
)
def test_only_what_has_an_option_is_rewritten(text, expected):
    assert in_options(text, main.get_command(None, "sample")) == expected
