"""A plugin's description against the plugin API: every slip is a state with a reason on one printable line.

Whatever a plugin or its metadata hold, such as endless numbers or escape codes, discovery ends, and native draws.
"""

import warnings
from dataclasses import fields
from pathlib import Path

import pytest

import tokendraw
from call_tables import agree, pairs
from fake_candidates import H100
from fake_dists import discovered, plugin, verdict
from tokendraw import operations
from tokendraw.backends.description import rules_of
from tokendraw.backends.discovery import discover
from tokendraw.plugin import HostCapabilities
from tokendraw.resolution import State

EVIL = r"\x1b[31mred\nforged line\u202e"
"""Source of a string literal: a colour, a line break and a change of the writing direction."""
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


def drawn_by():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tokendraw.load_sampler(device="cpu").name


@pytest.mark.parametrize(("expression", "reason"), pairs(Path(__file__).with_name("descriptions.txt")))
def test_a_slip_in_a_description_makes_a_plugin_broken_and_native_draws(dists, expression, reason):
    dists.add_plugin("acme", describing(expression))
    state, found = verdict()
    assert (state, agree(reason, found), drawn_by()) == (State.BROKEN, True, "native"), found


def installing(dists):
    """Return the words of ``plugins.txt``, which install a plugin in some form."""

    def module(source):
        dists.add_plugin("acme", source)

    def upstream(metadata=None):
        dists.add("unrelated", modules={"acme_kernels": "raise OSError"})
        if metadata is not None:
            dists.add("acme-kernels", "3.0", metadata=f"Name: acme-kernels\n{metadata}")
        module(describing("on('acme-kernels', '>=2,<3', ('2.1',))"))

    def entry_point(value):
        (info,) = dists.add("acme-tokendraw", plugins={"acme": "x"}).glob("*.dist-info")
        (info / "entry_points.txt").write_text(f"[tokendraw.plugins]\nacme = {value}\n", encoding="utf-8")

    return {
        "EVIL": EVIL,
        "module": module,
        "hooks": lambda old, new: module(plugin("acme").replace(old, new)),
        "describes": lambda expression: module(describing(expression)),
        "probes": lambda expression: module(plugin("acme", probe=expression)),
        "upstream": upstream,
        "entry_point": entry_point,
    }


@pytest.mark.parametrize(("call", "said"), pairs(Path(__file__).with_name("plugins.txt")))
def test_what_is_installed_gets_as_far_as_written_and_native_draws_in_its_place(dists, call, said):
    eval(call, installing(dists))
    state, reason = verdict()
    assert agree(said, f"{state.value}: {reason}"), f"{state.value}: {reason}"
    assert (discovered().upstream_version or "").isprintable()
    assert drawn_by() == ("acme" if state is State.AVAILABLE else "native")


def test_of_another_api_version_the_priority_alone_is_believed(dists):
    dists.add_plugin("acme", describing("info(api_version=99, operations='all')"))
    assert (discovered().priority, dict(discovered().info.operations)) == (50, {})
    reasons = {d.name: d.reason for d in tokendraw.resolve(device="cpu").decisions}
    assert reasons["acme"] == "needs plugin API 99, found 1; upgrade tokendraw"


def test_of_an_unknown_operation_what_the_host_has_to_be_is_read(dists):
    capabilities = "Capabilities(graph_safe=True, dtypes=3)"
    dists.add_plugin("acme", describing(f"info(operations={{'paint': {capabilities}}})"))
    assert discovered().capabilities("paint") == HostCapabilities(graph_safe=True)


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


def test_a_plugin_that_cannot_fit_anyway_is_not_probed(dists):
    dists.add_plugin("acme", plugin("acme", capabilities="device_types=('cuda',)", probe="1 / 0"))
    assert verdict() == (State.UNAVAILABLE, "needs a cuda device, found cpu")
    (on_gpu,) = [c for c in tokendraw.discover(host=H100) if c.name == "acme"]
    assert on_gpu.state is State.BROKEN
