"""Warnings of a load: text, frequency, and how to silence them."""

import os
import threading
import warnings

import pytest

import tokendraw
from fake_dists import EVERYTHING, FakeDists, plugin
from tokendraw import (
    SamplerFallbackWarning,
    SettingsWarning,
    UntestedUpstreamWarning,
    load_sampler,
)


def load_and_catch() -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_sampler(device="cpu")
    return caught


def test_a_fallback_is_told_once_per_process_and_points_at_the_caller(dists: FakeDists) -> None:
    dists.add_plugin("acme", "raise OSError('no libacme')")
    first, second = load_and_catch(), load_and_catch()
    assert [(w.category, str(w.message), os.path.basename(w.filename)) for w in first] == [  # noqa: PTH119
        (
            SamplerFallbackWarning,
            "'acme' was passed over: loading 'fake_acme:plugin' raised OSError: no libacme. "
            "Using 'native'. Set TOKENDRAW_DISABLE=acme to silence this.",
            "test_load_warnings.py",
        )
    ]
    assert second == []
    dists.add_plugin("beta", "raise OSError('no libbeta')")
    assert load_and_catch() == []


def test_what_the_warning_names_silences_it(dists: FakeDists, monkeypatch: pytest.MonkeyPatch) -> None:
    dists.add_plugin("acme", "raise OSError('no libacme')")
    monkeypatch.setenv("TOKENDRAW_DISABLE", "acme")
    assert load_and_catch() == []


def test_sixteen_threads_hear_of_a_fallback_once(dists: FakeDists) -> None:
    dists.add_plugin("acme", "raise OSError('no libacme')")
    names: list[str] = []
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


def test_an_untested_upstream_is_told_of_after_the_proof_draw(dists: FakeDists) -> None:
    dists.add("acme-kernels", "2.5")
    upstream = "tokendraw.plugin.Upstream('acme-kernels', '>=2,<3', ('2.1',))"
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING, upstream=upstream))
    assert [(w.category, str(w.message)) for w in load_and_catch()] == [
        (
            UntestedUpstreamWarning,
            "'acme' needs acme-kernels >=2,<3 and was tested with 2.1, found 2.5. "
            "Install a tested version to silence this.",
        )
    ]
    assert load_and_catch() == []


def test_an_untested_upstream_whose_draw_fails_is_only_passed_over(dists: FakeDists) -> None:
    dists.add("acme-kernels", "2.5")
    upstream = "tokendraw.plugin.Upstream('acme-kernels', '>=2,<3', ('2.1',))"
    dists.add_plugin("acme", plugin("acme", upstream=upstream, build="raise OSError"))
    assert [w.category for w in load_and_catch()] == [SamplerFallbackWarning]


def test_an_unknown_variable_is_told_of_once(dists: FakeDists, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENDRAW_SAMPELR", "native")
    assert [(w.category, str(w.message)) for w in load_and_catch()] == [
        (
            SettingsWarning,
            "'TOKENDRAW_SAMPELR' is no variable of tokendraw, the nearest known one is 'TOKENDRAW_SAMPLER'. "
            "Correct it, or unset it.",
        )
    ]
    assert load_and_catch() == []


def test_a_name_that_no_plugin_has_is_told_of_once(dists: FakeDists, monkeypatch: pytest.MonkeyPatch) -> None:
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
    monkeypatch.setenv("TOKENDRAW_DISABLE", "acne,flashinfer")
    assert [(w.category, str(w.message), os.path.basename(w.filename)) for w in load_and_catch()] == [  # noqa: PTH119
        (
            SettingsWarning,
            "'TOKENDRAW_DISABLE' names 'acne', found no such plugin, the nearest known one is 'acme'. "
            "Correct it, or take it out.",
            "test_load_warnings.py",
        )
    ]
    assert load_and_catch() == []
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    with pytest.raises(SettingsWarning, match="'TOKENDRAW_DISABLE' names 'acne'"):
        load_sampler(device="cpu")


STRICT = "TOKENDRAW_STRICT=1 makes this warning an error."


def test_strict_raises_every_warning_as_its_own_class_names_itself_and_claims_nothing_that_does_not_happen(
    dists: FakeDists, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    dists.add_plugin("acme", "raise OSError('no libacme')")
    for _ in range(2):
        with pytest.raises(SamplerFallbackWarning) as passed_over:
            load_sampler(device="cpu")
        assert str(passed_over.value) == (
            "'acme' was passed over: loading 'fake_acme:plugin' raised OSError: no libacme. "
            f"Set TOKENDRAW_DISABLE=acme to silence this. {STRICT}"
        )
    monkeypatch.setenv("TOKENDRAW_DISABLE", "acme")
    monkeypatch.setenv("TOKENDRAW_SAMPELR", "native")
    with pytest.raises(SettingsWarning) as misspelled:
        load_sampler(device="cpu")
    assert str(misspelled.value) == (
        "'TOKENDRAW_SAMPELR' is no variable of tokendraw, the nearest known one is 'TOKENDRAW_SAMPLER'. "
        f"Correct it, or unset it. {STRICT}"
    )


def test_strict_names_itself_where_an_upstream_is_untested(
    dists: FakeDists, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    dists.add("beta-kernels", "2.5")
    upstream = "tokendraw.plugin.Upstream('beta-kernels', '>=2,<3', ('2.1',))"
    dists.add_plugin("beta", plugin("beta", capabilities=EVERYTHING, upstream=upstream))
    with pytest.raises(UntestedUpstreamWarning) as untested:
        load_sampler(device="cpu")
    assert str(untested.value) == (
        "'beta' needs beta-kernels >=2,<3 and was tested with 2.1, found 2.5. "
        f"Install a tested version to silence this. {STRICT}"
    )


def test_resolving_and_discovering_warn_of_nothing(dists: FakeDists, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENDRAW_SAMPELR", "native")
    dists.add_plugin("acme", "raise OSError('no libacme')")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokendraw.discover()
        resolution = tokendraw.resolve(device="cpu")
    assert caught == []
    assert len(resolution.warnings) == 1
