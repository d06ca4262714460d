"""The verification of triton-gumbel on a CPU: its chains beside native's in Triton's interpreter, its kernels compiled,
and what it launches."""

import re

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import test_compiled
from test_compiled import OF_VERIFICATIONS, SOME, TYPES, configurations_of, has_machine_code

import triton_on_a_cpu
from tokendraw import Drafts, Need, SamplingMetadata, SamplingParams, speculative
from tokendraw.plugin import VerifyCapabilities
from tokendraw_triton_gumbel import accept, draw, plugin, tiles, wide
from tokendraw_triton_gumbel.few import LEAST_CANDIDATES, MOST_CANDIDATES
from tokendraw_triton_gumbel.plan import CHOSEN, COUPLED, LOGITS, PROBS
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from tokendraw_triton_gumbel.search import CAPACITY
from triton_on_a_cpu import TARGETS
from triton_stand_ins import compilations, kernels
from verifying import row_metadata

__all__ = ["kernels"]

KERNELS = ("tile_statistics", "draw_rows", "draw_wide", "check_probs", "accept_drafts")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["batches", "layouts", "edges", "again", "drafts"])
def test_verifications_equal_natives(what):
    found = triton_on_a_cpu.interpreted("triton_verify_kernels.py", what)
    assert found["wrong"] == {}
    assert len(found.get("judged", "none")) > 3


def test_the_plugin_offers_and_builds_it():
    described = plugin.tokendraw_describe().operations
    assert described["verify"] == VerifyCapabilities.of(
        described["sample"],
        verify_modes=("rejection", "coupled"),
        draft_kinds=("probs", "logits", "chosen"),
        ragged_drafts=True,
        placeholder_drafts=True,
    )
    assert hasattr(plugin.tokendraw_build("verify", torch.device("cpu"), Need()), "verify")


# What is compiled.

MORE_TYPES = {
    **TYPES,
    "drafts": "*bf16",
    "draft_stride": "i64",
    "cu_num_logits": "*i64",
    "draft_token_ids": "*i64",
    "tokens": "*i64",
    "tops": "*fp32",
    "masses": "*fp32",
    "candidates": "*i32",
    "counters": "*i32",
    "weights": "*fp32",
    "num_accepted": "*i32",
    "all_valid": "*i1",
    "shown": "*i64",
    "probs": "*bf16",
}
ABSENT = {
    CHOSEN: ("drafts", "draft_stride"),
    LOGITS: (),
    PROBS: (),
    COUPLED: ("drafts", "draft_stride", *OF_VERIFICATIONS[3:], "weights", "floors", "log_kept"),
}


def compiled(kernel, target, dtype="bf16", types=None, warps=4, **constants):
    types = {**MORE_TYPES, "logits": f"*{dtype}", "granules": f"*{dtype}", **(types or {})}
    if "PTX" in kernel.arg_names:
        constants["PTX"] = TARGETS[target][0] == "cuda"
    return triton_on_a_cpu.compiled(kernel, types, constants, target, aligned=True, warps=warps)


def acceptance(target, known, *, dtype="bf16", draft="bf16", fp64=False, filtered=True, shown=None):
    absent = [*ABSENT[known], *(() if filtered else ("values", "ids", "candidates"))]
    absent += [] if shown else ["shown"]
    return compiled(
        accept.accept_drafts,
        target,
        dtype,
        {"drafts": f"*{draft}"},
        **dict.fromkeys(absent),
        KNOWN=known,
        PADDED=fp64,
        STEPS=8,
        FP64=fp64,
        TILES=256,
        LESS=LEAST_CANDIDATES,
        MOST=MOST_CANDIDATES,
        FILTERED=filtered,
        WARPS=4,
        VECTOR=4 if dtype == "fp32" else 8,
    )


def has_code(asm):
    return has_machine_code(asm.get("cubin") or asm.get("hsaco") or b"")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_acceptance_compiles(target):
    assert has_code(acceptance(target, LOGITS))
    assert has_code(compiled(accept.check_probs, target, AT_ONCE=accept.AT_ONCE))
    if target in SOME:
        assert has_code(acceptance(target, COUPLED, shown=True))
        assert has_code(acceptance(target, CHOSEN, filtered=False, fp64=True))


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME[:1])
@pytest.mark.parametrize("draft", ["fp64", "fp32", "bf16", "fp16"])
def test_probabilities_of_every_dtype_compile(target, draft):
    assert has_code(acceptance(target, PROBS, dtype="fp32", draft=draft, filtered=draft == "fp32"))
    types = {"probs": f"*{draft}"}
    assert has_code(compiled(accept.check_probs, target, types=types, AT_ONCE=accept.AT_ONCE))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_pass_over_the_tiles_of_drafts_behind_the_target_compiles(target):
    tall = {"SPAN": 2, "VECTOR": 8, "PAIRED": TARGETS[target][0] == "cuda"}
    assert has_code(compiled(tiles.tile_statistics, target, warps=1, **tall))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_draw_with_drafts_behind_the_target_compiles(target):
    how = configurations_of(target)[0]
    common = {"FP64": False, "TILES": 256, "VECTOR": 8, "BY": 65536}
    few = {"LESS": LEAST_CANDIDATES, "MOST": MOST_CANDIDATES, "GATHERED": how.granules_at_once}
    assert has_code(compiled(draw.draw_rows, target, FILTERED=True, **few, **common))
    many = {"CAPACITY": CAPACITY, "WARPS": how.wide_warps}
    assert has_code(compiled(wide.draw_wide, target, warps=how.wide_warps, **many, **common))


