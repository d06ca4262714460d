"""Planners with one bug each behind the core: what the kit looks for on a device alone."""

import pytest
import torch

from mutants import by_name
from mutants.planners import CUDA_PLANNERS, LOOP_PLANNERS, PLANNERS
from paged_kv_model import planner_of, require_no_wait
from tokendraw import PluginError

MUTANTS = by_name((*PLANNERS, *CUDA_PLANNERS, *LOOP_PLANNERS))
WAITING = (
    "the number of pages read back",
    "pages picked by a mask",
    "an element set from a number of the host",
)


@pytest.mark.parametrize("bug", WAITING)
def test_a_wait_is_seen_on_a_cpu(bug):
    with pytest.raises(AssertionError, match="waits for the device"):
        require_no_wait(planner_of(MUTANTS[bug].build(), "cpu"), "cpu")


@pytest.mark.parametrize(
    "bug", ["offsets in int64", "another plan returned", "one plan for every call of a shape"]
)
def test_a_provider_that_writes_elsewhere_is_at_fault(bug):
    """A captured graph reads the plan that the first call returned."""
    planner = planner_of(MUTANTS[bug].build(), "cpu")
    table, lengths = torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    with pytest.raises(PluginError) as refused:
        [planner.plan(lengths, table, 16) for _ in range(2)]
    assert str(refused.value) == (
        "'planted' needs to return the plan that it was given as 'out', found another PagedKVPlan. "
        "Mend the plugin, or set TOKENDRAW_DISABLE=planted."
    )
