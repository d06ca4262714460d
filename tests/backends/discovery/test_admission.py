"""Plugins not imported at all: switched off, under a reserved name, or with a name claimed twice."""

import sys

import pytest

import tokendraw
from fake_candidates import LAPTOP
from fake_dists import discovered, plugin, verdict
from tokendraw.resolution import DuplicatePluginError, State


def test_a_plugin_that_is_switched_off_is_not_imported(dists, monkeypatch):
    module = dists.add_plugin("acme", plugin("acme"))
    monkeypatch.setenv("TOKENDRAW_DISABLE", "acme")
    assert verdict() == (State.DISABLED, "switched off by TOKENDRAW_DISABLE")
    assert module not in sys.modules


def test_with_first_party_only_no_other_plugin_is_imported(dists, monkeypatch):
    module = dists.add_plugin("acme", plugin("acme"), distribution="tokendraw-acme")
    monkeypatch.setenv("TOKENDRAW_NO_PLUGINS", "1")
    assert verdict() == (State.DISABLED, "not first-party, and TOKENDRAW_NO_PLUGINS=1 admits no others")
    assert module not in sys.modules
    assert discovered("native").state is State.AVAILABLE


def test_a_stranger_who_claims_a_reserved_name_is_not_imported(dists):
    module = dists.add_plugin("native", plugin("native"), distribution="evil-native")
    found = [c for c in tokendraw.discover(host=LAPTOP) if c.name == "native"]
    assert [(c.distribution, c.state, c.reason) for c in found] == [
        (
            "evil-native",
            State.BROKEN,
            "the name 'native' is reserved for the distribution tokendraw-native, "
            "found it in evil-native 1.0; rename the entry point",
        ),
        ("tokendraw-native", State.AVAILABLE, None),
    ]
    assert module not in sys.modules
    resolution = tokendraw.resolve(host=LAPTOP)
    assert (resolution.chosen, resolution.warnings) == ("native", ())


def test_a_first_party_distribution_is_known_under_any_spelling(dists):
    dists.add_plugin("aiter", plugin("aiter"), distribution="Tokendraw_Aiter")
    assert discovered("aiter").first_party
    assert discovered("aiter").state is State.AVAILABLE


def test_two_distributions_of_one_name_are_not_imported_and_another_sampler_serves_unless_that_name_is_asked_for(
    dists, monkeypatch
):
    for owner, version, module in (("acme-one", "1.0", "fake_one"), ("acme-two", "2.0", "fake_two")):
        dists.add(owner, version, plugins={"acme": f"{module}:plugin"}, modules={module: plugin("acme")})
    found = [c for c in tokendraw.discover(host=LAPTOP) if c.name == "acme"]
    reason = "the name 'acme' is claimed by acme-one 1.0 and acme-two 2.0; uninstall one of them"
    assert [(c.distribution, c.state, c.reason) for c in found] == [
        ("acme-one", State.BROKEN, reason),
        ("acme-two", State.BROKEN, reason),
    ]
    with pytest.warns(tokendraw.SamplerFallbackWarning) as warned:
        assert tokendraw.load_sampler(device="cpu").name == "native"
    assert [str(warning.message) for warning in warned] == [
        f"'acme' was passed over: {reason}. Using 'native'. Set TOKENDRAW_DISABLE=acme to silence this."
    ]
    assert not {"fake_one", "fake_two"} & set(sys.modules)
    claimed = "'acme' is claimed by acme-one 1.0 and acme-two 2.0. Uninstall all but one of them"
    with pytest.raises(DuplicatePluginError, match=f"^{claimed}.$"):
        tokendraw.load_sampler("acme", device="cpu")
    monkeypatch.setenv("TOKENDRAW_PRIORITY", "acme")
    with pytest.raises(DuplicatePluginError, match=f"^{claimed}, or take 'acme' out of TOKENDRAW_PRIORITY.$"):
        tokendraw.load_sampler(device="cpu")
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "acme")
    with pytest.raises(DuplicatePluginError, match=f"^{claimed}.$"):
        tokendraw.load_sampler(device="cpu")


def test_one_distribution_that_is_seen_twice_is_one_candidate(dists):
    dists.add("acme_tokendraw", "1.0", plugins={"acme": "fake_acme:plugin"}, where="later")
    dists.add_plugin("acme", plugin("acme"), distribution="acme-tokendraw", version="1.1")
    found = discovered()
    assert (found.state, found.version) == (State.AVAILABLE, "1.1")


def test_no_plugin_sees_another(dists):
    dists.add_plugin("acme", plugin("acme", priority=1))
    dists.add_plugin("beta", plugin("beta", priority=2))
    assert [discovered(name).priority for name in ("acme", "beta")] == [1, 2]


def add_copy(dists, where, version, source):
    modules = {} if source is None else {"fake_acme": source}
    dists.add("acme-tokendraw", version, plugins={"acme": "fake_acme:plugin"}, modules=modules, where=where)


@pytest.mark.parametrize(("source", "version"), [(None, "2.0"), (plugin("acme"), "1.0")])
def test_of_two_copies_of_a_distribution_the_one_that_an_import_finds_is_listed(dists, source, version):
    add_copy(dists, "later", "2.0", plugin("acme"))
    add_copy(dists, "first", "1.0", source)
    assert discovered().version == version


@pytest.mark.parametrize("versions", [("1.9", "1.10"), ("1.10", "1.9"), ("x", "1.10")])
def test_of_two_copies_in_one_folder_the_newer_is_listed(dists, versions):
    for version in versions:
        add_copy(dists, "both", version, plugin("acme"))
    assert discovered().version == "1.10"
