"""Page plans by triton-gumbel on CPU tensors, in Triton's interpreter."""

import torch

import paged_kv_model
import tokendraw
from paged_kv_model import ints, planner_of, require_plan, sentinels, table_of
from tokendraw.plugin import HostCapabilities
from tokendraw_testing import Effort, Subject, run
from tokendraw_triton_gumbel.launches import paged_kv
from tokendraw_triton_gumbel.planner import TritonPagedKVPlanner

CPU = torch.device("cpu")


def kit():
    """Put the planner to the lines of the conformance kit, and to an engine's loop, which verifies by native."""
    subject = Subject(
        "triton-gumbel",
        capabilities={"plan_paged_kv": HostCapabilities(device_types=None)},
        device="cpu",
        build=lambda operation, need: TritonPagedKVPlanner(CPU),
        effort=Effort.tiny(),
    )
    outcomes = {
        line.name: f"{line.status} {line.detail}" for line in run(subject).lines if line.status == "failed"
    }
    planner = planner_of(TritonPagedKVPlanner(CPU), CPU)
    paged_kv_model.run_loop(tokendraw.load_sampler("native", device=CPU), planner, CPU)
    return outcomes


def groups():
    """Compare programs of four requests, 64 lengths and two columns with plain Python: how many batches are right."""
    paged_kv._LARGE_BATCH_REQUESTS, paged_kv._PROGRAMS = 2, 8
    paged_kv.LARGE = paged_kv.PlanDivision(paged_kv.PlanConfig(REQUESTS=4, AT_ONCE=64, COLUMNS=2), 4)
    planner, batches = (
        planner_of(TritonPagedKVPlanner(CPU), CPU),
        ((7, 4, 16), (15, 4, 3), (64, 1, 1), (700, 67, 16)),
    )
    for requests, columns, page_size in batches:
        lengths = [i * 37 % 1100 for i in range(requests)]
        table, out = table_of(requests, columns), sentinels(requests, columns, CPU)
        for tables in (table, ints(table_of(2 * requests, columns + 3), CPU)[::2, 2 : columns + 2]):
            require_plan(planner, lengths, tables, page_size, CPU, pad=0, out=out)
    return len(batches)
