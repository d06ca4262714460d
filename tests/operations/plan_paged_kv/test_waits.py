"""Page plans by native wait for nothing on the device, and neither do a step's lengths and segments."""

import pytest
import torch

import tokendraw
from cuda_batches import NoWait
from paged_kv_model import ints, require_no_wait


def test_no_operation_of_torch_waits_for_the_device(device):
    require_no_wait(tokendraw.load("plan_paged_kv", "native", device=device), device)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x[0].item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x.unique_consecutive(),
        lambda x: x.repeat_interleave(x),
        lambda x: x.__setitem__(x > 0, torch.ones(2, dtype=torch.int32)),
        lambda x: int(x.max()),
        lambda x: x.__setitem__(0, 0),
        lambda x: x[[0, 1]],
        lambda x: x + torch.tensor([1, 2, 3]),
    ],
)
def test_the_check_for_waits_sees_one(wait):
    with NoWait(), pytest.raises(AssertionError, match="waits for the device"):
        wait(ints([0, 1, 2], "cpu"))


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.__setitem__(slice(0, 1), 0),
        lambda x: x[:1].zero_(),
        lambda x: x[1:].copy_(x[:2].clone()),
        lambda x: x[x.long()],
        lambda x: x.masked_fill_(x > 0, 0),
        lambda x: torch.where(x > 0, x, 0),
        lambda x: x.repeat_interleave(x, output_size=3),
    ],
)
def test_the_check_for_waits_lets_pass_what_does_not_wait(work):
    given = ints([0, 1, 2], "cpu")
    with NoWait():
        work(given)
