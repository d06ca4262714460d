"""A verification at the edges: no drafts, placeholder ids, empty rows, equal distributions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tokendraw import BatchFacts, Drafts, SamplingMetadata, SamplingParams, speculative
from tokendraw_testing.reference_walk import walk
from verifying import KINDS, chains, gaussian, native, row_metadata, sampled, softmax, verify

NAN, INF = float("nan"), float("inf")
BEYOND = 2**31 - 1


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_requests_without_any_drafts_are_sampled(device, mode):
    target, sampler = gaussian(5), native(device)
    params = [replace(kind, seed=i) for i, kind in enumerate(KINDS)]
    output = verify(sampler, target, [[]] * 5, params, first=[9] * 5, device=device, mode=mode)
    own = sampled(
        sampler,
        torch.from_numpy(target).to(device),
        Drafts.from_lists([[]] * 5, device=device),
        params,
        [9] * 5,
    )
    assert output.token_ids.shape == (5, 1)
    assert output.token_ids[:, 0].tolist() == own.token_ids.tolist()
    assert output.num_accepted.tolist() == [0] * 5
    with_room = Drafts.from_counts(torch.full((5, 3), -1, device=device), [0] * 5)
    found = sampler.verify(
        torch.from_numpy(target).to(device), with_room, row_metadata(with_room, params, [9] * 5)
    )
    assert found.token_ids.tolist() == [[token, -1, -1, -1] for token in own.token_ids.tolist()]


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
@pytest.mark.parametrize("kind", [{}, {"draft_logits": np.empty((0, 7), np.float32)}])
def test_no_requests_give_empty_tensors(device, mode, kind):
    output = verify(native(device), np.empty((0, 7), np.float32), [], [], device=device, mode=mode, **kind)
    assert (output.token_ids.shape, output.num_accepted.shape, output.valid.shape) == ((0, 1), (0,), (0,))


@pytest.mark.parametrize("kind", ["logits", "probs", None])
def test_requests_of_very_different_lengths(device, kind):
    """[3, 0, 1, 128] drafts, each nearly certain under the target."""
    counts = [3, 0, 1, 128]
    target = gaussian(sum(counts) + 4)
    sure = np.random.default_rng(1).integers(0, 300, len(target))
    target[np.arange(len(target)), sure] = 40.0
    cu = [0, 4, 5, 7, 136]
    lists = [sure[start : start + n].tolist() for start, n in zip(cu, counts, strict=False)]
    logits = np.concatenate([target[start : start + n] for start, n in zip(cu, counts, strict=False)])
    q = (
        {}
        if kind is None
        else {"draft_logits": logits}
        if kind == "logits"
        else {"draft_probs": softmax(logits)}
    )
    output = verify(native(device), target, lists, SamplingParams(seed=1), device=device, **q)
    assert output.token_ids.shape == (4, 129)
    assert output.num_accepted.tolist() == counts
    assert [found[:-1] for found in chains(output)] == lists
    lists[3][77] = -1
    output = verify(native(device), target, lists, SamplingParams(seed=1), device=device, **q)
    assert output.num_accepted.tolist() == [3, 0, 1, 77]
    assert chains(output)[3][-1] == sure[7 + 77]


@pytest.mark.parametrize("outside", [-1, 300, BEYOND, -(2**63)])
@pytest.mark.parametrize("kind", ["logits", "probs", None])
def test_an_id_outside_the_vocabulary_is_rejected_and_the_residual_is_the_target(device, outside, kind):
    """The draft's row may hold anything: it is not read."""
    target, sampler = gaussian(12), native(device)
    rows = {
        "logits": {"draft_logits": gaussian(8)},
        "probs": {"draft_probs": softmax(gaussian(8))},
        None: {},
    }[kind]
    nothing = {name: np.full_like(values, NAN) for name, values in rows.items()}
    params = [replace(kind, seed=i) for i, kind in enumerate(KINDS[:4])]
    outputs = [
        verify(sampler, target, [[outside, 5]] * 4, params, device=device, **q) for q in (rows, nothing)
    ]
    for output in outputs:
        assert output.num_accepted.tolist() == [0] * 4
        assert output.valid.all()
        for request, found in enumerate(chains(output)):
            at = [100 * (request + 1) + step for step in range(3)]
            expected = walk(target[3 * request : 3 * request + 3], [-1, 5], params[request], at)
            assert found == expected.tokens


def test_placeholders_alone_give_one_token_each(device):
    output = verify(native(device), gaussian(12), [[-1] * 3] * 3, SamplingParams(seed=2), device=device)
    assert output.num_accepted.tolist() == [0] * 3
    assert bool(((output.token_ids[:, 0] >= 0) & (output.token_ids[:, 0] < 300)).all())
    assert output.token_ids[:, 1:].tolist() == [[-1] * 3] * 3


