"""The kernels of triton-gumbel compiled to machine code for every target, on a machine that has none of them."""

import re

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import triton_on_a_cpu
from tokendraw_triton_gumbel import configurations, draw, tiles, wide
from tokendraw_triton_gumbel.few import LEAST_CANDIDATES, MOST_CANDIDATES
from tokendraw_triton_gumbel.search import CAPACITY
from triton_on_a_cpu import TARGETS

TYPES = {
    "row_stride": "i64",
    "temperature": "*fp64",
    "row_index": "*i64",
    "maxima": "*fp32",
    "sums": "*fp32",
    "raw_sums": "*fp32",
    "seeds": "*i64",
    "seeded": "*i1",
    "fresh": "*i64",
    "positions": "*i64",
    "top_k": "*i64",
    "top_p": "*fp64",
    "min_p": "*fp64",
    "joint": "*i1",
    "listed": "*i32",
    "values": "*fp32",
    "ids": "*i32",
    "queue": "*i32",
    "ready": "*i32",
    "arrivals": "*i32",
    "plans": "*fp32",
    "notes": "*i32",
    "partials": "*fp32",
    "near": "*i32",
    "ranks": "*i64",
    "own_sums": "*fp32",
    "own_ids": "*i64",
    "own_values": "*fp32",
    "token_ids": "*i64",
    "valid": "*i1",
    "floors": "*fp32",
    "log_kept": "*fp32",
}
OF_VERIFICATIONS = (
    "drafts",
    "draft_stride",
    "cu_num_logits",
    "counters",
    "tops",
    "masses",
    "candidates",
)
"""Arguments that are None in a call of ``sample``."""


PASSES = [("fp32", 4, False), ("bf16", 8, False), ("fp16", 8, False)]
"""Type, vector, whether it is read in pairs: bfloat16 is, on NVIDIA."""


def compiled(kernel, dtype, target, warps=4, anywhere=(), **constants):
    """Of a call with everything that there is, by stages."""
    types = {**TYPES, "logits": f"*{dtype}", "granules": f"*{dtype}"}
    constants = {name: None for name in OF_VERIFICATIONS if name in kernel.arg_names} | constants
    if "PTX" in kernel.arg_names:
        constants["PTX"] = TARGETS[target][0] == "cuda"
    return triton_on_a_cpu.compiled(
        kernel, types, constants, target, aligned=True, anywhere=anywhere, warps=warps
    )


def machine_code(*args, **kwargs):
    asm = compiled(*args, **kwargs)
    return asm.get("cubin") or asm.get("hsaco") or b""


def has_machine_code(code):
    return len(code) > 1000


@pytest.mark.parametrize("target", TARGETS)
def test_the_pass_over_the_tiles_compiles(target):
    for dtype, vector, paired in [*PASSES, *[("bf16", 8, True)] * (TARGETS[target][0] == "cuda")]:
        constants = {"SPAN": 2, "VECTOR": vector, "PAIRED": paired}
        assert has_machine_code(machine_code(tiles.tile_statistics, dtype, target, warps=1, **constants))


def instructions(asm):
    """Without line numbers and debug information."""
    code = asm["ptx"].partition(".section")[0]
    return [line for line in code.splitlines() if not line.lstrip().startswith((".loc", ".file", "//"))]


ASKED = ("temperature", "row_index")


def pass_over_tiles(*anywhere):
    several = {"SPAN": 1, "VECTOR": 8, "PAIRED": True}
    return instructions(compiled(tiles.tile_statistics, "bf16", "sm_90", 1, anywhere, **several))


def test_a_kernel_that_knows_not_where_parameters_lie_is_the_same_one():
    """They are read one by one."""
    known, unknown = pass_over_tiles(), pass_over_tiles(*ASKED)
    assert known == unknown
    assert sum("ld.global.v4" in line for line in unknown) >= 4


@pytest.mark.slow
def test_where_the_first_row_lies_says_nothing_of_rows_whose_stride_is_odd():
    assert pass_over_tiles("row_stride") == pass_over_tiles("row_stride", "logits")


SOME = ("sm_90", "gfx942")
"""In every configuration, and more kinds of calls: for a target of each kind, since it takes minutes for all."""


def configurations_of(target):
    """What the table says for a kind of device, for many rows and for few."""
    return [how for name, how in configurations.TABLE.items() if name.startswith(TARGETS[target][0])]


def draw_of_rows(target, dtype, how, *, filtered, fp64, made=machine_code):
    return made(
        draw.draw_rows,
        dtype,
        target,
        warps=how.row_warps,
        FILTERED=filtered,
        FP64=fp64,
        TILES=256,
        VECTOR=4 if dtype == "fp32" else 8,
        LESS=LEAST_CANDIDATES,
        MOST=MOST_CANDIDATES,
        GATHERED=how.granules_at_once,
        BY=65536 if dtype == "bf16" else 1,
    )


def draw_of_wide_rows(target, dtype, how, *, fp64, made=machine_code):
    return made(
        wide.draw_wide,
        dtype,
        target,
        warps=how.wide_warps,
        FP64=fp64,
        TILES=256,
        CAPACITY=CAPACITY,
        WARPS=how.wide_warps,
        VECTOR=4 if dtype == "fp32" else 8,
        BY=65536 if dtype == "bf16" else 1,
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_draw_of_rows_compiles(target):
    for how in configurations_of(target)[: None if target in SOME else 1]:
        assert has_machine_code(draw_of_rows(target, "bf16", how, filtered=True, fp64=False))
    assert has_machine_code(draw_of_rows(target, "fp16", how, filtered=False, fp64=True))


@pytest.mark.slow
def test_a_candidate_is_weighed_by_one_thread():
    """Every candidate is compared with 64 others at once: the compiler must not have each thread weigh those 64."""
    how = configurations.TABLE["cuda"]
    ptx = draw_of_rows("sm_90", "bf16", how, filtered=True, fp64=False, made=compiled)["ptx"]
    assert ptx.count("ex2.approx") < 64


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_draw_of_wide_rows_compiles(target):
    for how in configurations_of(target)[: None if target in SOME else 1]:
        assert has_machine_code(draw_of_wide_rows(target, "bf16", how, fp64=False))


@pytest.mark.slow
def test_a_program_that_waited_for_a_pass_sees_what_was_written_before_it_was_announced():
    """An atomic operation whose result nobody uses is dropped, and with it that it acquires."""
    how = configurations.TABLE["cuda"]
    ptx = draw_of_wide_rows("sm_90", "bf16", how, fp64=False, made=compiled)["ptx"]
    announced = re.findall(r"atom\.\S*release\S*\.exch", ptx)
    assert len(announced) == 1
    assert len(re.findall(r"(?:ld|atom)\.\S*\.acquire\.", ptx)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_draws_compile_with_float32_logits_and_float64_noise(target):
    how = configurations_of(target)[0]
    assert has_machine_code(draw_of_rows(target, "fp32", how, filtered=True, fp64=True))
    assert has_machine_code(draw_of_wide_rows(target, "fp32", how, fp64=True))
