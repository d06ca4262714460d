"""Compiles the kernels of triton-gumbel to machine code for every target, on a machine without any of them.

The pass over the tiles is compiled for every target, the other kernels for the ends. The stand-ins record the arguments
of real calls, and the compilation uses these.
"""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from call_tables import pairs
from tokendraw import Drafts, SamplingMetadata, SamplingParams
from tokendraw_triton_gumbel import plan
from tokendraw_triton_gumbel.kernels.logprobs import SEARCHES  # noqa: F401 (for the table)
from triton_stand_ins import (
    ENDS,
    EVERYTHING,
    SOME,
    TARGETS,
    compiled,
    compiled_call,
    configurations_of,
    has_machine_code,
    processed,
    sampler_for,
    slots_for,
    two_drafts,
)
from verifying import row_metadata

V = 4096
PLAIN = SamplingParams(temperature=0.8, seed=1)
FILTERED = replace(PLAIN, top_k=50, top_p=0.9)
INTERVALS = replace(
    FILTERED, min_p=0.1, filter_order="temperature_last", xtc_probability=0.5, xtc_threshold=0.2
)
MOMENTS = {"top_n_sigma": 1.0, "eta_cutoff": 0.01, "p_less": 1.0}
FLOAT32, BFLOAT16, FLOAT16 = DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def drawn(target, params, dtype=BFLOAT16, *, offset=0, size=V, **need):
    """Draw a batch, for the stand-ins to record, as do the functions below."""
    logits = torch.zeros(2 * size + offset, dtype=dtype)[offset:].view(2, size)
    metadata = SamplingMetadata.from_params([params, params], positions=[0, 1])
    with plan.override(configurations_of(target)[0]):
        sampler_for(target, **need).sample(logits, metadata)


def scored(target, params, dtype=BFLOAT16, *, mode="processed_logprobs"):
    sampler = sampler_for(target, logprobs_mode=mode)
    metadata = SamplingMetadata.from_params([params, params], positions=[0, 1])
    sampler.score(torch.zeros(2, V, dtype=dtype), torch.tensor([5, -100]), metadata)


def verified(
    target, params, kind=None, draft_dtype=BFLOAT16, dtype=BFLOAT16, *, mode="rejection", padded=False, **need
):
    """Verify chosen drafts, or drafts with probabilities or logits of a dtype."""
    q = {} if kind is None else {f"draft_{kind}": torch.full((4, V), 1 / V, dtype=draft_dtype)}
    drafts = Drafts.from_lists([[5, 6, 7], [8]], **q)
    metadata = row_metadata(drafts, params)
    if padded:
        ids = torch.tensor([[5, 6, 7], [8, -1, -1]])
        drafts = Drafts(draft_token_ids=ids, cu_num_logits=drafts.cu_num_logits, max_drafts=3, **q)
    with plan.override(configurations_of(target)[0]):
        sampler_for(target, **need).verify(torch.zeros(6, V, dtype=dtype), drafts, metadata, mode=mode)


def edited(target, dtype=FLOAT32, *, drafted=False, bitmask=False, offset=0, **params):
    drafts = two_drafts() if drafted else None
    slots, family = slots_for(V, **params), TARGETS[target][0]
    return processed(slots, family, dtype, drafts=drafts, bitmask=bitmask, offset=offset)


TILES, DRAWS, LARGE, ACCEPTS = "tile_statistics", "draw_rows", "draw_large_sets", "accept_drafts"


def best(number, **fields):
    return replace(FILTERED, top_p=1.0, logprobs=number, **fields)


CALLS = [(call, *below.split(" for ")) for call, below in pairs(Path(__file__).with_name("compiled.txt"))]
"""A call for a target, the kernels of it that are compiled, and the targets that these are compiled for."""
WORDS = {"ENDS": ENDS, "SOME": SOME, "NVIDIA": SOME[:1], "AMD": SOME[1:], "BOTH_AMD": ENDS[1:]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "names", "target"),
    [(call, names.split(), each) for call, names, to in CALLS for each in WORDS.get(to) or to.split()],
)
def test_the_kernels_of_a_call_compile(kernels, call, names, target):
    eval(call, {**globals(), "t": target})
    assert [has_machine_code(compiled(kernels[name], target)) for name in names] == [True] * len(names)


@pytest.mark.fast_first
@pytest.mark.parametrize(
    ("target", "dtype"),
    [*((target, BFLOAT16) for target in TARGETS), *product(SOME, (FLOAT32, FLOAT16))],
    ids=str,
)
def test_the_pass_over_the_tiles_compiles(kernels, target, dtype):
    drawn(target, replace(FILTERED, logprobs=0), dtype)
    assert has_machine_code(compiled(kernels[TILES], target))


# What the compiler makes of some lines, on which orders of memory and bits depend.


def ptx_of(kernel, target="sm_90"):
    return compiled(kernel, target)["ptx"]


@pytest.mark.slow
def test_programs_see_the_writes_of_those_before_them(kernels):
    """The compiler drops an atomic operation with an unused result, and its acquire with it."""
    drawn(SOME[0], FILTERED)
    ptx = ptx_of(kernels[LARGE], SOME[0])
    assert len(re.findall(r"atom\.\S*release\S*\.exch", ptx)) == 1
    assert len(re.findall(r"(?:ld|atom)\.\S*\.acquire\.", ptx)) == 1
    verified("sm_90", PLAIN, "logits")
    assert len(re.findall(r"atom\.\S*acq_rel\S*\.add", ptx_of(kernels[ACCEPTS]))) == 1


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_masks_store_vectors_and_prefetch_partial_ones_at_any_alignment(kernels, dtype):
    edited("sm_90", dtype, bitmask=True, offset=1)
    code = ptx_of(kernels["process_logits"])
    assert "st.global.v4.b32" in code
    assert "prefetch.global.L2" in code
    assert "ld.global.v4" not in code  # what a vector holds is not read, so it cannot be written back


def test_every_launch_says_whether_products_are_fused(kernels):
    """Tokens depend on it, and what Triton does unasked changes from release to release."""
    drawn("sm_90", replace(FILTERED, filters=MOMENTS, logprobs=3, xtc_probability=1.0))
    edited("sm_90", **EVERYTHING)
    fused = {name: named["enable_fp_fusion"] for name, each in kernels.items() for _, _, named in each.calls}
    assert fused.pop("process_logits") is False
    assert set(fused.values()) == {True}
    assert len(fused) >= 8


@pytest.mark.slow
def test_products_are_rounded_before_they_are_subtracted_and_quotients_by_ieee_754(kernels):
    """The bits equal other providers' bits. The compiler's default options would fuse products."""
    edited(SOME[0], **EVERYTHING)
    ((kernel, arguments, named),) = kernels["process_logits"].calls
    code, fused = (
        compiled_call((kernel, arguments, named | options), SOME[0])["ptx"]
        for options in ({}, {"enable_fp_fusion": True})
    )
    assert ["fma.rn.f32" in text for text in (code, fused)] == [False, True]
    assert "div.rn.f32" in code
    assert "div.full" not in code
    assert ".ftz" not in code
