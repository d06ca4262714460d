"""Warnings of a load: text, frequency, and how to silence them."""

import threading
import warnings
from pathlib import Path

import pytest

import tokendraw
from fake_dists import EVERYTHING, SERVED_BY_NATIVE, plugin
from tokendraw import (
    SamplerFallbackWarning,
    SettingsWarning,
    UntestedUpstreamWarning,
    load,
    load_sampler,
)


def load_and_catch():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_sampler(device="cpu")
    return caught


USING = "Using 'native'. "
NO_LIBRARY = "raise OSError('no libacme')"
UPSTREAM = "tokendraw.plugin.Upstream('acme-kernels', '>=2,<3', ('2.1',))"
WARNINGS = {
    "a plugin that is passed over": (
        NO_LIBRARY,
        {},
        SamplerFallbackWarning,
        "'acme' was passed over: loading 'fake_acme:plugin' raised OSError: no libacme. "
        "Using 'native'. Set TOKENDRAW_DISABLE=acme to silence this.",
    ),
    "an untested upstream": (
        plugin("acme", capabilities=EVERYTHING, upstream=UPSTREAM),
        {},
        UntestedUpstreamWarning,
        "'acme' needs acme-kernels >=2,<3 and was tested with 2.1, found 2.5. "
        "Set TOKENDRAW_DISABLE=acme to do without it.",
    ),
    "an unknown variable": (
        plugin("acme", capabilities=EVERYTHING),
        {"TOKENDRAW_SAMPELR": "native"},
        SettingsWarning,
        "'TOKENDRAW_SAMPELR' is no variable of tokendraw, the nearest known one is 'TOKENDRAW_SAMPLER'. "
        "Correct it, or unset it.",
    ),
    "a name that no plugin has": (
        plugin("acme", capabilities=EVERYTHING),
        {"TOKENDRAW_DISABLE": "acne,flashinfer"},
        SettingsWarning,
        "'TOKENDRAW_DISABLE' names 'acne', found no such plugin, the nearest known one is 'acme'. "
        "Correct it, or take it out.",
    ),
}
"""Source of acme, settings, and the warning of a load."""


@pytest.mark.parametrize("name", WARNINGS)
def test_a_warning_comes_once_a_process_and_points_at_the_caller_and_strict_raises_it_every_time(
    dists, monkeypatch, name
):
    source, settings, category, message = WARNINGS[name]
    dists.add("acme-kernels", "2.5")
    dists.add_plugin("acme", source)
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    first, second = load_and_catch(), load_and_catch()
    assert [(w.category, str(w.message), Path(w.filename).name) for w in first] == [
        (category, message, "test_load_warnings.py")
    ]
    assert second == []
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    for _ in range(2):
        with pytest.raises(category) as raised:
            load_sampler(device="cpu")
        assert str(raised.value) == (  # which claims nothing that does not happen
            f"{message.replace(USING, '')} TOKENDRAW_STRICT=1 makes this warning an error."
        )


def test_a_second_plugin_that_is_passed_over_is_not_told_of(dists):
    dists.add_plugin("acme", NO_LIBRARY)
    assert len(load_and_catch()) == 1
    dists.add_plugin("beta", "raise OSError('no libbeta')")
    assert load_and_catch() == []


def test_what_the_warning_names_silences_it(dists, monkeypatch):
    dists.add_plugin("acme", NO_LIBRARY)
    monkeypatch.setenv("TOKENDRAW_DISABLE", "acme")
    assert load_and_catch() == []


def test_sixteen_threads_hear_of_a_fallback_once(dists):
    dists.add_plugin("acme", NO_LIBRARY)
    names = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [
            threading.Thread(target=lambda: names.append(load_sampler(device="cpu").name)) for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert names == ["native"] * 16
    assert len(caught) == 1


def test_an_untested_upstream_whose_draw_fails_is_only_passed_over(dists):
    dists.add("acme-kernels", "2.5")
    dists.add_plugin("acme", plugin("acme", upstream=UPSTREAM, build="raise OSError"))
    assert [w.category for w in load_and_catch()] == [SamplerFallbackWarning]


@pytest.mark.parametrize("version", ["2.14.1", "2.14.1+cpu", "2.15.0.dev20270101", "3.0"])
@pytest.mark.parametrize("operation", SERVED_BY_NATIVE)
def test_torch_is_the_programs_own_and_no_version_from_the_least_on_is_warned_of(
    dists, monkeypatch, version, operation
):
    dists.add("torch", version)
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(operation, device="cpu").name == "native"
    assert tokendraw.resolve(operation=operation, device="cpu").warnings == ()


def test_resolving_and_discovering_warn_of_nothing(dists, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPELR", "native")
    dists.add_plugin("acme", NO_LIBRARY)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokendraw.discover()
        resolution = tokendraw.resolve(device="cpu")
    assert caught == []
    assert len(resolution.warnings) == 1
