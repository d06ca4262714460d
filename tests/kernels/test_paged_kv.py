"""Page plans of triton-gumbel on a CPU: results in Triton's interpreter, compilations, and launches."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw import PagedKVPlan
from tokendraw.plugin import HostCapabilities, HostNeed, PagedKVPlannerBackend
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.launches import paged_kv
from tokendraw_triton_gumbel.planner import TritonPagedKVPlanner
from triton_stand_ins import ENDS, compiled_call, flat, has_machine_code, interpreted

CPU = torch.device("cpu")
FORMS = 4
"""A kernel for small batches and one for large, each with the list of pages and without."""


@pytest.mark.slow
def test_programs_of_several_requests_that_share_columns():
    """The lines of the kit are run in ``test_interpreted.py``."""
    assert interpreted("plans", "groups") == 4


def test_the_plugin_offers_and_builds_it(kernels):
    described = plugin.tokendraw_describe().operations
    assert described["plan_paged_kv"] == HostCapabilities(
        device_types=("cuda", "rocm"),
        compute_capability=((8, 0), None),
        rocm_archs=("gfx90a", "gfx942", "gfx950", "gfx1201"),
        graph_safe=True,
        sync_free=True,
    )
    planner = plugin.tokendraw_build("plan_paged_kv", CPU, HostNeed())
    assert isinstance(planner, PagedKVPlannerBackend)


# What is compiled.


@pytest.mark.fast_first
@pytest.mark.parametrize("target", ENDS)
def test_every_form_of_the_kernel_compiles(kernels, target):
    TritonPagedKVPlanner(CPU)
    calls = kernels["write_plan"].calls
    assert len(calls) == FORMS
    assert [has_machine_code(compiled_call(call, target)) for call in calls] == [True] * FORMS


def plan(planner, requests, width, page_size=16, *, page_indices=True, pad=-1, offset=0, stride=None):
    """Plan zero lengths; return the tensors passed to the planner."""
    lengths = torch.zeros(requests + offset, dtype=torch.int32)[offset:]
    stride = stride or width + offset
    memory = torch.zeros((requests + 1) * max(stride, 1), dtype=torch.int32)
    table = memory.as_strided((requests, width), (stride, 1), offset)
    out = PagedKVPlan.empty(requests, width, page_indices=page_indices)
    assert planner.plan(lengths, table, page_size, page_indices, pad, out) is out
    return lengths, table, out


def test_all_is_compiled_when_a_planner_is_built_and_nothing_later(kernels):
    planner = TritonPagedKVPlanner(CPU)
    before = len(kernels["write_plan"].compilations)
    for requests in (0, 1, 2, 16, 1023, 1024, 5000):
        for width in (0, 1, 16, 33):
            for page_indices in (True, False):
                for offset in range(3):
                    plan(planner, requests, width, page_indices=page_indices, offset=offset)
    for page_size, pad in ((1, 0), (16, 16), (2**31 - 1, -(2**31))):
        plan(planner, 3, 4, page_size, pad=pad)
    TritonPagedKVPlanner(CPU)
    assert len(kernels["write_plan"].compilations) == before == FORMS


def test_a_row_stride_is_64_bits_wide_and_a_multiple_of_nothing(kernels):
    """A single kernel serves every table: rows beyond 2**31 elements, and rows at any alignment."""
    TritonPagedKVPlanner(CPU)
    for _, arguments, _ in kernels["write_plan"].calls:
        (stride,) = [field for field in flat(arguments) if isinstance(field, int) and field > 3]
        assert stride >> 31
        assert stride % 2


# What is launched.


@pytest.mark.parametrize(
    ("requests", "width", "grid"),
    [
        (0, 64, (1, 1, 1)),
        (1, 0, (1, 1, 1)),
        (256, 64, (256, 1, 1)),
        (256, 1000, (256, 2, 1)),
        (2, 100_000, (2, 264, 1)),
        (1023, 1000, (1023, 1, 1)),
        (1024, 512, (128, 4, 1)),
        (4096, 512, (512, 1, 1)),
        (4097, 1, (513, 1, 1)),
    ],
)
def test_a_plan_is_one_launch_of_about_a_program_a_request(requests, width, grid):
    """Large batches have a program for eight requests; with few programs, several share the columns of a request."""
    launches = paged_kv.PlanLaunches(processors=132)
    assert launches.of(requests, width, True)[1] == grid
    assert launches.of(requests, width, False)[1] == (grid[0], 1, 1)


def test_a_launch_is_given_addresses_and_numbers(kernels):
    planner = TritonPagedKVPlanner(CPU)
    lengths, table, out = plan(planner, 3, 5, 7, pad=-2, stride=11)
    plan(planner, 3, 5, page_indices=False)
    (grid, listed), (_, unlisted) = kernels["write_plan"].launches
    places = [tensor.data_ptr() for tensor in vars(out).values()]
    assert grid == (3, 1, 1)
    assert flat(listed[:-1]) == [lengths.data_ptr(), table.data_ptr(), 11, 5, *places, 3, 7, -2]
    assert flat(unlisted[:-1])[6] is None


def test_without_buffers_a_planner_makes_its_own(kernels):
    planner = TritonPagedKVPlanner(CPU)
    result = planner.plan(torch.zeros(3, dtype=torch.int32), torch.zeros(3, 5, dtype=torch.int32), 16)
    assert [len(tensor) for tensor in vars(result).values()] == [4, 3, 15]
