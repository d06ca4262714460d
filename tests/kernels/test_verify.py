"""Verification of triton-gumbel on a CPU: chains like native's in Triton's interpreter, compilations, launches."""

import re
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw import Drafts, Need, SamplingMetadata, SamplingParams, speculative
from tokendraw.plugin import VerifyCapabilities
from tokendraw_triton_gumbel import plan, plugin
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from triton_stand_ins import (
    ENDS,
    SOME,
    compilations,
    compiled,
    configurations_of,
    flat,
    has_machine_code,
    interpreted,
    sampler_for,
)
from verifying import row_metadata

KERNELS = (
    "tile_statistics",
    "draw_rows",
    "draw_large_sets",
    "check_probs",
    "weigh_blocks",
    "accept_drafts",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["batches", "batches block", "layouts", "edges", "edges block", "again", "drafts"]
)
def test_verifications_equal_natives(what):
    result = interpreted("verifications", *what.split())
    assert result["wrong"] == {}
    assert len(result.get("judged", "none")) > 3


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rejection", "block", "coupled"])
def test_verifications_of_kept_intervals_equal_natives(mode):
    """Tokens, accepted drafts, logprobs and bounds, with XTC and ``temperature_last`` beside all other filters."""
    result = interpreted("verifications", "intervals", mode)
    assert result["wrong"] == {}
    assert min(result["accepted"], result["recovered"]) > 30
    assert result["rows"] > 300


def test_the_plugin_offers_and_builds_it():
    described = plugin.tokendraw_describe().operations
    assert described["verify"] == VerifyCapabilities.of(
        described["score"],
        verify_modes=("rejection", "block", "coupled"),
        draft_kinds=("probs", "logits", "chosen"),
        ragged_drafts=True,
        placeholder_drafts=True,
    )
    assert hasattr(plugin.tokendraw_build("verify", torch.device("cpu"), Need()), "verify")


# What is compiled.

V = 4096
FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1)


def judged(target, q=None, *, dtype=torch.bfloat16, params=None, mode="rejection", padded=False, **need):
    """Verify drafts, for the stand-ins to record.

    :param q: the drafts' logits or probabilities, as keywords of Drafts; None: unknown.
    """
    drafts = Drafts.from_lists([[5, 6, 7], [8]], **(q or {}))
    metadata = row_metadata(drafts, params or FILTERED)
    if padded:
        ids = torch.tensor([[5, 6, 7], [8, -1, -1]])
        drafts = Drafts(draft_token_ids=ids, cu_num_logits=drafts.cu_num_logits, max_drafts=3, **(q or {}))
    with plan.override(configurations_of(target)[0]):
        sampler_for(target, **need).verify(torch.zeros(6, V, dtype=dtype), drafts, metadata, mode=mode)


def logits_of_drafts(dtype=torch.bfloat16):
    return {"draft_logits": torch.zeros(4, V, dtype=dtype)}


def probs_of_drafts(dtype):
    return {"draft_probs": torch.full((4, V), 1 / V, dtype=dtype)}


@pytest.mark.slow
@pytest.mark.parametrize("target", ENDS)
def test_the_acceptance_compiles(kernels, target):
    judged(target, logits_of_drafts())
    assert has_machine_code(compiled(kernels["accept_drafts"], target))
    judged(target, probs_of_drafts(torch.bfloat16))
    assert has_machine_code(compiled(kernels["check_probs"], target))
    judged(target, logits_of_drafts(), mode="block")
    assert has_machine_code(compiled(kernels["weigh_blocks"], target))
    if target == SOME[0]:
        judged(target, probs_of_drafts(torch.float32), mode="block")
        assert has_machine_code(compiled(kernels["weigh_blocks"], target))
        assert has_machine_code(compiled(kernels["accept_drafts"], target))
        judged(target, mode="coupled", params=replace(FILTERED, logprobs=1))
        assert has_machine_code(compiled(kernels["accept_drafts"], target))
    else:
        judged(target, mode="block", params=SamplingParams(seed=1), padded=True, gumbel_dtype="fp64")
        assert has_machine_code(compiled(kernels["weigh_blocks"], target))
        judged(target, params=SamplingParams(seed=1), padded=True, gumbel_dtype="fp64")
        assert has_machine_code(compiled(kernels["accept_drafts"], target))


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME[:1])
@pytest.mark.parametrize("draft", [torch.float64, torch.float16], ids=str)  # the others: with the acceptance
def test_probabilities_of_any_dtype_compile(kernels, target, draft):
    judged(target, probs_of_drafts(draft), dtype=torch.float32, params=SamplingParams(seed=1))
    assert has_machine_code(compiled(kernels["accept_drafts"], target))
    assert has_machine_code(compiled(kernels["check_probs"], target))


INTERVALS = replace(
    FILTERED, min_p=0.1, filter_order="temperature_last", xtc_probability=0.5, xtc_threshold=0.2
)


