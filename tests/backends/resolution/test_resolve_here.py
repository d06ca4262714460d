"""Resolving with what is installed on this machine, from one thread and from many."""

import sys

import pytest

import tokendraw
from fake_candidates import H100, LAPTOP
from fake_dists import plugin
from tokendraw import Need, SamplerUnavailableError


def test_candidates_that_were_found_here_can_be_resolved_for_another_machine(dists):
    dists.add_plugin("acme", plugin("acme", capabilities="device_types=('cuda',)"))
    here = tokendraw.discover(host=LAPTOP)
    assert tokendraw.resolve(here, LAPTOP, Need(), tokendraw.resolution.Choice()).chosen == "native"
    assert tokendraw.resolve(here, H100, Need(), tokendraw.resolution.Choice()).chosen == "acme"


def test_resolving_gathers_what_it_was_not_given(dists, monkeypatch):
    dists.add_plugin("acme", plugin("acme"))
    assert tokendraw.resolve(device="cpu").chosen == "acme"
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    resolution = tokendraw.resolve(device="cpu")
    assert (resolution.chosen, resolution.choice.source) == ("native", "TOKENDRAW_SAMPLER")


def test_resolving_builds_nothing(dists):
    module = dists.add_plugin("acme", plugin("acme"))
    tokendraw.resolve(device="cpu")
    assert sys.modules[module].BUILT == []


def test_an_operation_that_nobody_offers_is_refused_with_every_reason(dists, monkeypatch):
    dists.add_plugin("acme", plugin("acme"))
    assert tokendraw.resolve(device="cpu", operation="verify").chosen == "native"
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
    with pytest.raises(SamplerUnavailableError, match="needs the operation verify, found sample"):
        tokendraw.resolve(device="cpu", operation="verify")