def test_a_target_that_is_sure_of_the_draft_accepts_it(device):
    """One-hot against one-hot: nothing is left of a residual."""
    target = np.full((60, 40), -INF, np.float32)
    target[np.arange(60), np.arange(60) % 40] = 0.0
    lists = [[(2 * i) % 40] for i in range(30)]
    for q in ({}, {"draft_logits": target[::2]}, {"draft_probs": softmax(target[::2])}):
        output = verify(native(device), target, lists, SamplingParams(seed=3), device=device, **q)
        assert output.num_accepted.tolist() == [1] * 30
        assert chains(output) == [[*ids, (2 * i + 1) % 40] for i, ids in enumerate(lists)]
        assert output.valid.all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_logits_are_accepted_a_million_times(device, dtype):
    """p = q to the bit, whatever the filters: u < 1 always."""
    sampler, requests, drafts_each, size = native(device), 25_000, 4, 5
    generator = torch.Generator(device=device).manual_seed(1)
    cu_num_logits = speculative.cu_num_logits(torch.full((requests,), drafts_each, device=device))
    rows, total = requests * (drafts_each + 1), requests * drafts_each
    target_rows = speculative.target_rows(cu_num_logits, total)
    slots = speculative.row_index(cu_num_logits, rows)
    facts = BatchFacts(any_greedy=False, any_joint=False)
    rejected = 0
    for trial in range(5):
        logits = (torch.randn(rows, size, device=device, generator=generator) * 4).to(dtype)
        positions = speculative.row_positions(
            cu_num_logits, torch.full((requests,), 10 * trial, device=device), rows
        )
        metadata = SamplingMetadata(
            temperature=torch.rand(requests, device=device, generator=generator) + 0.3,
            top_k=torch.randint(0, 5, (requests,), device=device, generator=generator),
            top_p=torch.rand(requests, device=device, generator=generator) + 0.2,
            seed=torch.arange(requests, device=device),
            positions=positions,
            row_index=slots,
            facts=facts,
        )
        own = replace(metadata, positions=positions[target_rows], row_index=slots[target_rows])
        for draft in (logits[target_rows], logits[target_rows].clone()):
            ids = sampler.sample(draft, own, draft=True).token_ids
            drafts = Drafts(
                draft_token_ids=ids, cu_num_logits=cu_num_logits, draft_logits=draft, max_drafts=drafts_each
            )
            rejected += int((sampler.verify(logits, drafts, metadata).num_accepted < drafts_each).sum())
    assert rejected == 0


@pytest.mark.slow
def test_equal_probabilities_are_accepted(device):
    """Exact equality: a flat target."""
    requests = 100_000
    output = verify(
        native(device),
        torch.zeros(1, 4).expand(2 * requests, 4),
        [[i % 4] for i in range(requests)],
        [SamplingParams(seed=i) for i in range(requests)],
        first=[3] * requests,
        device=device,
        draft_probs=torch.full((1, 4), 0.25).expand(requests, 4),
    )
    assert int(output.num_accepted.sum()) == requests


def poisoned(rows, at, value):
    rows = rows.copy()
    rows[at, ::3] = value
    return rows


@pytest.mark.parametrize("kind", ["logits", "probs", None])
@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_nan_makes_invalid_only_the_requests_that_used_its_row(device, kind, mode):
    """Requests 0 to 3 have the first of two drafts rejected, and request 4 has both accepted."""
    target = gaussian(15, seed=9)
    target[[12, 13], [4, 5]] = 60.0
    q = gaussian(10, seed=10)
    q[[8, 9], [4, 5]] = 60.0
    lists = [[-1, 7]] * 3 + [[BEYOND, 7]] + [[4, 5]]
    params, sampler = SamplingParams(seed=5), native(device)

    def call(target, rows):
        rows = {} if kind is None else {"draft_logits": rows} if kind == "logits" else {"draft_probs": rows}
        return verify(sampler, target, lists, params, device=device, mode=mode, **rows)

    if kind == "probs":
        q = softmax(q).astype(np.float32)
    clean = call(target, q)
    assert clean.num_accepted.tolist() == [0, 0, 0, 0, 2]
    assert clean.valid.all()
    by_row = {0: [0], 1: [], 4: [], 5: [], 12: [4], 13: [4], 14: [4]}
    for row, invalid in by_row.items():
        found = call(poisoned(target, row, NAN), q)
        assert [i for i, fine in enumerate(found.valid.tolist()) if not fine] == invalid
        others = [i for i in range(5) if i != row // 3]
        assert torch.equal(found.token_ids[others], clean.token_ids[others])
        assert bool((found.token_ids < 300).all())
    used = kind is not None and mode == "rejection"
    for row, invalid in {0: [], 1: [], 8: [4] * used, 9: [4] * used}.items():
        found = call(target, poisoned(q, row, NAN))
        assert [i for i, fine in enumerate(found.valid.tolist()) if not fine] == invalid
        assert torch.equal(found.token_ids[:4], clean.token_ids[:4])


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


def test_infinite_logits_share_the_mass(device):
    requests = 2_000
    target = np.full((2, 30), -3.0, np.float32)
    target[:, [4, 9, 22]] = INF
    rows = torch.from_numpy(target).repeat(requests, 1)
    params = [SamplingParams(seed=i) for i in range(requests)]
    output = verify(native(device), rows, [[9]] * requests, params, first=[1] * requests, device=device)
    firsts = np.bincount(output.token_ids[:, 0].cpu().numpy(), minlength=30)
    assert firsts.sum() == firsts[[4, 9, 22]].sum()
    assert firsts[[4, 9, 22]].min() > 550  # 5.5 standard deviations below a third
    assert output.valid.all()


def test_a_residual_that_rounding_leaves_empty_is_the_target(device):
    """Draft probabilities are too large everywhere: p is drawn from, with the noise of the residual."""
    target, params = gaussian(80), SamplingParams(seed=12)
    q = np.full((40, 300), 8.0, np.float32)
    output = verify(native(device), target, [[2]] * 40, params, device=device, draft_probs=q)
    as_placeholder = verify(native(device), target, [[-1]] * 40, params, device=device)
    rejected = (output.num_accepted == 0).nonzero().flatten()
    assert len(rejected) > 30
    assert torch.equal(output.token_ids[rejected, 0], as_placeholder.token_ids[rejected, 0])
