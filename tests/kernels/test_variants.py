"""After a warmup no batch size compiles anything: kernels record their compilations by Triton's key."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from calling import CPU, drafting
from selections import substitute
from tokendraw import Drafts, Need, SamplingMetadata, SamplingParams
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.host import tuning
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from triton_stand_ins import compilations, kernels, sampler_for

__all__ = ["kernels"]

pytestmark = pytest.mark.usefixtures("warmup_on_a_cpu")
PLAIN, GREEDY = SamplingParams(), SamplingParams(temperature=0.0)
FILTERED = SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=1)
BATCHES = {
    "plain": (PLAIN,),
    "seeded": (SamplingParams(seed=3),),
    "filtered": (FILTERED, GREEDY, SamplingParams(min_p=0.1)),
    "joint": (SamplingParams(top_p=0.8, top_k=3, filter_order="joint"), PLAIN),
    "logprobs": (SamplingParams(logprobs=5), PLAIN),
    "filtered, logprobs": (replace(FILTERED, logprobs=5), PLAIN),
}
MOST = 300
VOCABULARIES = [3008, 3000, 3001]
"""Whose rows of bfloat16 begin at multiples of 32, of 16 and of 2 bytes."""


def warm(vocab_size, *, mode="raw_logprobs", **options):
    backend = TritonGumbelSampler(CPU, Need(logprobs_mode=mode))
    sampler = drafting(plugin.tokendraw_describe().operations["verify"], backend, companion_capabilities=None)
    substitute(sampler._dispatcher, backend, "triton-gumbel")
    sampler.warmup(vocab_size, dtypes=[torch.bfloat16], batch_sizes=[1, 256], **options)
    return sampler


def metadata_of(rows, kind, *, positions=True):
    requests = BATCHES[kind]
    params = [requests[i % len(requests)] for i in range(rows)]
    return SamplingMetadata.from_params(params, positions=range(7, 7 + rows) if positions else None)


def cut_off(metadata, first):
    """Copy the parameters into the middle of larger tensors."""

    def later(tensor):
        return torch.cat([tensor[:1]] * first + [tensor])[first:]

    names = (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "seeded",
        "positions",
        "row_index",
        "joint",
        "logprobs",
    )
    found = {name: getattr(metadata, name) for name in names}
    given = {name: later(tensor) for name, tensor in found.items() if tensor is not None}
    return SamplingMetadata(**given, facts=metadata.facts)


@pytest.mark.fast_first
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_no_number_of_rows_compiles_anything(kernels, vocab_size, mode):
    sampler = warm(vocab_size, mode=mode)
    before = compilations(kernels)
    assert before["row_logprobs"] > 0
    logits = torch.zeros(MOST, vocab_size, dtype=torch.bfloat16)
    for rows in range(1, MOST + 1):
        for kind in BATCHES:
            sampler.sample(logits[:rows], metadata_of(rows, kind))
        assert compilations(kernels) == before, (rows, kind)


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.fast_first
def test_nor_do_rows_or_parameters_that_begin_within_other_tensors(kernels, vocab_size):
    sampler = warm(vocab_size)
    before = compilations(kernels)
    logits = torch.zeros(40, vocab_size, dtype=torch.bfloat16)
    for rows in (1, 2, 5, 17):
        for first in (1, 2, 3, 7):
            for kind in BATCHES:
                sampler.sample(logits[first : first + rows], cut_off(metadata_of(rows, kind), first))
                assert compilations(kernels) == before, (rows, first, kind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_not_aligned_share_kernels_whatever_their_stride(kernels, dtype):
    sampler, (rows, size) = sampler_for("sm_90"), (3, 3008)
    later = torch.zeros(rows * size + 1, dtype=dtype)[1:]
    for strided in (torch.zeros(rows, size + 1, dtype=dtype)[:, :size], later.view(rows, size)):
        before = compilations(kernels)
        for kind in BATCHES:
            sampler.sample(strided, metadata_of(rows, kind))
    assert before["draw_rows"] > 0
    assert compilations(kernels) == before


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rejection", "coupled"])
@pytest.mark.parametrize("known", ["draft_logits", "draft_probs", None])
def test_no_number_of_requests_and_drafts_compiles_anything(kernels, known, mode):
    sampler = warm(3001, max_drafts=4, verify_modes=[mode], draft_kinds=[(known or "draft_chosen")[6:]])
    before = compilations(kernels)
    assert before["accept_drafts"] > 0
    logits = torch.zeros(800, 3001, dtype=torch.bfloat16)
    probs = torch.zeros(800, 3001)
    for requests in (1, 2, 3, 16, 31, 97, 128, 129, 151):
        for kind in BATCHES:
            counts = [(requests + i) % 5 for i in range(requests)]
            q = {"draft_logits": logits, "draft_probs": probs}
            given = {known: q[known][1 : 1 + sum(counts)]} if known else {}
            drafts = Drafts.from_lists([[5] * count for count in counts], **given)
            metadata = metadata_of(requests, kind)
            sampler.verify(logits[1 : 1 + drafts.num_rows], drafts, metadata, mode=mode)
            sampler.draft(logits[:requests], metadata)
        assert compilations(kernels) == before, (requests, kind)


@pytest.mark.parametrize(
    ("params", "warps"),
    [
        (PLAIN, 8),
        (GREEDY, 8),
        (FILTERED, 4),
        (SamplingParams(logprobs=0), 4),
        (SamplingParams(logprobs=2), 8),
    ],
    ids=["plain", "greedy", "filtered", "describes", "described"],
)
def test_in_small_batches_more_warps_draw_the_rows_of_which_nothing_is_added_up(kernels, params, warps):
    """A sum depends on its number of warps, and a token must not depend on the batch."""
    for rows, expected in ((16, warps), (256, 4)):
        metadata = SamplingMetadata.from_params([params] * rows, positions=range(rows))
        sampler_for("sm_90").sample(torch.zeros(rows, 3000, dtype=torch.bfloat16), metadata)
        _, _, named = kernels["draw_rows"].calls[-1]
        assert named["num_warps"] == expected, rows


def test_what_adds_up_a_row_has_as_many_warps_whatever_the_batch():
    found = {name: how.row_warps for name, how in tuning.TABLE.items() if name.startswith("cuda")}
    assert len(found) == 2
    assert len(set(found.values())) == 1
