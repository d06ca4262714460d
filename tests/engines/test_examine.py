"""The comparison of an adapter with its engine: whether it applies, and the reason in words."""

import pytest

from tokendraw.engines import EngineState, changed_signature, examine

SWITCH = "TOKENDRAW_VLLM"


@pytest.fixture(autouse=True)
def no_switch(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)


def examine_acme(misfit=lambda: None):
    return examine(
        "Acme",
        distributions=("acme-engine", "acme-engine-cpu"),
        tested=("1.1.0", "1.2.0"),
        misfit=misfit,
        would="its sampler",
        switch=SWITCH,
    )


def state(installed, *, applies, reason):
    return EngineState(
        engine="Acme", installed=installed, tested=("1.1.0", "1.2.0"), applies=applies, reason=reason
    )


@pytest.mark.parametrize("name", ["acme-engine", "acme-engine-cpu"])
@pytest.mark.parametrize("version", ["1.2.0", "1.1.0+cpu"])
def test_an_adapter_applies_to_a_tested_version(dists, name, version):
    dists.add(name, version)
    assert examine_acme() == state(version, applies=True, reason="would replace its sampler")


@pytest.mark.parametrize("version", ["1.3.0", "1.2.0rc1", "1.2.0.post1", "recent"])
def test_untested_versions_stay_unchanged(dists, version):
    dists.add("acme-engine", version)
    assert examine_acme() == state(
        version, applies=False, reason=f"Acme {version} is untested, tested are 1.1.0 and 1.2.0"
    )


def test_a_missing_engine_does_not_apply(dists):
    assert examine_acme() == state(None, applies=False, reason="Acme is not installed")


@pytest.mark.parametrize("value", ["0", "false", "False"])
def test_a_variable_switches_the_adapter_off_before_an_import_of_the_engine(dists, monkeypatch, value):
    dists.add("acme-engine", "1.2.0")
    monkeypatch.setenv(SWITCH, value)
    engine_state = examine_acme(misfit=lambda: pytest.fail("looked at the engine"))
    assert engine_state == state("1.2.0", applies=False, reason="switched off by TOKENDRAW_VLLM")


@pytest.mark.parametrize("value", ["", "1", "true"])
def test_the_adapter_is_on_unless_the_variable_switches_it_off(dists, monkeypatch, value):
    dists.add("acme-engine", "1.2.0")
    monkeypatch.setenv(SWITCH, value)
    assert examine_acme().applies


def test_a_malformed_variable_is_a_reason_and_no_error(dists, monkeypatch):
    dists.add("acme-engine", "1.2.0")
    monkeypatch.setenv(SWITCH, "off")
    assert examine_acme() == state(
        "1.2.0",
        applies=False,
        reason="'TOKENDRAW_VLLM' needs 0, 1, false or true, found 'off'. Set one of these, or unset it",
    )


def test_a_misfit_is_the_reason(dists):
    dists.add("acme-engine", "1.2.0")
    assert examine_acme(lambda: "its sampler has gone") == state(
        "1.2.0", applies=False, reason="its sampler has gone"
    )


def broken():
    raise SystemExit("no driver")


def test_an_engine_that_cannot_be_imported_is_a_reason_and_no_error(dists):
    dists.add("acme-engine", "1.2.0")
    engine_state = examine_acme(broken)
    assert (engine_state.applies, engine_state.reason.partition(" (")[0]) == (
        False,
        "importing Acme 1.2.0 raised SystemExit: no driver",
    )


def draw(logits, k, *, seed=None):
    return logits, k, seed


@pytest.mark.parametrize("leading", [(), ("logits",), ("logits", "k"), ("logits", "k", "seed")])
def test_further_parameters_may_follow_the_leading_ones(leading):
    assert changed_signature("draw", draw, leading) is None


@pytest.mark.parametrize(
    ("function", "parameters"), [(draw, "logits, k, seed"), (None, "none"), (lambda: None, "none")]
)
def test_wrong_leading_parameters_are_reported_with_both_lists(function, parameters):
    assert changed_signature("draw", function, ("logits", "p")) == (
        f"'draw' needs the parameters logits, p, found {parameters}"
    )