def test_rows_of_drafts_are_read_as_the_targets_are():
    """A base that is chosen at run time must not keep the compiler from reading 16 bytes at once."""
    tall = {"SPAN": 2, "VECTOR": 8, "PAIRED": True, "raw_sums": None}
    codes = [
        compiled(tiles.tile_statistics, "sm_90", warps=1, **tall),
        test_compiled.compiled(tiles.tile_statistics, "bf16", "sm_90", warps=1, **tall),
    ]
    wide_reads = [len(re.findall(r"ld\.global\.v4", asm["ptx"])) for asm in codes]
    assert wide_reads[0] == wide_reads[1] >= 8


@pytest.mark.slow
def test_the_program_that_comes_last_sees_what_the_others_wrote():
    """The counter of those that are done releases and acquires."""
    ptx = acceptance("sm_90", LOGITS, filtered=False)["ptx"]
    assert len(re.findall(r"atom\.\S*acq_rel\S*\.add", ptx)) == 1


# What is launched, by kernels that only note what they are given.


FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1)


def verified(sampler, params=FILTERED, mode="rejection", **q):
    drafts = Drafts.from_lists([[5, 6], [7]], **q)
    target = torch.zeros(5, 3000)
    sampler.verify(target, drafts, row_metadata(drafts, params), mode=mode)
    return target, drafts


@pytest.mark.parametrize(
    ("q", "params", "mode", "launches"),
    [
        ("draft_logits", FILTERED, "rejection", [1, 1, 1, 0, 1]),
        ("draft_probs", FILTERED, "rejection", [1, 1, 1, 1, 1]),
        (None, SamplingParams(seed=1), "rejection", [1, 1, 0, 0, 1]),
        ("draft_probs", FILTERED, "coupled", [1, 1, 1, 0, 1]),
        ("draft_logits", SamplingParams(temperature=0.0), "rejection", [1, 1, 0, 0, 1]),
    ],
)
def test_target_and_drafts_share_their_launches(kernels, q, params, mode, launches):
    sampler = TritonGumbelSampler(torch.device("cpu"), Need())
    verified(sampler, params, mode, **({} if q is None else {q: torch.zeros(3, 3000)}))
    assert [len(kernels[name].launches) for name in KERNELS] == launches


@pytest.mark.parametrize("q", ["draft_logits", "draft_probs", None])
def test_every_launch_is_given_addresses_and_numbers(kernels, q):
    sampler, rows = TritonGumbelSampler(torch.device("cpu"), Need()), torch.zeros(3, 3000)
    for _ in range(2):
        target, drafts = verified(sampler, **({} if q is None else {q: rows}))
        for kernel in kernels.values():
            for _, arguments in kernel.launches:
                assert {type(argument) for argument in arguments} <= {int, bool, type(None)}
                assert len(arguments) == len(kernel.arg_names)
        accepting = kernels["accept_drafts"].launches[-1][1]
        for tensor in (target, drafts.draft_token_ids, drafts.cu_num_logits, *(() if q is None else (rows,))):
            assert tensor.data_ptr() in accepting


def test_ids_of_another_type_compile_anew_and_at_another_alignment_do_not(kernels):
    sampler = TritonGumbelSampler(torch.device("cpu"), Need())
    offsets = speculative.cu_num_logits(torch.tensor([2, 1]))
    metadata = SamplingMetadata(top_k=torch.ones(5, dtype=torch.int64))

    def verify(ids):
        drafts = Drafts(draft_token_ids=ids, cu_num_logits=offsets, max_drafts=2)
        sampler.verify(torch.zeros(5, 3000), drafts, metadata)
        return compilations(kernels)["accept_drafts"]

    found = [
        verify(torch.arange(4, dtype=dtype)[first : first + 3])
        for dtype in (torch.int64, torch.int32)
        for first in (0, 1)
    ]
    assert found == [1, 1, 2, 2]
