"""``--verbose``: tracebacks behind the reasons on stderr; without the option none."""

import logging

import pytest

from command_line import NATIVE_ON_CPU, call
from fake_dists import plugin


@pytest.mark.parametrize(
    "command",
    [
        ["list"],
        ["show", "boom"],
        ["doctor", "--no-build"],
        ["resolve", "--device", "cpu"],
        ["check", "boom", "--device", "cpu"],
    ],
    ids=lambda c: c[0],
)
def test_a_plugin_that_fails_to_load_shows_where(dists, command):
    dists.add_plugin("boom", "def load():\n    raise RuntimeError('no kernels')\nload()")
    quiet = call(*command).stderr
    assert "Traceback" not in quiet
    stderr = call(*command, "--verbose").stderr
    assert stderr.count("Traceback") == 1
    assert stderr.endswith(f"\nRuntimeError: no kernels\n{quiet}")
    lines = stderr.splitlines()
    assert lines[:2] == ["loading 'fake_boom:plugin' failed", "Traceback (most recent call last):"]
    assert any(line.endswith('boom.py", line 2, in load') for line in lines)


@pytest.mark.parametrize(
    "command", [["sample", "{file}"], ["generate", "The"], ["check"], ["bench"]], ids=lambda c: c[0]
)
def test_a_sampler_that_does_not_build_shows_where(dists, file, command):
    dists.add_plugin("boom", plugin("boom", build="raise RuntimeError('no [kernels]')"))
    words = [word.format(file=file) for word in command]
    words += ["boom"] if command == ["check"] else ["--sampler", "boom"]
    words += ["--batch", 1, "--vocab-size", 128, "--filters", "none", "--repeats", 3] * (command == ["bench"])
    result = call(*words, "--device", "cpu", "-v")
    assert result.exit_code == 1
    assert result.stderr.count("Traceback (most recent call last):\n") == 1
    assert 'boom.py", line ' in result.stderr
    assert "RuntimeError: no [kernels]\n" in result.stderr
    assert "Traceback" not in call(*words, "--device", "cpu").stderr


def test_an_error_whose_cause_nobody_logged_shows_it(file, monkeypatch):
    """A damaged file: the exception of the parser."""
    (file.parent / "cut.npy").write_bytes(file.read_bytes()[:-1])
    words = ("sample", file.parent / "cut.npy", *NATIVE_ON_CPU)
    assert len(call(*words).stderr.splitlines()) == 1
    lines = call(*words, "-v").stderr.splitlines()
    assert lines[:2] == ["the cause:", "Traceback (most recent call last):"]
    assert lines[-2].startswith("ValueError: ")
    assert lines[-1] == call(*words).stderr.strip()


def test_it_ends_with_the_command(dists):
    log = logging.getLogger("tokendraw")
    before = (log.level, list(log.handlers))
    call("list", "-v")
    assert (log.level, list(log.handlers)) == before


def test_json_stays_alone_on_stdout(dists):
    dists.add_plugin("boom", "raise RuntimeError('no kernels')")
    verbose, quiet = call("list", "--json", "-v"), call("list", "--json")
    assert verbose.stdout == quiet.stdout
    assert "RuntimeError: no kernels" in verbose.stderr
