"""A plugin's description against the plugin API: every slip is a state with a reason on one printable line.

Whatever a plugin or its metadata hold, such as endless numbers or escape codes, discovery ends, and native draws.
"""

import warnings
from dataclasses import fields
from pathlib import Path

import pytest

import tokendraw
from fake_candidates import H100
from fake_dists import discovered, plugin, verdict
from text_tables import agree, pairs
from tokendraw import operations
from tokendraw.backends.description.declared import rules_of
from tokendraw.backends.discovery import discover
from tokendraw.plugin import HostCapabilities, Release
from tokendraw.resolution import State

EVIL = r"\x1b[31mred\nforged line\u202e"
"""Source of a string literal: a colour, a line break and a change of the writing direction."""
TAMED = r"\x1b[31mred forged line\u202e"
"""What is shown of it in prose: the line break is a space, the rest its escapes. A name shows escapes alone."""
WORDS = f"""
import sys
from tokendraw.plugin import Capabilities, HostCapabilities, PluginInfo, Release, Upstream

EVIL = "{EVIL}"
OLD = Release("0", "lacks it", refused=True)

def info(**given):
    sound = {{"name": "acme", "api_version": 1, "priority": 50, "operations": {{"sample": Capabilities()}}}}
    return PluginInfo(**sound | given)

def sampling(**capabilities):
    return info(operations={{"sample": Capabilities(**capabilities)}})

def on(*arguments, **options):
    return info(upstream=Upstream(*arguments, **options))

def on_releases(*releases):
    return on("a", ">=2,<3", (), releases)
"""
"""What the expressions of ``descriptions.txt`` are made of."""


def describing(expression):
    return f"{WORDS}\n{plugin('acme', describe=f'return {expression}')}"


def assert_broken(reason):
    state, found = verdict()
    assert state is State.BROKEN
    assert agree(reason, found), found
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert tokendraw.load_sampler(device="cpu").name == "native"


@pytest.mark.parametrize(("expression", "reason"), pairs(Path(__file__).with_name("descriptions.txt")))
def test_a_slip_in_a_description_makes_a_plugin_broken_and_native_draws(dists, expression, reason):
    dists.add_plugin("acme", describing(expression))
    assert_broken(reason)


NO_DESCRIPTION = (
    "'fake_acme:plugin' needs the hook tokendraw_describe, found none; "
    "define it with @tokendraw.plugin.hookimpl"
)
OBJECTS = {
    "plugin = None": NO_DESCRIPTION,
    "plugin = 3": NO_DESCRIPTION,
    f"plugin = type('{EVIL}', (), {{}})": (
        f"'fake_acme:plugin' needs to be a plugin object, found the class {EVIL}; add ()"
    ),
    plugin("acme").replace("    @tokendraw.plugin.hookimpl\n    def tokendraw_build", "    def build"): (
        NO_DESCRIPTION.replace("describe", "build")
    ),
    plugin("acme").replace("def tokendraw_probe", "def tokendraw_prove"): (
        "registering 'fake_acme:plugin' raised PluginValidationError: unknown hook 'tokendraw_prove' ..."
    ),
    plugin("acme").replace("self, operation, host, need", "self, operation, gpu"): (
        "... Argument(s) {'gpu'} are declared in the hookimpl but can not be found ..."
    ),
}
"""Reason by source; three dots stand for any text."""


@pytest.mark.parametrize(("source", "reason"), OBJECTS.items(), ids=range(len(OBJECTS)))
def test_a_slip_in_its_hooks_makes_a_plugin_broken_and_native_draws(dists, source, reason):
    dists.add_plugin("acme", source)
    assert_broken(reason)


def test_a_hook_may_leave_out_arguments(dists):
    dists.add_plugin("acme", plugin("acme").replace("self, operation, host, need", "self"))
    assert verdict() == (State.AVAILABLE, None)


@pytest.mark.parametrize(
    ("api_version", "reason"),
    [
        (99, "needs plugin API 99, found 1; upgrade tokendraw"),
        (0, "needs plugin API 0, found 1; upgrade acme-tokendraw"),
    ],
)
def test_another_api_version_makes_a_plugin_incompatible_and_its_operations_are_not_believed(
    dists, api_version, reason
):
    dists.add_plugin("acme", describing(f"info(api_version={api_version}, operations='all')"))
    assert verdict() == (State.INCOMPATIBLE, reason)
    assert (discovered().priority, dict(discovered().info.operations)) == (50, {})
    assert {d.name: d.reason for d in tokendraw.resolve(device="cpu").decisions}["acme"] == reason


@pytest.mark.parametrize(
    ("oldest", "found"),
    [
        (1, (State.AVAILABLE, None)),
        (2, (State.INCOMPATIBLE, "needs plugin API 1, found 2; upgrade acme-tokendraw")),
    ],
)
def test_a_plugin_of_an_older_api_version_is_taken_until_the_core_drops_that_version(
    dists, monkeypatch, oldest, found
):
    monkeypatch.setattr(discover, "API_VERSION", 2)
    monkeypatch.setattr(discover, "OLDEST_API_VERSION", oldest)
    dists.add_plugin("acme", plugin("acme"))
    assert verdict() == found


