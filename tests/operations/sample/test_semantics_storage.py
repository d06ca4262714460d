"""DESIGN section 2: logits in storage of any layout, and inputs never modified."""

import pytest
import torch

from calling import assert_same_rows, call, tokens
from goodness_of_fit import KINDS, MODES, POISON, V, gaussians
from tokendraw import BatchFacts, SamplingMetadata

NAN, INF = float("nan"), float("inf")

LAYOUTS = {
    "a row stride beyond V": lambda x, fill: torch.full((len(x), V + 77), fill)[:, :V].copy_(x),
    "a storage offset": lambda x, fill: torch.full((len(x) + 3, V + 5), fill)[2:-1, 5:].copy_(x),
    "every second row": lambda x, fill: torch.full((2 * len(x), V), fill)[1::2].copy_(x),
    "transposed": lambda x, fill: torch.full((V, len(x)), fill).T.copy_(x),
    "every third column": lambda x, fill: torch.full((len(x), 3 * V), fill)[:, 1::3].copy_(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fill", [NAN, INF, 3e38])
def test_any_stride_gives_the_same_bits_and_what_lies_between_the_rows_is_never_read(
    load_native, device, layout, fill
):
    rows = gaussians(len(KINDS)).to(device)
    params = list(KINDS.values())
    with torch.device(device):
        strided = LAYOUTS[layout](rows, fill)
    assert torch.equal(strided, rows)
    for mode in ("raw_logprobs", "processed_logprobs"):
        outputs = []
        for logits in (rows, strided):
            torch.manual_seed(12)
            outputs.append(call(load_native(mode), logits, params))
        assert tokens(outputs[0]) == tokens(outputs[1])
        assert outputs[1].valid.all()
        assert torch.equal(outputs[0].logprobs.token_ids, outputs[1].logprobs.token_ids)
        torch.testing.assert_close(
            outputs[0].logprobs.logprobs, outputs[1].logprobs.logprobs, rtol=0, atol=2e-6
        )


def test_one_row_expanded_to_a_batch_of_stride_0_is_a_batch(sampler):
    row = gaussians(1)
    expanded, copied = (call(sampler, x, KINDS["all"]) for x in (row.expand(50, V), row.repeat(50, 1)))
    assert_same_rows(expanded, copied)
    assert len(set(tokens(expanded))) > 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.fast_first
def test_logits_are_never_modified(load_native, device, dtype, mode):
    rows = torch.cat([gaussians(len(KINDS)), torch.stack(list(POISON.values()))]).to(dtype)
    storage = torch.full((len(rows), V + 9), 5.0, dtype=dtype)
    storage[:, :V] = rows
    storage = storage.to(device)
    before = storage.clone()
    call(load_native(mode), storage[:, :V], list(KINDS.values()) + [KINDS["all"]] * len(POISON))
    for kind in KINDS.values():
        call(load_native(mode), storage[:, :V], kind)
    assert torch.equal(storage.view(torch.uint8), before.view(torch.uint8))


def test_the_metadata_is_never_modified(sampler, device):
    metadata = SamplingMetadata(
        temperature=torch.tensor([NAN, -1.0, 0.0, 2.0], device=device),
        top_k=torch.tensor([-5, 0, 10**9, 3], device=device),
        top_p=torch.tensor([NAN, -1.0, 2.0, 0.5], device=device),
        min_p=torch.tensor([NAN, -1.0, 2.0, 0.5], device=device),
        seed=torch.tensor([1, 2, 3, 4], device=device),
        seeded=torch.tensor([True, False, True, False], device=device),
        positions=torch.tensor([1, 2, 3, 4], device=device),
        joint=torch.tensor([True, False, True, False], device=device),
        logprobs=torch.tensor([1, 2, -1, 0], device=device),
        facts=BatchFacts(max_logprobs=-1),
    )
    names = ("temperature", "top_k", "top_p", "min_p", "seed", "seeded", "positions", "joint", "logprobs")
    before = {name: getattr(metadata, name).clone() for name in names}
    out = sampler.sample(gaussians(4).to(device), metadata)
    assert out.valid.all()
    for name in names:
        torch.testing.assert_close(getattr(metadata, name), before[name], rtol=0, atol=0, equal_nan=True)
