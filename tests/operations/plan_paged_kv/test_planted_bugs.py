"""The hazards see each planner with a planted bug."""

import pytest
import torch

import paged_kv_cuda
import paged_kv_loop
import planted_plan_bugs as planted
import tokendraw
from paged_kv_hazards import HAZARDS
from paged_kv_model import planner_of
from tokendraw import PluginError

PLANTED = {
    planted.KeepsTheTail: "1 stale buffers",
    planted.KeepsTheFirst: "1 stale buffers",
    planted.StartsWhereTheLastEnded: "2 the prefill segment starts at 0",
    planted.WritesBehind: "3 one segment leaves the other's buffers alone",
    planted.Waits: "4 no wait",
    planted.Masks: "4 no wait",
    planted.SetsAnElement: "4 no wait",
    planted.LimitWraps: "5 int32 throughout",
    planted.RoundingWraps: "5 int32 throughout",
    planted.OnePageTooMany: "6 edges",
    planted.EmptyHasALastPage: "6 edges",
    planted.NegativeLengthsCount: "6 edges",
    planted.PadsWithMinusOne: "6 edges",
    planted.DenseTables: "6 strided tables",
    planted.ClampsInPlace: "inputs stay as they are",
}
NEEDS_CUDA = {
    planted.Waits: "4 no wait",
    planted.SetsAnElement: "4 no wait",
    planted.Remembers: "7 replays of a graph",
    planted.KeepsTheTail: "7 replays of a graph",
}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_hazard_sees_a_planted_bug(bug):
    HAZARDS[PLANTED[bug]](planner_of(planted.Honest(), "cpu"), "cpu")
    with pytest.raises(AssertionError):
        HAZARDS[PLANTED[bug]](planner_of(bug(), "cpu"), "cpu")


@pytest.mark.parametrize("bug", [planted.OnePageTooMany, planted.StartsWhereTheLastEnded, planted.Remembers])
def test_the_loop_sees_a_planted_bug(bug):
    sampler = tokendraw.load_sampler("native", device="cpu")
    with pytest.raises(AssertionError, match=r"^step \d+: page_indptr|^step \d+: last_page_len"):
        paged_kv_loop.run(sampler, planner_of(bug(), "cpu"), "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("bug", NEEDS_CUDA, ids=lambda bug: bug.__name__)
def test_a_hazard_of_a_cuda_device_sees_a_planted_bug(bug):
    with pytest.raises(AssertionError):
        paged_kv_cuda.HAZARDS[NEEDS_CUDA[bug]](planner_of(bug(), torch.device("cuda:0")))


@pytest.mark.parametrize("bug", [planted.Int64, planted.AnotherPlan, planted.OthersBuffers])
def test_a_provider_that_writes_elsewhere_is_at_fault(bug):
    """Its plan would be unknown to the caller's graph."""
    planner = planner_of(bug(), "cpu")
    table, lengths = torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    with pytest.raises(PluginError) as refused:
        [planner.plan(lengths, table, 16) for _ in range(2)]
    assert str(refused.value) == (
        "'planted' needs to return the plan that it was given as 'out', found another PagedKVPlan. "
        "Mend the plugin, or set TOKENDRAW_DISABLE=planted."
    )
