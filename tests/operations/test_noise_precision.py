"""``Need(gumbel_dtype=...)`` reaches verifiers, companions and successors. The kit's lines look at native's draws."""

import sys

import pytest

import tokendraw
from fake_dists import EVERYTHING, faulty, install_limited, plugin
from goodness_of_fit import (
    ACCEPTED,
    BONUS,
    DRAFT,
    DTYPES,
    RECOVERED,
    drawn_with,
    verified_with,
)
from tokendraw import Need, SamplerFallbackWarning, SamplerUnavailableError

BOTH = EVERYTHING + ", gumbel_dtypes=('fp32', 'fp64')"


@pytest.fixture
def limited(dists, tmp_path, monkeypatch):
    """Native, except that seeded rows are left to the companion."""
    lacking = {"seeding": "launch", "batch_invariant": False}
    monkeypatch.syspath_prepend(install_limited(tmp_path, sample=lacking, verify=lacking))
    yield
    sys.modules.pop("limited_tokendraw", None)


def load(sampler, dtype, **options):
    return tokendraw.load_sampler(sampler, device="cpu", need=Need(gumbel_dtype=dtype), **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_verifier_that_is_loaded_by_its_operation_draws_with_it(dtype):
    verifier = tokendraw.load("verify", "native", device="cpu", need=Need(gumbel_dtype=dtype))
    for part in (ACCEPTED, RECOVERED):
        assert verified_with(verifier, part) == dtype
    assert verified_with(verifier, BONUS, mode="coupled") == dtype


class TestThoseWhoStandIn:
    @pytest.mark.usefixtures("limited")
    def test_the_companion_draws_the_rows_that_leave_with_it(self):
        sampler = load("limited", "fp64")
        assert (sampler.resolution.companion, sampler.verify_resolution.companion) == ("native", "native")
        assert drawn_with(sampler) == "fp64"
        assert drawn_with(sampler, DRAFT) == "fp64"
        assert verified_with(sampler, RECOVERED) == "fp64"
        assert sampler.stats() == {"native": 12}

    def test_the_successor_of_one_that_failed_draws_with_it(self, dists):
        dists.add_plugin(
            "acme", faulty("acme", "raise RuntimeError('no kernel image')", capabilities=BOTH, priority=900)
        )
        sampler = load(None, "fp64")
        assert sampler.name == "acme"
        with pytest.warns(SamplerFallbackWarning, match="Using 'native' from here on"):
            assert drawn_with(sampler) == "fp64"
        assert sampler.name == "native"

    def test_one_without_it_is_passed_over_and_refused_where_it_was_asked_for(self, dists):
        dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING, priority=900))
        with pytest.warns(SamplerFallbackWarning, match="the request needs fp64 noise, found fp32"):
            assert load(None, "fp64").name == "native"
        with pytest.raises(SamplerUnavailableError, match="the request needs fp64 noise, found fp32"):
            load("acme", "fp64")
