"""Page plans by triton-gumbel on CPU tensors, in Triton's interpreter.

``python triton_plan_kernels.py hazards`` prints, as JSON, what each hazard found; ``... groups`` does the same with
programs that plan several requests, read their lengths in several turns and share columns.
"""

import json
import sys

import fast_interpreter  # first: it has Triton interpret

fast_interpreter.hurry()

import torch  # noqa: E402

import paged_kv_loop  # noqa: E402
import tokendraw  # noqa: E402
from paged_kv_hazards import HAZARDS  # noqa: E402
from paged_kv_model import planner_of  # noqa: E402
from tokendraw_triton_gumbel.launches import paged_kv  # noqa: E402
from tokendraw_triton_gumbel.planner import TritonPagedKVPlanner  # noqa: E402

CPU = torch.device("cpu")


def loop(planner, device):
    """Verify by native: the planner is what is looked at."""
    paged_kv_loop.run(tokendraw.load_sampler("native", device=device), planner, device)


def hazards():
    """Put the planner to each, and to the loop."""
    return outcomes(HAZARDS | {"8 the loop": loop})


def groups():
    """Put programs of four requests, 64 lengths and two columns to the hazards of their output."""
    paged_kv._LARGE_BATCH_REQUESTS, paged_kv._PROGRAMS = 2, 8
    paged_kv.LARGE = paged_kv.PlanDivision(paged_kv.PlanConfig(REQUESTS=4, AT_ONCE=64, COLUMNS=2), 4)
    return outcomes({name: hazard for name, hazard in HAZARDS.items() if name[0] in "16"})


def outcomes(hazards):
    """Say of each that the plans were right, or what was wrong."""
    planner, found = planner_of(TritonPagedKVPlanner(CPU), CPU), {}
    for name, hazard in hazards.items():
        try:
            hazard(planner, CPU)
            found[name] = "right"
        except AssertionError as error:
            found[name] = str(error)
    return found


PROGRAMS = {f.__name__: f for f in (hazards, groups)}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](*sys.argv[2:])))
