"""``Need(gumbel_dtype=...)`` reaches every draw: samplers, drafters, verifiers, and their fallbacks."""

import sys

import pytest
import torch

import tokendraw
from fake_dists import EVERYTHING, faulty, install_limited, plugin
from goodness_of_fit import (
    ACCEPTED,
    BONUS,
    DRAFT,
    DTYPES,
    RECOVERED,
    SAMPLE,
    drawn_with,
    verified_with,
)
from tokendraw import (
    Need,
    SamplerFallbackWarning,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
)
from tokendraw_testing import reference
from tokendraw_testing.rows.noise_precision import POSITION, telling_rows

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
class TestNative:
    """Every row has a token of float32 noise and another token of float64 noise."""

    def test_the_sampler_draws_its_tokens_with_it(self, dtype):
        assert drawn_with(load("native", dtype)) == dtype

    def test_so_it_does_with_a_filter(self, dtype):
        assert drawn_with(load("native", dtype), top_k=2000) == dtype

    def test_so_it_does_where_it_reads_the_largest_logits_alone(self, dtype):
        assert drawn_with(load("native", dtype), few=True, top_k=2) == dtype

    def test_so_it_does_in_a_vocabulary_of_one_tile(self, dtype):
        (row, *_) = telling_rows(*SAMPLE)
        params = SamplingParams(top_k=2, seed=row.seed)
        metadata = SamplingMetadata.from_params([params], positions=[POSITION])
        found = load("native", dtype).sample(torch.from_numpy(row.logits[None, :1000]), metadata).token_ids
        prepared = reference.prepare(row.logits[:1000], params)
        narrow, wide = (reference.draw(prepared, row.seed, POSITION, each)[0] for each in DTYPES)
        assert narrow != wide
        assert found.tolist() == [wide if dtype == "fp64" else narrow]

    def test_so_it_does_in_a_batch_whose_noise_is_made_in_blocks(self, dtype):
        (row, *_) = telling_rows(*SAMPLE)
        metadata = SamplingMetadata.from_params(
            [SamplingParams(seed=row.seed)] * 40, positions=[POSITION] * 40
        )
        found = load("native", dtype).sample(torch.from_numpy(row.logits).repeat(40, 1), metadata).token_ids
        prepared = reference.prepare(row.logits, SamplingParams())
        assert found.tolist() == [reference.draw(prepared, row.seed, POSITION, dtype)[0]] * 40

    def test_the_drafter_draws_its_drafts_with_it(self, dtype):
        assert drawn_with(load("native", dtype), DRAFT) == dtype

    @pytest.mark.parametrize("kind", ["chosen", "probs", "logits"])
    def test_the_verifier_accepts_drafts_with_it(self, dtype, kind):
        assert verified_with(load("native", dtype), ACCEPTED, kind) == dtype

    @pytest.mark.parametrize("kind", ["chosen", "probs", "logits"])
    def test_the_verifier_draws_recovered_tokens_with_it(self, dtype, kind):
        assert verified_with(load("native", dtype), RECOVERED, kind) == dtype
        assert verified_with(load("native", dtype), RECOVERED, kind, filtered=True) == dtype

    @pytest.mark.parametrize("mode", ["rejection", "coupled"])
    def test_the_verifier_draws_bonus_tokens_with_it(self, dtype, mode):
        assert verified_with(load("native", dtype), BONUS, mode=mode) == dtype

    def test_loaded_by_its_operation_a_verifier_does_too(self, dtype):
        need = Need(gumbel_dtype=dtype)
        verifier = tokendraw.load("verify", "native", device="cpu", need=need)
        assert verified_with(verifier, RECOVERED) == dtype
        assert verified_with(verifier, BONUS, mode="coupled") == dtype


def test_coupled_drafts_are_accepted_by_the_same_noise_that_the_sampler_draws_with():
    sampler = load("native", "fp64")
    assert verified_with(sampler, BONUS, "logits", "coupled") == drawn_with(sampler) == "fp64"


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
