"""Page plans by triton-gumbel on CPU tensors, in Triton's interpreter.

``python plans.py kit`` prints, as JSON, the red lines of the conformance kit; ``... groups`` compares programs that
plan several requests, read their lengths in several turns and share columns with plain Python.
"""

import json
import sys

import fast_interpreter  # first: it has Triton interpret

fast_interpreter.hurry()

import torch  # noqa: E402

import paged_kv_loop  # noqa: E402
import tokendraw  # noqa: E402
from paged_kv_model import ints, planner_of, require_plan, sentinels, table_of  # noqa: E402
from tokendraw.plugin import HostCapabilities  # noqa: E402
from tokendraw_testing import Effort, Subject, run  # noqa: E402
from tokendraw_triton_gumbel.launches import paged_kv  # noqa: E402
from tokendraw_triton_gumbel.planner import TritonPagedKVPlanner  # noqa: E402

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
    paged_kv_loop.run(tokendraw.load_sampler("native", device=CPU), planner, CPU)
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


PROGRAMS = {f.__name__: f for f in (kit, groups)}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](*sys.argv[2:])))
