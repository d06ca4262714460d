"""Compiles the kernels of triton-gumbel to machine code for every target, on a machine without any of them.

The pass over the tiles is compiled for every target, the other kernels for the ends. The stand-ins record the arguments
of real calls, and the compilation uses these.
"""

import ast
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_triton_gumbel import kernels as device_code
from tokendraw_triton_gumbel import plan
from tokendraw_triton_gumbel.kernels import values
from triton_stand_ins import ENDS, SOME, TARGETS, compiled, configurations_of, has_machine_code, sampler_for

V = 4096
FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1)
PLAIN = SamplingParams(temperature=0.8, seed=1)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_ARGUMENTS = 15
TILE_SIZE, LANES = values.TILE_SIZE.value, values.LANES.value


def drawn(target, params, dtype=torch.bfloat16, how=None, *, offset=0, **need):
    """Draw a batch, for the stand-ins to record."""
    logits = torch.zeros(2 * V + offset, dtype=dtype)[offset:].view(2, V)
    metadata = SamplingMetadata.from_params([params, params], positions=[0, 1])
    with plan.override(how or configurations_of(target)[0]):
        sampler_for(target, **need).sample(logits, metadata)


@pytest.mark.fast_first
@pytest.mark.parametrize(
    ("target", "dtype"),
    [*((target, torch.bfloat16) for target in TARGETS), *product(SOME, (torch.float32, torch.float16))],
    ids=str,
)
def test_the_pass_over_the_tiles_compiles(kernels, target, dtype):
    drawn(target, replace(FILTERED, logprobs=0), dtype)
    assert has_machine_code(compiled(kernels["tile_statistics"], target))


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME)
def test_moments_compile(kernels, target):
    """All moments in one batch: sums of tiles, and the launch that reduces these."""
    filters = {"top_n_sigma": 1.0, "eta_cutoff": 0.01, "p_less": 1.0}
    drawn(target, replace(PLAIN, filters=filters, logprobs=0))
    for name in ("tile_statistics", "row_moments", "combine_floors", "draw_rows"):
        assert has_machine_code(compiled(kernels[name], target))


def instructions(asm):
    """Without line numbers and debug information."""
    code = asm["ptx"].partition(".section")[0]
    return [line for line in code.splitlines() if not line.lstrip().startswith((".loc", ".file", "//"))]


def path_of(kernel, argument, field=None):
    """Return the index path of a kernel's argument, or of a field of it."""
    place = kernel.arg_names.index(argument)
    if field is None:
        return (place,)
    return (place, type(kernel.calls[-1][1][place])._fields.index(field))


@pytest.mark.slow
def test_the_alignment_of_parameters_does_not_change_a_kernel(kernels):
    """Parameters are scalar loads, so their alignment is useless to the compiler."""
    drawn("sm_90", PLAIN)
    kernel = kernels["tile_statistics"]
    known, unknown = (
        instructions(compiled(kernel, "sm_90", attributes={path_of(kernel, "temperature"): is_multiple}))
        for is_multiple in (True, False)
    )
    assert known == unknown
    assert sum("ld.global.v4" in line for line in unknown) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_at_any_address_are_read_in_vectors(kernels, dtype):
    """Each lane reads two vectors for one of its own, without shared memory, wherever the first row lies."""
    drawn("sm_90", PLAIN, dtype, offset=1)
    kernel = kernels["tile_statistics"]
    base = path_of(kernel, "logits", "base")
    known, unknown = (
        instructions(compiled(kernel, "sm_90", attributes={base: is_multiple}))
        for is_multiple in (True, False)
    )
    assert known == unknown
    vectors = TILE_SIZE * plan.TABLE["cuda"].span(dtype.itemsize) * dtype.itemsize // (LANES * 16)
    assert sum("ld.global.v4.b32" in line for line in unknown) == 2 * vectors
    assert not any("ld.shared" in line for line in unknown)


@pytest.mark.slow
@pytest.mark.parametrize("target", ENDS)
def test_the_draw_of_rows_compiles(kernels, target):
    for params in (FILTERED, PLAIN):
        drawn(target, params)
        assert has_machine_code(compiled(kernels["draw_rows"], target))


@pytest.mark.slow
@pytest.mark.parametrize("target", ENDS)
def test_the_draws_of_kept_intervals_compile(kernels, target):
    """XTC and ``temperature_last`` in one batch, with sums of tiles at two temperatures."""
    drawn(
        target, replace(FILTERED, min_p=0.1, filter_order="temperature_last", xtc_probability=0.5, logprobs=0)
    )
    for name in ("tile_statistics", "filter_params", "draw_rows", "redraw_rows"):
        assert has_machine_code(compiled(kernels[name], target))


@pytest.mark.slow
def test_a_candidate_is_weighed_by_one_thread(kernels):
    """Each candidate is compared with 64 others at once: the compiler must not repeat their weights in every thread."""
    drawn(SOME[0], FILTERED)
    ptx = compiled(kernels["draw_rows"], SOME[0])["ptx"]
    assert ptx.count("ex2.approx") < 64


@pytest.mark.slow
@pytest.mark.parametrize("target", ENDS)
def test_the_draw_of_large_sets_compiles(kernels, target):
    drawn(target, FILTERED)
    assert has_machine_code(compiled(kernels["draw_large_sets"], target))


@pytest.mark.slow
def test_a_program_sees_the_writes_before_an_announced_pass(kernels):
    """The compiler drops an atomic operation with an unused result, and its acquire with it."""
    drawn(SOME[0], FILTERED)
    ptx = compiled(kernels["draw_large_sets"], SOME[0])["ptx"]
    announced = re.findall(r"atom\.\S*release\S*\.exch", ptx)
    assert len(announced) == 1
    assert len(re.findall(r"(?:ld|atom)\.\S*\.acquire\.", ptx)) == 1


@pytest.mark.slow
def test_the_draw_compiles_with_float32_logits_and_float64_noise(kernels):
    """Compile for AMD only: the kernel for NVIDIA runs on an H200."""
    drawn("gfx942", FILTERED, torch.float32, gumbel_dtype="fp64")
    assert has_machine_code(compiled(kernels["draw_rows"], "gfx942"))


def test_no_kernel_and_none_of_its_functions_takes_more_than_fifteen_arguments():
    """Related arguments come in a group."""
    folder = Path(device_code.__file__).parent
    functions = [
        (len(node.args.args), f"{path.stem}.{node.name}")
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    assert len(functions) > 100
    assert [each for each in functions if each[0] > MOST_ARGUMENTS] == []
