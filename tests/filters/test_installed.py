"""Installed filters from moments: found by entry points, each in its own guard, refused by name and reason."""

import sys
from pathlib import Path

import pytest

from call_tables import pairs
from tokendraw import InvalidParameterError, SamplingParams
from tokendraw.backends.discovery import entry_points
from tokendraw.backends.discovery.entry_points import FILTER_GROUP, declarations
from tokendraw.filters import installed, installed_filters, required_moments

SOURCE = """
from tokendraw.filters import Filter

class Acme(Filter):
    '''Keep tokens above the mean.'''

    name = "acme"
    moments = ("mean",)

    def floor(self, moments, value):
        return value * moments.mean
"""
SHIPPED = ["epsilon_cutoff", "eta_cutoff", "p_less", "top_n_sigma"]


def install(dists, source=SOURCE, name="acme", value="acme_filters:Acme", distribution="acme-filters"):
    module = value.partition(":")[0]
    dists.add(distribution, filters={name: value}, modules={module: source})


def found(name="acme"):
    """Return the state and the reason of an installed filter."""
    (record,) = [record for record in installed_filters() if record.name == name]
    return str(record.state), record.reason


def refusal(**filters):
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(filters=filters).check()
    return str(caught.value)


def test_the_shipped_filters_are_found_like_any_other():
    records = installed_filters()
    assert [record.name for record in records] == SHIPPED
    assert {(record.distribution, str(record.state)) for record in records} == {("tokendraw", "available")}
    assert required_moments(SHIPPED) == ("std", "log_mass", "entropy", "collision")


def test_without_the_metadata_of_tokendraw_the_cause_is_told(monkeypatch):
    found_elsewhere = [each for each in declarations(FILTER_GROUP) if each.distribution != "tokendraw"]
    for module in (installed, entry_points):
        monkeypatch.setattr(module, "declarations", lambda *group_and_rule: iter(found_elsewhere))
    monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere"])  # the filters of a process are kept by it
    assert refusal(top_n_sigma=1.0) == (
        "'filters' needs names of installed filters, found 'top_n_sigma', and no metadata of the distribution "
        "tokendraw, which declares its filters: a frozen program has to bundle its dist-info."
    )


def test_a_filter_of_another_distribution_is_listed_and_taken(dists):
    install(dists)
    (record,) = [record for record in installed_filters() if record.name == "acme"]
    assert (str(record.state), record.reason, record.moments) == ("available", None, ("mean",))
    assert (record.distribution, record.version, record.summary) == (
        *("acme-filters", "1.0"),
        "Keep tokens above the mean.",
    )
    assert SamplingParams(filters={"acme": 2}).check()


@pytest.mark.parametrize(("change", "reason"), pairs(Path(__file__).with_name("broken.txt")))
def test_a_broken_filter_is_listed_with_its_reason_and_hurts_nobody(dists, change, reason):
    install(dists, SOURCE.replace(*eval(change)))
    state, words = found()
    assert (state, words) == ("broken", reason)
    assert SamplingParams(filters={"top_n_sigma": 1.0}).check()
    assert refusal(acme=1) == f"'filters' names 'acme', which is broken: {words}. Leave it out."


def test_a_filter_that_is_switched_off_is_not_imported(dists, monkeypatch):
    install(dists, "raise RuntimeError('imported')")
    monkeypatch.setenv("TOKENDRAW_DISABLE", "acme,p_less")
    reason = "switched off by TOKENDRAW_DISABLE"
    assert found() == found("p_less") == ("disabled", reason)
    assert refusal(p_less=1) == f"'filters' names 'p_less', which is disabled: {reason}. Leave it out."


def test_without_third_parties_only_the_filters_of_tokendraw_are_left(dists, monkeypatch):
    install(dists)
    monkeypatch.setenv("TOKENDRAW_NO_PLUGINS", "1")
    assert found() == ("disabled", "not first-party, and TOKENDRAW_NO_PLUGINS=1 admits no others")
    assert found("p_less") == ("available", None)


@pytest.mark.parametrize(
    ("name", "shown"), [("Acme", "'Acme'"), ("a-b", "'a-b'"), ("a" * 65, f"'{'a' * 65}'")]
)
def test_a_name_that_no_request_could_write_is_refused(dists, name, shown):
    install(dists, name=name)
    rule = "at most 64 lowercase letters, digits and underscores, a letter first"
    assert found(name) == ("broken", f"its name needs {rule}, found {shown}; rename the entry point")


def test_an_unknown_name_is_refused_with_the_nearest():
    assert refusal(top_nsigma=1) == (
        "'filters' needs names of installed filters, found 'top_nsigma', the nearest is 'top_n_sigma'. Correct it."
    )
    assert refusal(xyz=1) == (
        "'filters' needs names of installed filters, found 'xyz', known are epsilon_cutoff, eta_cutoff, p_less and "
        "top_n_sigma. Correct it."
    )