@pytest.mark.slow
@pytest.mark.parametrize("target", ENDS)
def test_verifications_of_kept_intervals_compile(kernels, target):
    """Rows of drafts stand behind the target's in every launch, and kept masses go to the last launches."""
    judged(target, logits_of_drafts(), params=replace(INTERVALS, logprobs=0), mode="block", threshold=True)
    for name in ("tile_statistics", "draw_rows", "redraw_rows", "weigh_blocks", "accept_drafts"):
        assert has_machine_code(compiled(kernels[name], target))
    judged(target, probs_of_drafts(torch.float32), dtype=torch.float32, params=INTERVALS)
    for name in ("draw_rows", "redraw_rows", "accept_drafts"):
        assert has_machine_code(compiled(kernels[name], target))


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME)
def test_the_pass_over_the_tiles_of_drafts_behind_the_target_compiles(kernels, target):
    judged(target, logits_of_drafts())
    assert has_machine_code(compiled(kernels["tile_statistics"], target))


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME[1:])  # that of sm_90 runs on one
def test_the_draw_with_drafts_behind_the_target_compiles(kernels, target):
    judged(target, logits_of_drafts())
    assert has_machine_code(compiled(kernels["draw_rows"], target))


@pytest.mark.slow
def test_rows_of_drafts_are_read_as_the_targets_are(kernels):
    """A base chosen at run time must not keep the compiler from reading 16 bytes at once."""
    wide_reads = []
    for q in (logits_of_drafts(), None):
        judged("sm_90", q)
        ptx = compiled(kernels["tile_statistics"], "sm_90")["ptx"]
        wide_reads.append(len(re.findall(r"ld\.global\.v4", ptx)))
    assert wide_reads[0] == wide_reads[1] >= 8


@pytest.mark.slow
def test_the_last_program_sees_the_writes_of_all_programs(kernels):
    """The counter of finished programs releases and acquires."""
    judged("sm_90", logits_of_drafts(), params=SamplingParams(seed=1))
    ptx = compiled(kernels["accept_drafts"], "sm_90")["ptx"]
    assert len(re.findall(r"atom\.\S*acq_rel\S*\.add", ptx)) == 1


# What is launched, by kernels that only note what they are given.


def verified(sampler, params=FILTERED, mode="rejection", **q):
    drafts = Drafts.from_lists([[5, 6], [7]], **q)
    target = torch.zeros(5, 3000)
    sampler.verify(target, drafts, row_metadata(drafts, params), mode=mode)
    return target, drafts


@pytest.mark.parametrize(
    ("q", "params", "mode", "launches"),
    [
        ("draft_logits", FILTERED, "rejection", [1, 1, 1, 0, 0, 1]),
        ("draft_probs", FILTERED, "rejection", [1, 1, 1, 1, 0, 1]),
        (None, SamplingParams(seed=1), "rejection", [1, 1, 0, 0, 0, 1]),
        ("draft_probs", FILTERED, "block", [1, 1, 1, 1, 1, 1]),
        ("draft_probs", FILTERED, "coupled", [1, 1, 1, 0, 0, 1]),
        ("draft_logits", SamplingParams(temperature=0.0), "block", [1, 1, 0, 0, 0, 1]),
        ("draft_logits", INTERVALS, "block", [1, 1, 1, 0, 1, 1]),
        ("draft_probs", INTERVALS, "rejection", [1, 1, 1, 1, 0, 1]),
    ],
)
def test_target_and_drafts_share_their_launches(kernels, q, params, mode, launches):
    sampler = TritonGumbelSampler(torch.device("cpu"), Need())
    verified(sampler, params, mode, **({} if q is None else {q: torch.zeros(3, 3000)}))
    assert [len(kernels[name].launches) for name in KERNELS] == launches
    assert [len(kernels[name].launches) for name in ("filter_params", "redraw_rows")] == [
        params is INTERVALS
    ] * 2


@pytest.mark.parametrize("params", [FILTERED, INTERVALS], ids=["filters", "intervals"])
@pytest.mark.parametrize("q", ["draft_logits", "draft_probs", None])
def test_every_launch_is_given_addresses_and_numbers(kernels, q, params):
    sampler, rows = TritonGumbelSampler(torch.device("cpu"), Need()), torch.zeros(3, 3000)
    for _ in range(2):
        target, drafts = verified(sampler, params, **({} if q is None else {q: rows}))
        for kernel in kernels.values():
            for _, arguments in kernel.launches:
                addresses = flat(arguments[: len(arguments) - kernel.constants])
                assert {type(argument) for argument in addresses} <= {int, bool, type(None)}
                assert len(arguments) == len(kernel.arg_names)
        accepting = flat(kernels["accept_drafts"].launches[-1][1])
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

    result = [
        verify(torch.arange(4, dtype=dtype)[first : first + 3])
        for dtype in (torch.int64, torch.int32)
        for first in (0, 1)
    ]
    assert result == [1, 1, 2, 2]
