"""Hostile plugins: endless numbers, escape codes, forged lines, untypable names.

Whatever a plugin or its metadata hold, discovery and loading end, and what they say is short, printable text.
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
from fake_dists import discovered, fake_dists, plugin, verdict
from tokendraw import SamplerUnavailableError
from tokendraw.backends.description.plugin_info import NAME_RULE
from tokendraw.resolution import State
from tokendraw_testing import fake_dist

EVIL = r"\x1b[31mred\nforged line\u202e"
"""Source of a string literal: a colour, a line break and a change of the writing direction."""
TAMED = r"\x1b[31mred forged line\u202e"
"""What is shown of it in prose: the line break is a space, the rest its escapes. A name shows escapes alone."""
FROM_TO = "needs an integer from -1000000 to 1000000"
ONE_LINE = "needs one printable line of at most 500 characters"


@pytest.fixture
def dists(tmp_path, monkeypatch):
    with fake_dists(tmp_path, monkeypatch) as found:
        yield found


def described(**fields):
    """Return the source of a plugin called acme with these fields in its description, each an expression."""
    given = {
        "name": "'acme'",
        "api_version": "1",
        "priority": "50",
        "operations": "{'sample': tokendraw.plugin.Capabilities()}",
    } | fields
    arguments = ", ".join(f"{field}={value}" for field, value in given.items())
    return plugin("acme", describe=f"return tokendraw.plugin.PluginInfo({arguments})")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"priority": "10**5000"}, f"PluginInfo.priority {FROM_TO}, found int that cannot be printed"),
        ({"priority": "-(10**5000)"}, f"PluginInfo.priority {FROM_TO}, found int that cannot be printed"),
        ({"priority": "1000001"}, f"PluginInfo.priority {FROM_TO}, found 1000001"),
        ({"priority": "float('nan')"}, f"PluginInfo.priority {FROM_TO}, found nan"),
        ({"api_version": "10**5000"}, f"PluginInfo.api_version {FROM_TO}, found int that cannot be printed"),
        (
            {"name": f"'{EVIL}'"},
            r"PluginInfo.name needs to be the entry point's name 'acme', found '\x1b[31mred\nforged line\u202e'",
        ),
        (
            {"name": "type('Text', (str,), {'__ne__': lambda a, b: False})('other')"},
            "PluginInfo.name needs to be the entry point's name 'acme', found 'other'",
        ),
        ({"summary": f"'{EVIL}'"}, rf"PluginInfo.summary {ONE_LINE}, found '{EVIL}'"),
        ({"summary": "'x' * 501"}, f"PluginInfo.summary {ONE_LINE}, found '{'x' * 199} ..."),
        ({"verified": "'a\\tb'"}, rf"PluginInfo.verified {ONE_LINE}, found 'a\tb'"),
        ({"kernels": "None"}, f"PluginInfo.kernels {ONE_LINE}, found None"),
        (
            {"operations": "{str(i): tokendraw.plugin.Capabilities() for i in range(101)}"},
            "PluginInfo.operations needs 1 to 100 operations, found "
            + repr({str(i): tokendraw.plugin.Capabilities() for i in range(101)})[:200].rstrip()
            + " ...",
        ),
        (
            {"operations": f"{{'{EVIL}': tokendraw.plugin.Capabilities()}}"},
            rf"PluginInfo.operations needs Capabilities by name, found '{EVIL}'",
        ),
        (
            {"operations": "{'sample': tokendraw.plugin.Capabilities(max_top_k=10**5000)}"},
            "Capabilities.max_top_k of the operation 'sample' needs an integer from 0 to 2**63 - 1 or None, "
            "found int that cannot be printed",
        ),
        (
            {"operations": "{'sample': tokendraw.plugin.Capabilities(compute_capability=((8, 10**5000), None))}"},
            "Capabilities.compute_capability of the operation 'sample' needs ((major, minor), (major, minor) or "
            "None) or None, found tuple that cannot be printed",
        ),
        (
            {"operations": f"{{'sample': tokendraw.plugin.Capabilities(rocm_archs=('{EVIL}',))}}"},
            "Capabilities.rocm_archs of the operation 'sample' needs a tuple of at least one short string or None, "
            rf"found ('{EVIL}',)",
        ),
        (
            {"operations": "{'sample': tokendraw.plugin.Capabilities(device_types=('cpu',) * 101)}"},
            "Capabilities.device_types of the operation 'sample' needs a tuple of at least one short string or None, "
            f"found {str(('cpu',) * 101)[:200].rstrip()} ...",
        ),
        (
            {"upstream": "tokendraw.plugin.Upstream('no such; name', '>=1')"},
            "Upstream.distribution needs a distribution's name, found 'no such; name'",
        ),
        (
            {"upstream": "tokendraw.plugin.Upstream('acme', '>=1\\n')"},
            r"Upstream.versions needs a PEP 440 range, found '>=1\n'",
        ),
        (
            {"upstream": "tokendraw.plugin.Upstream('acme', '>=1', ('1.0',) * 101)"},
            "Upstream.tested needs a tuple of PEP 440 versions, found " + str(("1.0",) * 101)[:200].rstrip() + " ...",
        ),
        (
            {"summary": "type('Odd', (), {'__repr__': lambda self: 1 / 0})()"},
            f"PluginInfo.summary {ONE_LINE}, found Odd that cannot be printed",
        ),
    ],
)  # fmt: skip
def test_every_described_field_has_bounds_and_is_printable(dists, fields, reason):
    dists.add_plugin("acme", described(**fields))
    assert verdict() == (State.BROKEN, reason)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert tokendraw.load_sampler(device="cpu").name == "native"


def test_what_a_plugin_does_to_its_description_later_changes_nothing(dists):
    source = (
        described(operations="OPERATIONS") + "\nOPERATIONS = {'sample': tokendraw.plugin.Capabilities()}\n"
    )
    module = dists.add_plugin("acme", source)
    found = discovered()
    sys.modules[module].OPERATIONS["sample"] = None
    assert found.capabilities("sample") == tokendraw.plugin.Capabilities()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (f"raise OSError('{EVIL}')", f"loading 'fake_acme:plugin' raised OSError: {TAMED}"),
        (
            f"raise type('{EVIL}', (OSError,), {{}})('gone')",
            f"loading 'fake_acme:plugin' raised {EVIL}: gone",
        ),
        (f"import tokendraw\nraise tokendraw.PluginError('{EVIL}')", TAMED),
        (
            "import tokendraw\nclass Odd(tokendraw.PluginError):\n    def __str__(self): return 1\nraise Odd()",
            "(its message cannot be printed)",
        ),
        (
            f"plugin = type('{EVIL}', (), {{}})",
            f"'fake_acme:plugin' needs to be a plugin object, found the class {EVIL}; add ()",
        ),
        (
            plugin("acme", describe=f"return type('{EVIL}', (), {{}})()"),
            f"tokendraw_describe needs to return a tokendraw.plugin.PluginInfo, found {EVIL}",
        ),
    ],
)
def test_what_a_plugin_raises_or_is_called_is_put_on_one_printable_line(dists, source, reason):
    dists.add_plugin("acme", source)
    assert verdict() == (State.BROKEN, reason)


def test_what_a_probe_says_is_put_on_one_printable_line(dists):
    dists.add_plugin("acme", plugin("acme", probe=f"'needs {EVIL}'"))
    assert verdict() == (State.UNAVAILABLE, f"needs {TAMED}")


def test_a_probe_may_not_answer_with_spaces(dists):
    dists.add_plugin("acme", plugin("acme", probe="' \\n'"))
    assert verdict() == (State.BROKEN, r"tokendraw_probe needs to return a sentence or None, found ' \n'")


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


def test_the_version_of_an_upstream_is_put_on_one_printable_line(dists):
    dists.add("acme-kernels", metadata="Name: acme-kernels\nVersion: 2.1\x1b[31m\n")
    dists.add_plugin("acme", plugin("acme", upstream="tokendraw.plugin.Upstream('acme-kernels', '>=2')"))
    assert discovered().upstream_version == r"2.1\x1b[31m"
    assert verdict() == (
        State.UNAVAILABLE,
        r"needs acme-kernels >=2, found the version '2.1\\x1b[31m', which is no PEP 440 version; reinstall it",
    )


def test_an_upstream_of_an_endless_version_makes_a_plugin_unavailable(dists):
    dists.add("acme-kernels", metadata=f"Name: acme-kernels\nVersion: {'9' * 5000}\n")
    dists.add_plugin("acme", plugin("acme", upstream="tokendraw.plugin.Upstream('acme-kernels', '>=2')"))
    state, reason = verdict()
    assert state is State.UNAVAILABLE
    assert len(str(reason)) < 700


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


def install_named(dists, name):
    """Install a distribution with a single entry point of this name, unlike any written by tools."""
    folder = dists.add(
        "acme-tokendraw", plugins={"acme": "fake_acme:plugin"}, modules={"fake_acme": plugin("acme")}
    )
    (info,) = folder.glob("*.dist-info")
    (info / "entry_points.txt").write_text(
        f"[tokendraw.plugins]\n{name} = fake_acme:plugin\n", encoding="utf-8"
    )
    return folder


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_nobody_can_select_is_listed_as_broken_and_not_imported(dists, name):
    install_named(dists, name)
    (found,) = [c for c in tokendraw.discover(host=LAPTOP) if c.distribution == "acme-tokendraw"]
    reason = f"its name needs {NAME_RULE}, found {name!r}; rename the entry point"
    assert (found.name, found.state, found.reason) == (NAMES[name], State.BROKEN, reason)
    assert "fake_acme" not in sys.modules


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_nobody_can_select_disturbs_no_choice(dists, name, monkeypatch):
    install_named(dists, name)
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    assert tokendraw.load_sampler(device="cpu").name == "native"
    assert tokendraw.load_sampler("native", device="cpu").name == "native"
    with pytest.raises(SamplerUnavailableError):
        tokendraw.load_sampler(name, device="cpu")
    with pytest.raises(SamplerUnavailableError):
        tokendraw.load_sampler(NAMES[name], device="cpu")


def test_two_distributions_with_one_such_name_are_no_rivals(dists, tmp_path):
    install_named(dists, "a,b")
    other = fake_dist(tmp_path, "other-tokendraw", plugins={"a,b": "other:plugin"})
    dists._patch.syspath_prepend(other)
    assert [c.state for c in tokendraw.discover(host=LAPTOP) if c.name == "a,b"] == [State.BROKEN] * 2
    assert tokendraw.resolve(device="cpu").chosen == "native"


def test_an_entry_point_with_escape_codes_is_broken_and_not_imported(dists):
    folder = dists.add("acme-tokendraw", plugins={"acme": "gone:plugin"})
    (info,) = folder.glob("*.dist-info")
    (info / "entry_points.txt").write_text(
        "[tokendraw.plugins]\nacme = gone\x1b[31m:plugin\n", encoding="utf-8"
    )
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
        "endless": plugin("endless").replace("priority=50", "priority=10**5000"),
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
    (info,) = named.glob("*.dist-info")
    (info / "entry_points.txt").write_text(
        "[tokendraw.plugins]\n\x1b[31mx,y = gone:plugin\n", encoding="utf-8"
    )
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
            assert states["endless"] == "broken"
            assert states[r"\x1b[31mx,y"] == "broken"
