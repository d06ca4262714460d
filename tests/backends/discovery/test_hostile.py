"""Hostile plugins that are loaded, and names that break the rule: what is shown of them is short, printable text.

What a description may hold is in ``test_descriptions.py``.
"""

import json
import logging
import os
import subprocess
import sys
import warnings

import pytest

import tokendraw
from fake_candidates import LAPTOP
from fake_dists import discovered, plugin, verdict
from tokendraw import SamplerUnavailableError
from tokendraw.backends.description.plugin_info import NAME_RULE
from tokendraw.resolution import State
from tokendraw_testing import fake_dist

EVIL = r"\x1b[31mred\nforged line\u202e"
"""Source of a string literal: a colour, a line break and a change of the writing direction."""
TAMED = r"\x1b[31mred forged line\u202e"
"""What is shown of it in prose: the line break is a space, the rest its escapes. A name shows escapes alone."""


def test_what_a_build_raises_is_put_on_one_printable_line(dists, caplog):
    dists.add_plugin("acme", plugin("acme", build=f"raise tokendraw.PluginError('{EVIL}')"))
    with pytest.raises(SamplerUnavailableError) as error:
        tokendraw.load_sampler("acme", device="cpu")
    assert f"cannot serve the operation 'sample' on cpu: {TAMED}. " in str(error.value)
    assert str(error.value.__cause__) == TAMED  # which the traceback shows as well
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokendraw.load_sampler(device="cpu")
    (warning,) = caught
    assert str(warning.message).isprintable()
    assert all(
        record.getMessage().isprintable() for record in caplog.records if record.levelno > logging.DEBUG
    )


def test_metadata_of_a_distribution_are_put_on_one_printable_line(dists):
    metadata = "Name: acme\x1b[31m\nVersion: 1.0\x1b[31m\n"
    dists.add("acme", plugins={"acme": "gone:plugin"}, metadata=metadata)
    found = discovered()
    assert (found.distribution, found.version) == (r"acme\x1b[31m", r"1.0\x1b[31m")


# Names that break the rule

NAMES = {
    "a,b": "a,b",
    "a b": "a b",
    "": "''",
    "\x1b[31mred": r"\x1b[31mred",
    "Acme": "Acme",
    "a_b": "a_b",
    "-a": "-a",
    "é": "é",
    "a" * 65: "a" * 65,
    "\u202enative": r"\u202enative",
}
"""Each with the form in which it is listed."""


def install_named(dists, name, value="fake_acme:plugin"):
    """Install a distribution with a single entry point, unlike any written by tools."""
    folder = dists.add(
        "acme-tokendraw", plugins={"acme": "fake_acme:plugin"}, modules={"fake_acme": plugin("acme")}
    )
    write_entry_point(folder, name, value)


def write_entry_point(folder, name, value):
    (info,) = folder.glob("*.dist-info")
    (info / "entry_points.txt").write_text(f"[tokendraw.plugins]\n{name} = {value}\n", encoding="utf-8")


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_nobody_can_select_is_broken_and_disturbs_no_choice(dists, name, monkeypatch):
    install_named(dists, name)
    (found,) = [c for c in tokendraw.discover(host=LAPTOP) if c.distribution == "acme-tokendraw"]
    reason = f"its name needs {NAME_RULE}, found {name!r}; rename the entry point"
    assert (found.name, found.state, found.reason) == (NAMES[name], State.BROKEN, reason)
    assert "fake_acme" not in sys.modules
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    assert tokendraw.load_sampler(device="cpu").name == "native"
    for choice in (name, NAMES[name]):
        with pytest.raises(SamplerUnavailableError):
            tokendraw.load_sampler(choice, device="cpu")


def test_two_distributions_with_one_such_name_are_no_rivals(dists):
    install_named(dists, "a,b")
    dists.add("other-tokendraw", plugins={"a,b": "other:plugin"})
    assert [c.state for c in tokendraw.discover(host=LAPTOP) if c.name == "a,b"] == [State.BROKEN] * 2
    assert tokendraw.resolve(device="cpu").chosen == "native"


def test_an_entry_point_with_escape_codes_is_broken_and_not_imported(dists):
    install_named(dists, "acme", "gone\x1b[31m:plugin")
    assert verdict() == (
        State.BROKEN,
        r"its entry point needs to be package.module:object, found 'gone\x1b[31m:plugin'; correct it",
    )


@pytest.mark.slow
def test_no_command_prints_what_a_plugin_wants_the_terminal_to_do(tmp_path):
    """A process per command: stdout and stderr hold printable lines alone, whatever is installed."""
    folders = []
    sources = {
        "loud": f"raise OSError('{EVIL}')",
        "probing": plugin("probing", probe=f"'needs {EVIL}'"),
        "upstreamed": plugin(
            "upstreamed", upstream="tokendraw.plugin.Upstream('evil-upstream', '>=1', ('1.0',))"
        ),
    }
    for name, source in sources.items():
        module = f"hostile_{name}"
        folders.append(
            fake_dist(tmp_path, name, plugins={name: f"{module}:plugin"}, modules={module: source})
        )
    named = fake_dist(tmp_path, "named", plugins={"placeholder": "gone:plugin"})
    write_entry_point(named, "\x1b[31mx,y", "gone:plugin")
    evil = "Name: {name}\nVersion: 1.0\x1b[31m\nSummary: \x1b[31m\n"
    folders += [named, fake_dist(tmp_path, "evil-upstream", metadata=evil)]
    folders += [fake_dist(tmp_path, "evil-version", plugins={"versioned": "gone:plugin"}, metadata=evil)]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    environ["TOKENDRAW_DISABLE"] = "\x1b[31mnope"
    environ["TOKENDRAW_\x1b[31mX"] = "\x1b[31m"
    environ["XDG_CONFIG_HOME"] = str(tmp_path)
    for command in (
        ["list"],
        ["list", "--json"],
        ["resolve", "--explain"],
        ["show", "loud"],
        ["show", "versioned"],
        ["doctor"],
    ):
        run = subprocess.run(
            [sys.executable, "-m", "tokendraw", *command],
            capture_output=True,
            env=environ,
            check=False,
            timeout=100,
        )
        for line in (run.stdout + run.stderr).decode().split("\n"):
            assert line.isprintable(), (command, line)
        assert run.returncode == 0, run.stderr
        if "--json" in command:
            states = {c["name"]: c["state"] for c in json.loads(run.stdout)["candidates"]}
            assert states[r"\x1b[31mx,y"] == "broken"
