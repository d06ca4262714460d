"""The hazards of page plans, a test each, with native on a CPU and on a CUDA device."""

import functools

import pytest
import torch

import paged_kv_cuda
import paged_kv_loop
import tokendraw
from no_wait import NoWait
from paged_kv_hazards import HAZARDS
from paged_kv_model import ints
from tokendraw_native.paged_kv import NativePlanner


@functools.cache
def load(device):
    return tokendraw.load("plan_paged_kv", "native", device=device)


@pytest.mark.parametrize("hazard", HAZARDS)
def test_hazard(hazard, device):
    HAZARDS[hazard](load(device), device)


def test_hazard_8_the_loop(device):
    """20 steps of verify, advance and plan, without waiting in advance and plan, equal a loop that reads everything
    back.
    """
    paged_kv_loop.run(tokendraw.load_sampler("native", device=device), load(device), device)


@pytest.mark.gpu
@pytest.mark.parametrize("hazard", paged_kv_cuda.HAZARDS)
def test_hazard_on_a_cuda_device(hazard):
    paged_kv_cuda.HAZARDS[hazard](load(torch.device("cuda")))


@pytest.mark.parametrize("hazard", [name for name in HAZARDS if "3" not in name and "4" not in name])
def test_hazard_of_the_backend_alone(hazard, device):
    """Without the core around it, which passes ``out`` if the caller does not."""
    HAZARDS[hazard](NativePlanner(), device)


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
