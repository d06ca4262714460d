"""A failing verification: takeover by another verifier, its inputs, and the user's message."""

import warnings

import pytest
import torch

import tokendraw
from fake_dists import EVERYTHING, offering, place
from tokendraw import Drafts, SamplerFallbackWarning, SamplingMetadata, SamplingParams

VERIFIES = (
    f"{EVERYTHING}, verify_modes=('rejection', 'coupled'), draft_kinds=('probs', 'logits', 'chosen'), "
    "ragged_drafts=True, placeholder_drafts=True"
)
V, LISTS = 50, [[1, 2], [], [3]]
FAILS = "raise RuntimeError('no kernel image')"
DAMAGE = "target_logits.zero_(); drafts.draft_token_ids.zero_(); drafts.draft_probs.numpy()[:] = 7.0; "


def verifier(fault):
    """Return the source of a plugin: verifies as native through its proof, then runs ``fault`` first."""
    backend = f"""
class Verifying:
    calls = 0

    def __init__(self, device, need):
        from tokendraw_native.sampler import NativeSampler

        self.native = NativeSampler(device, need)

    def sample(self, logits, metadata, *, draft=False):
        return self.native.sample(logits, metadata, draft=draft)

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        self.calls += 1
        if self.calls > 1:
            {fault}
        return self.native.verify(target_logits, drafts, metadata, mode=mode)


build = Verifying
"""
    return offering("verify", f"VerifyCapabilities({VERIFIES})", backend)


def given():
    """Make new target logits, drafts with distributions, and metadata of requests."""
    generator = torch.Generator().manual_seed(6)
    target = torch.randn(6, V, generator=generator)
    drafts = Drafts.from_lists(LISTS, draft_probs=torch.rand(3, V, generator=generator).softmax(-1))
    params = [SamplingParams(seed=i, top_k=9) for i in range(3)]
    return target, drafts, SamplingMetadata.from_params(params, positions=[4, 5, 6])


def verified(sampler):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = sampler.verify(*given())
    return output.token_ids.tolist(), [str(warning.message) for warning in caught]


@pytest.fixture
def expected():
    return tokendraw.load_sampler("native", device="cpu").verify(*given()).token_ids.tolist()


@pytest.mark.parametrize("damage", ["", DAMAGE], ids=["untouched", "damaged"])
def test_the_first_call_of_a_kind_is_verified_by_the_next_best_from_what_was_given(dists, expected, damage):
    source = verifier(damage + FAILS)
    dists.add_plugin("acme", source)
    sampler = tokendraw.load_sampler(device="cpu")
    assert sampler.verify_resolution.chosen == "acme"
    told = (
        f"'acme' failed: its call raised RuntimeError: no kernel image {place(source, FAILS)}. Using 'native' "
        "from here on. Set TOKENDRAW_DISABLE=acme to silence this."
    )
    assert verified(sampler) == (expected, [told])
    assert sampler.verify_resolution.chosen == "native"
    assert verified(sampler) == (expected, [])


def test_whoever_takes_over_verifies_and_drafts_from_then_on_and_sampling_is_not_concerned(dists):
    dists.add_plugin("acme", verifier(FAILS))
    sampler = tokendraw.load_sampler(device="cpu")
    target, _, metadata = given()
    sampler.draft(target[:3], metadata)
    sampler.sample(target[:3], metadata)
    with pytest.warns(SamplerFallbackWarning):
        sampler.verify(*given())
    sampler.draft(target[:3], metadata)
    assert sampler.stats() == {"acme": 3, "native": 6}


def test_a_mode_is_taken_over_at_its_first_call_after_calls_of_another_mode(dists):
    expected = tokendraw.load_sampler("native", device="cpu").verify(*given(), mode="coupled")
    dists.add_plugin("acme", verifier(f"if mode == 'coupled': {FAILS}"))
    sampler = tokendraw.load_sampler(device="cpu")
    sampler.verify(*given())
    with pytest.warns(SamplerFallbackWarning):
        output = sampler.verify(*given(), mode="coupled")
    assert torch.equal(output.token_ids, expected.token_ids)
    assert sampler.verify_resolution.chosen == "native"
