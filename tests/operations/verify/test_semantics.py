"""The outcome of a verification for requests of every kind, in any batch and layout."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tokendraw import BatchFacts, Drafts, Need, SamplingMetadata, SamplingParams, speculative
from tokendraw.plugin import VerifyCapabilities
from tokendraw_native import plugin
from tokendraw_testing import reference
from verifying import Batch, chains, gaussian, native, row_metadata, sampled, verify

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("kind", ["logits", "probs", None, "coupled"])
@pytest.mark.fast_first
def test_every_request_gets_the_tokens_of_the_walk_along_its_drafts(device, kind, dtype):
    """Against numpy in float64, over three tiles."""
    batch, how = Batch(50, 2500), {"coupled": kind == "coupled", "dtype": dtype}
    output = batch.verify(
        native(device, dtype), kind, device, mode="coupled" if kind == "coupled" else "rejection"
    )
    assert (output.token_ids.dtype, output.token_ids.shape) == (torch.int64, (50, 5))
    assert (output.num_accepted.dtype, output.valid.dtype) == (torch.int32, torch.bool)
    assert output.logprobs is None
    near = [
        request
        for request, found in enumerate(chains(output))
        if not batch.agrees(request, found, kind, **how)
    ]
    assert len(near) <= 2
    assert output.valid.all()
    assert output.num_accepted.sum() > 20


@pytest.mark.parametrize("size", [100, 8193, 151936])
@pytest.mark.parametrize("kind", ["logits", "probs", None])
@pytest.mark.fast_first
def test_at_any_size_of_the_vocabulary(device, size, kind):
    batch = Batch(5, size, seed=size)
    found = chains(batch.verify(native(device), kind, device))
    assert sum(batch.agrees(request, tokens, kind) for request, tokens in enumerate(found)) >= 4


@pytest.mark.parametrize("kind", ["logits", "probs", None, "coupled"])
def test_a_seeded_request_gets_its_tokens_alone_and_in_any_batch(device, kind):
    batch, sampler = Batch(24, 1500, seed=2), native(device)
    mode = "coupled" if kind == "coupled" else "rejection"
    together = chains(batch.verify(sampler, kind, device, mode=mode))
    for requests in (range(23, -1, -1), range(0, 24, 3), [7] * 40 + [1]):
        assert chains(batch.verify(sampler, kind, device, requests, mode)) == [together[i] for i in requests]
    for request in range(24):
        assert chains(batch.verify(sampler, kind, device, [request], mode)) == [together[request]]


def test_both_layouts_and_a_count_that_only_the_device_knows_agree(device):
    batch, sampler = Batch(24, 1500, seed=3), native(device)
    ragged = batch.verify(sampler, "logits", device)
    padded = torch.tensor(
        [ids + [5] * (6 - len(ids)) for ids in batch.lists], dtype=torch.int64, device=device
    )
    target = torch.from_numpy(np.concatenate(batch.target)).to(device)
    logits = torch.from_numpy(np.concatenate(batch.draft)).to(device)
    drafts = Drafts.from_counts(padded, batch.counts, draft_logits=logits)
    metadata = row_metadata(drafts, batch.params, batch.first)
    ready = Drafts(draft_token_ids=padded, cu_num_logits=drafts.cu_num_logits.int(), draft_logits=logits)
    for found in (sampler.verify(target, drafts, metadata), sampler.verify(target, ready, metadata)):
        assert found.token_ids.shape == (24, 7)
        assert chains(found) == chains(ragged)


def test_rows_that_no_request_owns_are_ignored(device):
    """A CUDA graph is captured with the largest possible number of rows."""
    batch, sampler = Batch(24, 1500, seed=3), native(device)
    expected = batch.verify(sampler, "logits", device)
    drafts = Drafts.from_lists(batch.lists, device=device)
    target, logits = (
        torch.nn.functional.pad(torch.from_numpy(np.concatenate(rows)).to(device), (0, 0, 0, 3), value=NAN)
        for rows in (batch.target, batch.draft)
    )
    ready = Drafts(
        draft_token_ids=torch.nn.functional.pad(drafts.draft_token_ids, (0, 3), value=7),
        cu_num_logits=drafts.cu_num_logits,
        draft_logits=logits,
        max_drafts=4,
    )
    found = sampler.verify(target, ready, row_metadata(ready, batch.params, batch.first))
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.valid, expected.valid)


def test_drafts_beyond_the_most_that_may_be_are_ignored(device):
    batch, sampler = Batch(24, 1500, seed=3), native(device)
    full = chains(batch.verify(sampler, None, device))
    drafts = Drafts.from_lists(batch.lists, device=device)
    ready = replace(drafts, num_drafts=None, max_drafts=1)
    target = torch.from_numpy(np.concatenate(batch.target)).to(device)
    found = sampler.verify(target, ready, row_metadata(ready, batch.params, batch.first))
    assert found.token_ids.shape == (24, 2)
    for ours, theirs in zip(chains(found), full, strict=True):
        assert ours[:1] == theirs[:1]
        assert len(ours) == min(len(theirs), 2)


def test_logits_of_the_drafts_and_their_probabilities_agree(device):
    batch, sampler = Batch(60, 300, seed=4), native(device)
    batch.params = [SamplingParams(seed=params.seed) for params in batch.params]
    assert chains(batch.verify(sampler, "logits", device)) == chains(batch.verify(sampler, "probs", device))


@pytest.mark.parametrize("kind", ["logits", None])
def test_the_bonus_token_is_the_one_that_sample_draws_there(device, kind):
    """Drafts of the likeliest token, so that many requests accept all of them; and requests without drafts."""
    batch, sampler = Batch(80, 1500, seed=5, ids_outside=False), native(device)
    for target, draft, ids in zip(batch.target, batch.draft, batch.lists, strict=True):
        for step in range(len(ids)):
            ids[step] = int(target[step].argmax())
            target[step, ids[step]] += 9.0
        draft[:] = target[: len(ids)]
    output = batch.verify(sampler, kind, device)
    drafts = Drafts.from_lists(batch.lists, device=device)
    own = sampled(
        sampler, torch.from_numpy(np.concatenate(batch.target)).to(device), drafts, batch.params, batch.first
    )
    bonus = own.token_ids[speculative.bonus_rows(drafts.cu_num_logits)].tolist()
    whole = [i for i, n in enumerate(output.num_accepted.tolist()) if n == batch.counts[i]]
    assert len(whole) > 60
    assert [chains(output)[i][-1] for i in whole] == [bonus[i] for i in whole]


def test_coupled_tokens_are_those_that_sample_draws_row_by_row(device):
    batch, sampler = Batch(60, 1500, seed=6, ids_outside=False), native(device)
    drafts = Drafts.from_lists(batch.lists, device=device)
    target = torch.from_numpy(np.concatenate(batch.target)).to(device)
    own = sampled(sampler, target, drafts, batch.params, batch.first).token_ids.tolist()
    starts = drafts.cu_num_logits.tolist()
    for request in range(0, 60, 2):  # every second request is told the right tokens
        batch.lists[request] = own[starts[request] : starts[request + 1] - 1]
    output = batch.verify(sampler, None, device, mode="coupled")
    for request, found in enumerate(chains(output)):
        assert found == own[starts[request] : starts[request] + len(found)]
        assert len(found) == batch.counts[request] + 1 or request % 2
        assert found[:-1] == batch.lists[request][: len(found) - 1]


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


def test_drafts_and_samples_do_not_share_noise(device):
    sampler, logits = native(device), torch.zeros(3000, 50, device=device)
    metadata = SamplingMetadata(
        seed=torch.arange(3000, device=device), positions=torch.zeros(3000, dtype=torch.int64, device=device)
    )
    drafted, plain = sampler.sample(logits, metadata, draft=True), sampler.sample(logits, metadata)
    assert drafted.valid.all()
    assert 20 < int((drafted.token_ids == plain.token_ids).sum()) < 110  # 60 of 3000 coincide by chance


def test_a_greedy_draft_is_the_argmax(device):
    logits = torch.from_numpy(gaussian(6)).to(device)
    metadata = SamplingMetadata.from_params([SamplingParams(temperature=0.0)] * 6, device=device)
    assert torch.equal(native(device).sample(logits, metadata, draft=True).token_ids, logits.argmax(-1))


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_logprobs_are_those_of_the_rows_that_made_the_tokens(device, mode):
    sampler = native(device, logprobs_mode="processed_logprobs")
    batch = Batch(20, 300, seed=11, ids_outside=False)
    wanted = [None if i % 3 == 0 else i % 3 for i in range(20)]
    batch.params = [replace(params, logprobs=n) for params, n in zip(batch.params, wanted, strict=True)]
    output = batch.verify(sampler, None, device, mode=mode)
    assert output.logprobs.token_ids.shape == output.logprobs.logprobs.shape == (20, 5, 3)
    for request, found in enumerate(chains(output)):
        count = len(found)
        ids, values = output.logprobs.token_ids[request], output.logprobs.logprobs[request]
        assert ids[:count, 0].tolist() == found
        assert ids[count:].eq(-1).all()
        assert values[count:].eq(-INF).all()
        assert output.logprobs.ranks[request, count:].tolist() == [0] * (5 - count)
        assert output.log_kept_mass[request, count:].tolist() == [-INF] * (5 - count)
        for step, token in enumerate(found):
            row = reference.prepare(batch.target[request][step], batch.params[request])
            expected = reference.values(row, token, "processed_logprobs")
            assert float(values[step, 0]) == pytest.approx(float(expected[token]), abs=1e-5)
            assert int(output.logprobs.ranks[request, step]) == int((row.x >= row.x[token]).sum())
            mass = reference.log_kept_mass(row)
            assert float(output.log_kept_mass[request, step]) == pytest.approx(mass, abs=1e-5)
            asked = wanted[request] or 0
            best = np.argsort(-expected, kind="stable")[:asked]
            assert ids[step, 1 : 1 + asked].tolist() == best.tolist()
            assert ids[step, 1 + asked :].eq(-1).all()


def test_no_logprobs_no_kept_mass(device):
    output = Batch(3, 300, seed=11, ids_outside=False).verify(native(device), None, device)
    assert (output.logprobs, output.log_kept_mass) == (None, None)


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
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
        verify_modes=("rejection", "coupled"),
        draft_kinds=("probs", "logits", "chosen"),
        ragged_drafts=True,
        placeholder_drafts=True,
        sync_free=False,
        vocab_parallel=False,
    )
    built = plugin.tokendraw_build("verify", torch.device("cpu"), Need())
    assert chains(verify(built, gaussian(1), [[]], SamplingParams(temperature=0.0))) == [
        [int(gaussian(1).argmax())]
    ]
