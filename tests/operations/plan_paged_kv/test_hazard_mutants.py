"""The hazards see planners with one bug each."""

import pytest
import torch

import paged_kv_cuda
import paged_kv_loop
import tokendraw
from mutants import by_name
from mutants.planners import CUDA_PLANNERS, HAZARDOUS, PLANNERS, PlannerMutant
from paged_kv_hazards import HAZARDS
from paged_kv_model import planner_of
from tokendraw import PluginError

MUTANTS = by_name((*PLANNERS, *CUDA_PLANNERS, *HAZARDOUS))
PLANTED = {
    "the tail behind the last page kept": "1 stale buffers",
    "page_indptr[0] never written": "1 stale buffers",
    "offsets of a call go on from the call before": "2 the prefill segment starts at 0",
    "an element behind page_indices written": "3 one segment leaves the other's buffers alone",
    "the number of pages read back": "4 no wait",
    "pages picked by a mask": "4 no wait",
    "an element set from a number of the host": "4 no wait",
    "W * page_size in int32": "5 int32 throughout",
    "length + page_size - 1 in int32": "5 int32 throughout",
    "a page too many at a page's edge": "6 edges",
    "a full last page without tokens": "6 edges",
    "a length below 0 counted as its amount": "6 edges",
    "padding of -1": "6 edges",
    "a block table read as if it lay dense": "6 strided tables",
    "lengths clamped in place": "inputs stay as they are",
}
NEEDS_CUDA = {
    "the number of pages read back": "4 no wait",
    "an element set from a number of the host": "4 no wait",
    "the lengths of the first call kept": "7 replays of a graph",
    "the tail behind the last page kept": "7 replays of a graph",
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_hazard_sees_a_planted_bug(bug):
    HAZARDS[PLANTED[bug]](planner_of(PlannerMutant(), "cpu"), "cpu")
    with pytest.raises(AssertionError):
        HAZARDS[PLANTED[bug]](planner_of(MUTANTS[bug].build(), "cpu"), "cpu")


@pytest.mark.parametrize(
    "bug",
    [
        "a page too many at a page's edge",
        "offsets of a call go on from the call before",
        "the lengths of the first call kept",
    ],
)
def test_the_loop_sees_a_planted_bug(bug):
    sampler = tokendraw.load_sampler("native", device="cpu")
    with pytest.raises(AssertionError, match=r"^step \d+: page_indptr|^step \d+: last_page_len"):
        paged_kv_loop.run(sampler, planner_of(MUTANTS[bug].build(), "cpu"), "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("bug", NEEDS_CUDA)
def test_a_hazard_of_a_cuda_device_sees_a_planted_bug(bug):
    with pytest.raises(AssertionError):
        paged_kv_cuda.HAZARDS[NEEDS_CUDA[bug]](planner_of(MUTANTS[bug].build(), torch.device("cuda:0")))


@pytest.mark.parametrize(
    "bug", ["offsets in int64", "another plan returned", "one plan for every call of a shape"]
)
def test_a_provider_that_writes_elsewhere_is_at_fault(bug):
    """Its plan would be one that the caller's graph does not know."""
    planner = planner_of(MUTANTS[bug].build(), "cpu")
    table, lengths = torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    with pytest.raises(PluginError) as refused:
        [planner.plan(lengths, table, 16) for _ in range(2)]
    assert str(refused.value) == (
        "'planted' needs to return the plan that it was given as 'out', found another PagedKVPlan. "
        "Mend the plugin, or set TOKENDRAW_DISABLE=planted."
    )