@pytest.mark.parametrize("name", operations.RECORDS)
def test_every_field_of_the_capabilities_of_an_operation_is_validated(name):
    declared = operations.find_operation(name).capabilities
    rules = rules_of(declared)
    assert list(rules) == [field.name for field in fields(declared)]
    for field in fields(declared):
        assert rules[field.name].fits(field.default), field.name
        assert not rules[field.name].fits(object()), field.name
    promises = {"dtypes", "filter_orders", "gumbel_dtypes", "device_types", "rocm_archs"}
    assert [field for field in promises & {*rules} if rules[field].fits(())] == []


def test_of_an_unknown_operation_what_the_host_has_to_be_is_read(dists):
    capabilities = "Capabilities(graph_safe=True, dtypes=3)"
    dists.add_plugin("acme", describing(f"info(operations={{'paint': {capabilities}}})"))
    assert verdict() == (State.UNAVAILABLE, "needs the operation sample, found paint")
    assert discovered().capabilities("paint") == HostCapabilities(graph_safe=True)


def test_a_sound_table_of_releases_is_kept_as_it_is(dists):
    table = "OLD, Release('2', 'works'), Release('2.5.post1', 'works too', change='nothing')"
    dists.add_plugin("acme", describing(f"on_releases({table})"))
    upstream = discovered().info.upstream
    assert upstream.releases == (
        Release("0", "lacks it", refused=True),
        Release("2", "works"),
        Release("2.5.post1", "works too", change="nothing"),
    )
    assert upstream.found == {}


# Upstream, by the metadata of real distributions

UNREADABLE = ", which is no PEP 440 version; reinstall it"


@pytest.mark.parametrize(
    ("version", "found"),
    [
        (None, "it not installed; run `pip install 'acme-kernels>=2,<3'`"),
        ("Version: 3.0\n", "3.0"),
        ("Version: trunk\n", f"the version 'trunk'{UNREADABLE}"),
        ("Version: 2.1\x1b[31m\n", rf"the version '2.1\\x1b[31m'{UNREADABLE}"),
        (f"Version: {'9' * 5000}\n", f"the version '{'9' * 500} ...'{UNREADABLE}"),
        ("", f"the version ''{UNREADABLE}"),
    ],
    ids=["absent", "outside", "unreadable", "escape codes", "endless", "none"],
)
def test_an_upstream_is_found_by_its_metadata_and_not_by_a_module_of_its_name(dists, version, found):
    dists.add("unrelated", modules={"acme_kernels": "raise OSError"})
    if version is not None:
        dists.add("acme-kernels", "3.0", metadata=f"Name: acme-kernels\n{version}")
    dists.add_plugin("acme", describing("on('acme-kernels', '>=2,<3', ('2.1.4',))"))
    assert verdict() == (State.UNAVAILABLE, f"needs acme-kernels >=2,<3, found {found}")
    assert (discovered().upstream_version or "").isprintable()


# The probe

PROBED = "tokendraw_probe needs to return a sentence or None, found "


@pytest.mark.parametrize(
    ("probe", "state", "reason"),
    [
        (
            "f'needs a disk, found none on {host.device_type}'",
            State.UNAVAILABLE,
            "needs a disk, found none on cpu",
        ),
        (f"'needs {EVIL}'", State.UNAVAILABLE, f"needs {TAMED}"),
        ("True", State.BROKEN, f"{PROBED}True"),
        ("''", State.BROKEN, f"{PROBED}''"),
        ("' \\n'", State.BROKEN, rf"{PROBED}' \n'"),
        ("1 / 0", State.BROKEN, "tokendraw_probe raised ZeroDivisionError: division by zero"),
        ("__import__('sys').exit(0)", State.BROKEN, "tokendraw_probe raised SystemExit: 0"),
    ],
)
def test_what_the_probe_says_is_the_reason_and_an_answer_without_words_makes_a_plugin_broken(
    dists, probe, state, reason
):
    dists.add_plugin("acme", plugin("acme", probe=probe))
    assert verdict() == (state, reason)


def test_a_plugin_that_cannot_fit_anyway_is_not_probed(dists):
    dists.add_plugin("acme", plugin("acme", capabilities="device_types=('cuda',)", probe="1 / 0"))
    assert verdict() == (State.UNAVAILABLE, "needs a cuda device, found cpu")
    (on_gpu,) = [c for c in tokendraw.discover(host=H100) if c.name == "acme"]
    assert on_gpu.state is State.BROKEN


@pytest.mark.parametrize(
    ("name", "distribution", "whom"),
    [("acme", "acme-tokendraw", "its author"), ("aiter", "tokendraw-aiter", "tokendraw's maintainers")],
)
def test_a_slow_probe_is_waited_for_and_reported_once_to_whoever_can_mend_it(
    dists, monkeypatch, caplog, name, distribution, whom
):
    dists.add_plugin(name, plugin(name, probe="__import__('time').sleep(0.01)"), distribution=distribution)
    monkeypatch.setattr(discover, "_SLOW_PROBE_SECONDS", 0.005)
    assert [discovered(name).state for _ in range(2)] == [State.AVAILABLE] * 2
    assert [record.getMessage() for record in caplog.records if f"'{name}'" in record.getMessage()] == [
        f"tokendraw_probe of '{name}' took 0.0 s, needs less than 0.005 s. Report it to {whom}."
    ]
