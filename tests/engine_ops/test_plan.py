"""Page plans: the page's loop and table, arithmetic between steps, refusals, and the kernel."""

import inspect
import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import call_tables
import pages
import tokendraw
from tokendraw import PluginError
from tokendraw_engine_ops.backends import TorchPlanner
from tokendraw_engine_ops.paged_kv import PagedKVPlan, advance, requirements, segment_query_indptr

PAGE = pages.text_of("engine_ops/paged-kv.md")
TABLE = {
    tuple(row[:4]): (row[4].strip("`"), row[5]) for row in pages.rows(PAGE, 6) if row[5] in ("yes", "no")
}
FACTS, NAMES = (tuple(inspect.signature(function).parameters) for function in (requirements, advance))


def ints(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def planner():
    return tokendraw.load("plan_paged_kv", device="cpu")


# The page


def test_the_loop_prints_the_shown_results():
    names = {}
    (source,) = pages.blocks(PAGE, "python")
    exec(source, names)
    shown = {cells[0]: cells[1] for cells in pages.rows(PAGE, 2) if re.fullmatch(r"[-\d, ]+", cells[1])}
    assert len(shown) == 7
    for expression, values in shown.items():
        needed = [int(value) for value in values.split(", ")]
        assert eval(expression.strip("`"), names).tolist()[: len(needed)] == needed, expression
    assert names["prefill_query_indptr"].tolist() == [0, 60]
    assert (names["decodes"], names["prefills"]) == (names["decode_buffers"], names["prefill_buffers"])


def test_its_table_is_that_of_the_function():
    for values in itertools.product((0, 2), (0, 2), *[(False, True)] * 4, (0, 3), (False, True)):
        result = requirements(**dict(zip(FACTS, values, strict=True)))
        prefills, decodes, prefill_on_device, decode_on_device, dcp, causal, drafts, bound = values
        on_device = (not prefills or prefill_on_device) and (not decodes or decode_on_device)
        needs_lengths = ("yes" if dcp or not causal else "no") if on_device else "any"
        (row,) = [
            row
            for row in TABLE
            if row[:2] == ("all on device" if on_device else "one is not", needs_lengths)
            and row[2] in ("any", "more" if drafts else "0")
            and row[3] in ("any", "yes" if bound else "no")
        ]
        assert TABLE[row] == (result.host_seq_lens, "yes" if result.page_indices else "no")


# Between steps


def test_lengths_grow_by_the_accepted_tokens_and_prefills_lose_nothing(device):
    steps = ([10, 10, 10, 512], [4, 4, 1, 256], [4, 4, 1, 0], [1, 4, 1, 7], [4, 1, 2, 100])
    inputs = [ints(step, device) for step in steps]
    computed, lengths = advance(*inputs)
    assert (computed.tolist(), lengths.tolist()) == ([11, 14, 11, 768], [15, 15, 13, 868])
    assert [tensor.tolist() for tensor in inputs] == list(steps)
    assert (computed.dtype, lengths.dtype) == (torch.int32, torch.int32)
    assert [tensor.tolist() for tensor in advance(*[ints([], device)] * 5)] == [[], []]


def test_a_segment_counts_from_its_own_start(device):
    indptr = torch.tensor([0, 4, 5, 265], device=device)
    segments = [segment_query_indptr(indptr, first) for first in range(4)]
    indptr.fill_(7)
    assert [segment.tolist() for segment in segments] == [[0, 4, 5, 265], [0, 1, 261], [0, 260], [0]]


# Refusals

LENGTHS, BLOCKS = ints([5, 0, 33]), torch.arange(12, dtype=torch.int32).view(3, 4)


def test_arguments_that_cannot_be_are_refused():
    def plan(**changes):
        return planner().plan(**{"seq_lens": LENGTHS, "block_table": BLOCKS, "page_size": 16} | changes)

    names = {
        "plan": plan,
        "LENGTHS": LENGTHS,
        "BLOCKS": BLOCKS,
        "ints": ints,
        "np": np,
        "empty": PagedKVPlan.empty,
        "asked": lambda **found: requirements(
            **dict.fromkeys(FACTS[:2], 1) | dict.fromkeys(FACTS[2:4], True) | found
        ),
        "advanced": lambda at, wrong: advance(*[wrong if i == at else ints([1, 2]) for i in range(5)]),
        "torch": torch,
        "segment_query_indptr": segment_query_indptr,
    }
    table = call_tables.Table(__file__, "plan_refusals.txt")
    assert table.found(lambda: dict(names)) == table.text


def test_a_wrong_plan_is_no_proof_and_named_with_the_setting_debug(monkeypatch):
    def full(self, seq_lens, *rest, **options):
        return plan(self, seq_lens + (seq_lens == 33), *rest, **options)

    plan = TorchPlanner.plan
    monkeypatch.setenv("TOKENDRAW_DEBUG", "1")
    monkeypatch.setattr(TorchPlanner, "plan", full)
    with pytest.raises(PluginError, match=r"'ops-torch' needs to return last_page_len\[2\] 1, found 2\. "):
        planner().plan(LENGTHS, BLOCKS, 16)
    monkeypatch.setattr(TorchPlanner, "plan", lambda self, seq_lens, *rest, out, **more: out)
    with pytest.raises(tokendraw.SamplerUnavailableError, match="ops-torch: the proof call plan needs"):
        planner()


# The kernel

INTERPRETED = """
import dataclasses, torch, tokendraw_engine_ops
from tokendraw_testing import Effort, Subject, run
plugin = tokendraw_engine_ops.ops_triton
offered = plugin.tokendraw_describe().operations["plan_paged_kv"]
anywhere = dataclasses.replace(offered, device_types=None, compute_capability=(None, None), rocm_archs=None)
subject = Subject("ops-triton", capabilities={"plan_paged_kv": anywhere}, device="cpu", effort=Effort.tiny(),
    build=lambda operation, need: plugin.tokendraw_build(operation, torch.device("cpu"), need))
print(*(f"{line.name}: {line.status}" for line in run(subject, operation="plan_paged_kv").lines), sep="\\n")
"""


@pytest.mark.slow
def test_the_kernel_passes_the_kit_in_the_interpreter(dists):
    pytest.importorskip("triton", reason="Triton is not installed")
    path = os.pathsep.join([*map(str, dists.folders), *sys.path])
    environ = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    ran = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, env=environ, check=False
    )
    assert re.findall(r": (\w+)", ran.stdout) == ["passed"] * 2 + ["not"] * 3, ran.stdout + ran.stderr


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_the_kernel_compiles(target):
    stand_ins = pytest.importorskip("triton_stand_ins", reason="Triton is not installed")
    from tokendraw_engine_ops.triton_planner import LARGE, SMALL, write_plan

    names = write_plan.arg_names
    types = dict.fromkeys([*names[:2], *names[4:7]], "*i32") | {"row_stride": "i64"}
    for division, absent in ((SMALL, {"page_indices": None}), (LARGE, {})):
        constants = dict(zip(names[-3:], division, strict=True)) | absent
        assert stand_ins.machine_code(write_plan, types, constants, target)


@pytest.mark.gpu
def test_nothing_is_compiled_after_the_kernel_is_loaded(monkeypatch):
    plans, compiled = tokendraw.load("plan_paged_kv", "ops-triton", device="cuda"), []
    plans.prepare()
    hook = "triton.knobs.runtime.jit_post_compile_hook"
    monkeypatch.setattr(hook, lambda *, fn, **_: compiled.append(fn.name))
    for requests, width in ((0, 5), (1, 1), (3, 0), (7, 33), (5, 9000), (1024, 300), (9000, 17)):
        table = torch.arange(requests * width, dtype=torch.int32, device="cuda").view(requests, width)
        plans.plan(ints([900] * requests, "cuda"), table, 16)
    assert compiled == []
