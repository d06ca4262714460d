"""Verifications by native: worked examples of the contract, and what the kit does not ask. ``test_conformance.py`` runs
the kit.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tokendraw import BatchFacts, Drafts, Need, SamplingMetadata, SamplingParams
from tokendraw.plugin import VerifyCapabilities
from tokendraw_native import plugin
from verifying import Batch, chains, gaussian, native, row_metadata, verify

NAN, INF = float("nan"), float("inf")


def test_drafts_beyond_the_most_that_may_be_are_ignored(device):
    batch, sampler = Batch(24, 1500, seed=3), native(device)
    full = chains(batch.verify(sampler, None, device))
    drafts = Drafts.from_lists(batch.lists, device=device)
    ready = replace(drafts, num_drafts=None, max_drafts=1)
    target = torch.from_numpy(np.concatenate(batch.target)).to(device)
    found = sampler.verify(target, ready, row_metadata(ready, batch.params, batch.first))
    assert found.token_ids.shape == (24, 2)
    assert set(found.num_accepted.tolist()) == {0, 1}
    for ours, theirs in zip(chains(found), full, strict=True):
        assert ours[:1] == theirs[:1]
        assert len(ours) == min(len(theirs), 2)


def test_greedy_requests_accept_the_argmax_and_the_lowest_of_equals(device):
    target = np.zeros((4, 50), np.float32)
    target[0, [7, 9]], target[1, 3], target[2, [11, 12]], target[3, 20] = 5.0, 5.0, 5.0, 5.0
    greedy = SamplingParams(temperature=0.0)
    for params in ([greedy], [replace(greedy, seed=4)], [replace(greedy, top_k=3, top_p=0.5)]):
        for kind in (
            {},
            {"draft_probs": np.zeros((3, 50), np.float32)},
            {"draft_logits": np.full((3, 50), NAN, np.float32)},
        ):
            for lists, tokens in (([7, 3, 11], [7, 3, 11, 20]), ([7, 3, 12], [7, 3, 11]), ([9, 3, 11], [7])):
                output = verify(native(device), target, [lists], params, device=device, **kind)
                assert chains(output) == [tokens]
                assert output.valid.tolist() == [True]
    mixed = [greedy, SamplingParams(seed=3, top_k=1)]
    output = verify(native(device), np.tile(target, (2, 1)), [[7, 3, 12], [7, 3, 11]], mixed, device=device)
    assert chains(output)[0] == [7, 3, 11]


def test_requests_without_seeds_follow_torchs_generator(device):
    target, sampler = gaussian(40), native(device)
    drafts = Drafts.from_lists([[1, 2, 3]] * 10, device=device)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        output = sampler.verify(torch.from_numpy(target).to(device), drafts, SamplingMetadata())
        found.append(output.token_ids.tolist())
    assert found[0] == found[1]
    assert found[0] != found[2]


@pytest.mark.parametrize("mode", ["rejection", "coupled", "block"])
@pytest.mark.parametrize("kind", [{}, {"draft_logits": np.empty((0, 7), np.float32)}])
def test_no_requests_give_empty_tensors(device, mode, kind):
    output = verify(native(device), np.empty((0, 7), np.float32), [], [], device=device, mode=mode, **kind)
    assert (output.token_ids.shape, output.num_accepted.shape, output.valid.shape) == ((0, 1), (0,), (0,))


def test_rows_without_anything_are_token_0_and_invalid(device):
    """In the target: p is all on token 0. In the draft: so is q by logits, and by probabilities it is nowhere."""
    sampler, params = native(device), SamplingParams(seed=6)
    for nothing in (NAN, -INF):
        target = gaussian(6)
        target[[0, 2, 4]] = nothing
        output = verify(sampler, target, [[0], [1], [-1]], params, device=device)
        assert [found[0] for found in chains(output)] == [0, 0, 0]
        assert output.num_accepted.tolist() == [1, 0, 0]
        assert output.valid.tolist() == [False] * 3
    target = gaussian(6)
    for q in (
        {"draft_logits": np.full((3, 300), NAN, np.float32)},
        {"draft_probs": np.full((3, 300), NAN, np.float32)},
        {"draft_probs": np.zeros((3, 300), np.float32)},
        {"draft_probs": np.full((3, 300), -0.5, np.float32)},
        {"draft_probs": np.full((3, 300), INF, np.float32)},
    ):
        output = verify(sampler, target, [[1], [2], [3]], params, device=device, **q)
        assert output.num_accepted.tolist() == [0] * 3
        assert output.valid.tolist() == [False] * 3
        assert bool(((output.token_ids[:, 0] >= 0) & (output.token_ids[:, 0] < 300)).all())


def test_draft_probabilities_below_0_count_as_0_and_are_invalid(device):
    target, params, q = gaussian(80), SamplingParams(seed=12), np.full((40, 300), 1 / 300, np.float32)
    q[:, 2] = 8.0  # the draft, so that most are rejected
    outputs = []
    for value in (0.0, -3.0):
        q[:, 7] = value
        outputs.append(verify(native(device), target, [[2]] * 40, params, device=device, draft_probs=q))
    assert (outputs[0].num_accepted == 0).sum() > 30
    assert torch.equal(outputs[0].token_ids, outputs[1].token_ids)
    assert [bool(output.valid.any()) for output in outputs] == [True, False]


def test_a_residual_that_rounding_leaves_empty_is_the_target(device):
    """Draft probabilities are too large everywhere: p is drawn from, with the noise of the residual."""
    target, params = gaussian(80), SamplingParams(seed=12)
    q = np.full((40, 300), 8.0, np.float32)
    output = verify(native(device), target, [[2]] * 40, params, device=device, draft_probs=q)
    as_placeholder = verify(native(device), target, [[-1]] * 40, params, device=device)
    rejected = (output.num_accepted == 0).nonzero().flatten()
    assert len(rejected) > 30
    assert torch.equal(output.token_ids[rejected, 0], as_placeholder.token_ids[rejected, 0])


@pytest.mark.parametrize("mode", ["rejection", "coupled", "block"])
@pytest.mark.parametrize("kind", ["draft_logits", "draft_probs", None])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.fast_first
def test_every_shape_is_known_on_the_host(mode, kind, padded):
    """Runs on tensors without data: reading a value fails, as during the capture of a CUDA graph."""

    def empty(*shape, dtype=torch.int64):
        return torch.empty(shape, dtype=dtype, device="meta")

    drafts = Drafts(
        draft_token_ids=empty(3, 4) if padded else empty(7),
        cu_num_logits=empty(4, dtype=torch.int32),
        max_drafts=4,
        **({} if kind is None else {kind: empty(7, 3000, dtype=torch.float32)}),
    )
    real, flags = empty(3, dtype=torch.float32), empty(3, dtype=torch.bool)
    metadata = SamplingMetadata(
        temperature=real,
        top_k=empty(3),
        top_p=real,
        min_p=real,
        seed=empty(3),
        seeded=flags,
        positions=empty(10),
        row_index=empty(10),
        joint=flags,
        logprobs=empty(3),
        facts=BatchFacts(max_logprobs=5),
    )
    output = native("meta").verify(empty(10, 3000, dtype=torch.bfloat16), drafts, metadata, mode=mode)
    assert (output.token_ids.shape, output.num_accepted.shape, output.valid.shape) == ((3, 5), (3,), (3,))
    assert (output.logprobs.token_ids.shape, output.logprobs.ranks.shape) == ((3, 5, 6), (3, 5))
    assert (output.log_kept_mass.shape, output.log_kept_mass.dtype) == ((3, 5), torch.float32)


def test_the_plugin_offers_and_builds_it():
    described = plugin.tokendraw_describe().operations
    assert described["verify"] == VerifyCapabilities.of(
        described["sample"],
        verify_modes=("rejection", "coupled", "block"),
        draft_kinds=("probs", "logits", "chosen"),
        ragged_drafts=True,
        placeholder_drafts=True,
        sync_free=False,
    )
    built = plugin.tokendraw_build("verify", torch.device("cpu"), Need())
    assert chains(verify(built, gaussian(1), [[]], SamplingParams(temperature=0.0))) == [
        [int(gaussian(1).argmax())]
    ]
