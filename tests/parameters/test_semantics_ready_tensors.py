"""DESIGN section 2: values in ready device tensors are not checked but clamped; facts only allow skipping work."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from calling import assert_same_rows, shown_values, tokens
from tokendraw import BatchFacts, SamplingMetadata, SamplingParams
from tokendraw_testing import reference
from tokendraw_testing.logits_families import gaussian, zipf

V = 1500
NAN, INF = math.nan, math.inf


def row(seed=0, size=V):
    return gaussian(np.random.default_rng(seed), size)


CLAMPED = [
    *[("top_k", k, SamplingParams()) for k in (0, -1, -5, V, V + 1, 2**30, -(2**62))],
    *[("top_p", p, SamplingParams()) for p in (1.0, 1.5, INF, NAN)],
    *[("top_p", p, SamplingParams(top_p=1e-30)) for p in (0.0, -0.0, -1.0, -INF, 1e-45)],
    *[("temperature", t, SamplingParams(temperature=0.0)) for t in (0.0, -0.0, -1.0, -INF, NAN)],
    *[("min_p", m, SamplingParams()) for m in (0.0, -1.0, -INF, NAN)],
    *[("min_p", m, SamplingParams(min_p=1.0)) for m in (1.0, 1.5, INF)],
]


@pytest.mark.parametrize("narrow", [False, True], ids=["float64 and int64", "float32 and int32"])
@pytest.mark.parametrize(("field", "value", "same_as"), CLAMPED)
def test_a_value_in_a_ready_tensor_is_clamped_to_the_table_and_touches_no_neighbour(
    load_native, device, field, value, same_as, narrow
):
    """The middle row of three filtered rows holds the odd value; a vocabulary of two tiles."""
    logits = np.stack([row(s) for s in range(3)])
    params = [SamplingParams(0.75, 300, 0.875, 2.0**-10)] * 3  # exact in float32 too
    params[1] = replace(params[1], **{field: getattr(same_as, field)})
    columns = {
        name: [getattr(p, name) for p in params] for name in ("temperature", "top_k", "top_p", "min_p")
    }
    columns[field][1] = max(value, -(2**31)) if narrow and field == "top_k" else value
    reals, integers = (torch.float32, torch.int32) if narrow else (torch.float64, torch.int64)
    ready = SamplingMetadata(
        seed=torch.tensor([4, 5, 6], device=device),
        positions=torch.tensor([1, 2, 3], device=device),
        logprobs=torch.tensor([-1] * 3, device=device),
        facts=BatchFacts(max_logprobs=-1),
        **{
            name: torch.tensor(values, dtype=integers if name == "top_k" else reals, device=device)
            for name, values in columns.items()
        },
    )
    out = load_native("processed_logprobs").sample(torch.from_numpy(logits).to(device), ready)
    for i, expected in enumerate(map(reference.prepare, logits, params)):
        assert expected.certain
        assert np.array_equal(np.isfinite(shown_values(out)[i]), expected.kept)
        assert out.token_ids[i] == reference.draw(expected, 4 + i, 1 + i)[0]
    assert out.valid.tolist() == [True] * 3


def test_top_p_at_or_below_0_keeps_only_the_argmax_and_its_ties(load_native, device):
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, -1.0, -2.0, -3.0]], device=device)
    ready = SamplingMetadata(
        top_p=torch.tensor([0.0, -1.0], device=device),
        logprobs=torch.tensor([-1, -1], device=device),
        facts=BatchFacts(max_logprobs=-1),
    )
    kept = np.isfinite(shown_values(load_native("processed_logprobs").sample(logits, ready)))
    assert kept.tolist() == [[False, True, True, False], [True, False, False, False]]


def test_an_infinite_temperature_in_a_ready_tensor_touches_no_other_row(sampler, device):
    logits = torch.from_numpy(np.stack([row(s) for s in range(3)])).to(device)
    outputs = [
        sampler.sample(
            logits,
            SamplingMetadata(
                temperature=torch.tensor([0.7, middle, 0.7], device=device),
                seed=torch.tensor([1, 2, 3], device=device),
                positions=torch.tensor([1, 2, 3], device=device),
            ),
        )
        for middle in (0.7, INF)
    ]
    assert_same_rows(*outputs, rows=[0, 2])
    assert 0 <= outputs[1].token_ids[1] < V


def test_facts_change_nothing_but_what_is_skipped(load_native, device):
    """A batch of known kinds gives the result of a batch that "may hold" anything, bit for bit."""
    rng = np.random.default_rng(9)
    filters = [(0, 1.0, 0.0), (20, 1.0, 0.0), (0, 0.9, 0.0), (20, 0.9, 0.0), (0, 1.0, 0.05), (20, 0.9, 0.05)]
    params = [SamplingParams(t, *of_row, seed=8, logprobs=3) for t in (0.5, 1.3) for of_row in filters]
    sampler = load_native("processed_logprobs")
    for one in params:
        logits = torch.from_numpy(np.stack([zipf(rng, 3000) for _ in range(4)])).to(device)
        known = SamplingMetadata.from_params([one] * 4, device=device, positions=[0, 1, 2, 3])
        joint = torch.zeros(4, dtype=torch.bool, device=device)
        unknown = replace(known, joint=joint, facts=BatchFacts(max_logprobs=3), row_kinds=None)
        one_way, other_way = sampler.sample(logits, known), sampler.sample(logits, unknown)
        assert tokens(one_way) == tokens(other_way)
        assert torch.equal(one_way.logprobs.token_ids, other_way.logprobs.token_ids)
        torch.testing.assert_close(one_way.logprobs.logprobs, other_way.logprobs.logprobs, rtol=0, atol=2e-6)
