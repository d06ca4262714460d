"""Page plans by triton-gumbel on CPU tensors, in Triton's interpreter."""

import torch

from paged_kv_model import ints, planner_of, sentinels, table_of
from tokendraw_triton_gumbel.launches import paged_kv
from tokendraw_triton_gumbel.planner import TritonPagedKVPlanner

CPU = torch.device("cpu")


def groups():
    """Check programs of four requests, 64 lengths and two columns: how many batches are right."""
    paged_kv._LARGE_BATCH_REQUESTS, paged_kv._PROGRAMS = 2, 8
    paged_kv.LARGE = paged_kv.PlanDivision(paged_kv.PlanConfig(REQUESTS=4, AT_ONCE=64, COLUMNS=2), 4)
    planner, batches = (
        planner_of(TritonPagedKVPlanner(CPU), CPU, debug=True),
        ((7, 4, 16), (15, 4, 3), (64, 1, 1), (700, 67, 16)),
    )
    for requests, columns, page_size in batches:
        lengths = [i * 37 % 1100 for i in range(requests)]
        table, out = ints(table_of(requests, columns), CPU), sentinels(requests, columns, CPU)
        for tables in (table, ints(table_of(2 * requests, columns + 3), CPU)[::2, 2 : columns + 2]):
            planner.plan(ints(lengths, CPU), tables, page_size, pad=0, out=out)
    return len(batches)
