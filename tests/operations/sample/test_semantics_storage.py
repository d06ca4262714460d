"""Logits in storage of layouts that the kit does not pass, and metadata of ready tensors, which are never modified."""

import pytest
import torch

from calling import assert_same_rows, call, tokens
from goodness_of_fit import KINDS, POISON, V, gaussians
from tokendraw import BatchFacts, SamplingMetadata

NAN, INF = float("nan"), float("inf")
LAYOUTS = {
    "a storage offset": lambda x, fill: torch.full((len(x) + 3, V + 5), fill)[2:-1, 5:].copy_(x),
    "transposed": lambda x, fill: torch.full((V, len(x)), fill).T.copy_(x),
    "every third column": lambda x, fill: torch.full((len(x), 3 * V), fill)[:, 1::3].copy_(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fill", [NAN, INF])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_any_layout_gives_the_same_bits_and_is_not_modified(load_native, device, layout, fill, mode):
    rows = torch.cat([gaussians(len(KINDS)), torch.stack(list(POISON.values()))]).to(device)
    params = [*KINDS.values(), *[KINDS["all"]] * len(POISON)]
    with torch.device(device):
        strided = LAYOUTS[layout](rows, fill)
    outputs = []
    for logits in (rows, strided):
        torch.manual_seed(12)
        outputs.append(call(load_native(mode), logits, params))
    assert tokens(outputs[0]) == tokens(outputs[1])
    assert torch.equal(outputs[0].valid, outputs[1].valid)
    assert torch.equal(outputs[0].logprobs.token_ids, outputs[1].logprobs.token_ids)
    torch.testing.assert_close(outputs[0].logprobs.logprobs, outputs[1].logprobs.logprobs, rtol=0, atol=2e-6)
    assert torch.equal(strided.contiguous().view(torch.int32), rows.view(torch.int32))


def test_one_row_expanded_to_a_batch_of_stride_0_is_a_batch(sampler):
    row = gaussians(1)
    expanded, copied = (call(sampler, x, KINDS["all"]) for x in (row.expand(50, V), row.repeat(50, 1)))
    assert_same_rows(expanded, copied)
    assert len(set(tokens(expanded))) > 5


def test_ready_tensors_out_of_range_are_not_modified(sampler, device):
    floats, flags = torch.tensor([NAN, -1.0, 2.0, 0.5]), torch.tensor([True, False, True, False])
    columns = {
        "temperature": torch.tensor([NAN, -1.0, 0.0, 2.0]),
        "top_k": torch.tensor([-5, 0, 10**9, 3]),
        "top_p": floats,
        "min_p": floats.clone(),
        "seed": torch.tensor([1, 2, 3, 4]),
        "seeded": flags,
        "positions": torch.tensor([1, 2, 3, 4]),
        "joint": flags.clone(),
        "logprobs": torch.tensor([1, 2, -1, 0]),
    }
    given = {name: column.to(device, copy=True) for name, column in columns.items()}
    out = sampler.sample(
        gaussians(4).to(device), SamplingMetadata(**given, facts=BatchFacts(max_logprobs=-1))
    )
    assert out.valid.all()
    for name, column in columns.items():
        torch.testing.assert_close(given[name].cpu(), column, rtol=0, atol=0, equal_nan=True)
