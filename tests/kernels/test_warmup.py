"""After a warmup no call of an engine to triton-gumbel compiles: kernels record their compilations by Triton's key."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from calling import CPU, drafting, substitute
from tokendraw import Drafts, Need, PluginError, SamplingMetadata, SamplingParams
from tokendraw.operations.row_methods import SAMPLING, by_row
from tokendraw.plugin import DRAFT_KINDS
from tokendraw_triton_gumbel import plan, plugin
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from triton_stand_ins import compilations, sampler_for

pytestmark = pytest.mark.usefixtures("warmup_on_a_cpu")
OPERATIONS = plugin.tokendraw_describe().operations
V = 3000
SIZES = (*range(1, 19), 31, 32, 33, 48, 64, 96, 127, 128, 129, 144, 255, 256, 257, 300)
"""Rows of batches: one, multiples of 16 and others, on both sides of the limit of small batches and of the warmup."""
PLAIN, GREEDY = SamplingParams(), SamplingParams(temperature=0.0)
FILTERED = SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=1)
REQUESTS = {
    "plain": (PLAIN,),
    "greedy": (GREEDY,),
    "seeded": (SamplingParams(seed=3),),
    "mixed": (FILTERED, GREEDY, SamplingParams(min_p=0.1)),
    "joint": (SamplingParams(top_p=0.8, top_k=3, filter_order="joint"), PLAIN),
    "logprobs": (PLAIN, SamplingParams(seed=2, logprobs=3)),
    "filtered, logprobs": (replace(FILTERED, logprobs=5), PLAIN),
}
VOCABULARIES = [3008, 3000, 3001]
"""Sizes with rows of bfloat16 at multiples of 32, of 16 and of 2 bytes."""
DTYPES = {"draft_logits": torch.bfloat16, "draft_probs": torch.float32}


def warm(vocab_size=V, *, mode="raw_logprobs", batch_sizes=(1, 256), **options):
    backend = TritonGumbelSampler(CPU, Need(logprobs_mode=mode))
    sampler = drafting(OPERATIONS["verify"], backend, companion_capabilities=None)
    substitute(sampler, backend, "triton-gumbel")
    sampler.warmup(vocab_size, dtypes=[torch.bfloat16], batch_sizes=list(batch_sizes), **options)
    return sampler


def metadata_of(rows, kind):
    params = [REQUESTS[kind][i % len(REQUESTS[kind])] for i in range(rows)]
    return SamplingMetadata.from_params(params, positions=range(7, 7 + rows))


def inside_larger_tensors(metadata, first):
    """Copy the parameters into the middle of larger tensors."""

    def shifted(tensor):
        return torch.cat([tensor[:1]] * first + [tensor])[first:]

    columns = ("temperature", "top_k", "top_p", "min_p", "seed", "seeded", "positions", "row_index", "joint")
    tensors = {name: getattr(metadata, name) for name in (*columns, "logprobs")}
    params = {name: shifted(tensor) for name, tensor in tensors.items() if tensor is not None}
    return SamplingMetadata(**params, facts=metadata.facts)


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_no_number_of_rows_compiles_anything(kernels, vocab_size, mode):
    sampler = warm(vocab_size, mode=mode)
    before = compilations(kernels)
    assert before["row_logprobs"] > 0
    logits = torch.zeros(SIZES[-1], vocab_size, dtype=torch.bfloat16)
    for rows in SIZES:
        for kind in REQUESTS:
            sampler.sample(logits[:rows], metadata_of(rows, kind))
        assert compilations(kernels) == before, (rows, kind)


def test_a_number_of_best_tokens_warms_up_its_search(kernels):
    sampler = warm(logprobs=(300,))
    before = compilations(kernels)
    assert before["row_logprobs"] > 0
    for n in (257, 300, 1000):
        metadata = SamplingMetadata.from_params([SamplingParams(logprobs=n)] * 2, positions=range(2))
        sampler.sample(torch.zeros(2, V, dtype=torch.bfloat16), metadata)
        assert compilations(kernels) == before, n


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.fast_first
def test_rows_and_parameters_inside_larger_tensors_compile_nothing(kernels, vocab_size):
    sampler = warm(vocab_size)
    before = compilations(kernels)
    logits = torch.zeros(40, vocab_size, dtype=torch.bfloat16)
    for rows in (1, 2, 5, 17):
        for first in (1, 2, 3, 7):
            for kind in REQUESTS:
                metadata = inside_larger_tensors(metadata_of(rows, kind), first)
                sampler.sample(logits[first : first + rows], metadata)
                assert compilations(kernels) == before, (rows, first, kind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unaligned_rows_of_any_stride_share_kernels(kernels, dtype):
    sampler, (rows, size) = sampler_for("sm_90"), (3, 3008)
    shifted = torch.zeros(rows * size + 1, dtype=dtype)[1:]
    for strided in (torch.zeros(rows, size + 1, dtype=dtype)[:, :size], shifted.view(rows, size)):
        before = compilations(kernels)
        for kind in REQUESTS:
            sampler.sample(strided, metadata_of(rows, kind))
    assert before["draw_rows"] > 0
    assert compilations(kernels) == before


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
def test_small_batches_draw_rows_without_sums_by_more_warps(kernels, params, warps):
    """A sum depends on the number of warps, and a token must not depend on the batch."""
    for rows, expected in ((16, warps), (256, 4)):
        metadata = SamplingMetadata.from_params([params] * rows, positions=range(rows))
        sampler_for("sm_90").sample(torch.zeros(rows, V, dtype=torch.bfloat16), metadata)
        _, _, named = kernels["draw_rows"].calls[-1]
        assert named["num_warps"] == expected, rows


def test_sums_of_a_row_take_the_same_number_of_warps_in_every_batch():
    warps = {name: how.row_warps for name, how in plan.TABLE.items() if name.startswith("cuda")}
    assert len(warps) == 2
    assert len(set(warps.values())) == 1


# Verifications.


def layouts(requests, most, known, vocab_size):
    """Yield the drafts of a batch in every layout of engines."""
    counts = [(most - i) % (most + 1) for i in range(requests)]
    q = {known: torch.zeros(sum(counts), vocab_size, dtype=DTYPES[known])} if known else {}
    lists = Drafts.from_lists([[5] * count for count in counts], **q)
    yield lists
    yield replace(lists, num_drafts=None, any_placeholder=True)
    yield Drafts.from_counts(torch.full((requests, most), -1), counts, **q)
    yield Drafts.from_lists([[]] * requests)


def verify(sampler, known="draft_logits", mode="rejection", most=4, *, sizes=(1, 17), vocab_size=V):
    """Verify and draft like an engine, in batches of several sizes, with logits at any alignment."""
    for requests in sizes:
        for kind in REQUESTS:
            metadata = metadata_of(requests, kind)
            for drafts in layouts(requests, most, known, vocab_size):
                target = torch.zeros(1 + drafts.num_rows, vocab_size, dtype=torch.bfloat16)[1:]
                sampler.verify(target, drafts, metadata, mode=mode)
                sampler.verify(target, drafts, by_row(metadata, drafts, len(target)), mode=mode)
            sampler.draft(torch.zeros(requests, vocab_size, dtype=torch.bfloat16), metadata)


@pytest.mark.fast_first
@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"max_drafts": 4}, [{}, {"most": 2}]),
        (
            {"max_drafts": 9, "verify_modes": ("rejection", "coupled"), "draft_kinds": DRAFT_KINDS},
            [
                {"most": 9},
                {"most": 3, "known": "draft_probs"},
                {"most": 9, "known": None},
                {"most": 3, "mode": "coupled"},
            ],
        ),
    ],
    ids=["logits", "everything"],
)
def test_drafts_and_verifications_within_the_warmup_compile_nothing(kernels, options, calls):
    sampler = warm(batch_sizes=(1, 16), **options)
    before = compilations(kernels)
    for call in calls:
        verify(sampler, **call)
        assert compilations(kernels) == before, call


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rejection", "coupled"])
@pytest.mark.parametrize("known", ["draft_logits", "draft_probs", None])
def test_no_number_of_requests_and_drafts_compiles_anything(kernels, known, mode):
    sampler = warm(3001, max_drafts=4, verify_modes=[mode], draft_kinds=[(known or "draft_chosen")[6:]])
    before = compilations(kernels)
    assert before["accept_drafts"] > 0
    verify(sampler, known, mode, sizes=(2, 16, 31, 128, 129), vocab_size=3001)
    assert compilations(kernels) == before


@pytest.mark.slow
def test_calls_beyond_the_warmup_compile_on_demand(kernels):
    sampler = warm(batch_sizes=(1, 16), max_drafts=4)
    for call in ({"known": "draft_probs"}, {"known": None}, {"mode": "coupled"}, {"most": 9}):
        before = compilations(kernels)
        verify(sampler, **call)
        assert compilations(kernels) != before, call


@pytest.mark.parametrize("kind", ["plain", "mixed"])
@pytest.mark.parametrize("known", ["draft_logits", "draft_probs", None])
def test_a_verification_draws_large_sets_with_the_kernel_of_samples(kernels, kind, known):
    """The kernel of large sets takes longest to compile."""
    sampler = warm(batch_sizes=(1, 16))
    before = compilations(kernels)
    for drafts in layouts(3, 4, known, V):
        sampler.verify(torch.zeros(drafts.num_rows, V, dtype=torch.bfloat16), drafts, metadata_of(3, kind))
    after = compilations(kernels)
    assert after["accept_drafts"] > before["accept_drafts"]
    assert after["draw_large_sets"] == before["draw_large_sets"]


# Loading.


def proven(need):
    """Return a sampler after its proof draw, without a check of the result: no kernel runs."""
    backend = TritonGumbelSampler(CPU, need)
    with pytest.raises(PluginError, match="the proof draw needs"):
        SAMPLING.prove(backend, OPERATIONS["sample"], CPU, need)
    return backend


def test_loading_without_a_dtype_compiles_two_small_kernels(kernels):
    proven(Need())
    counts = {name: count for name, count in compilations(kernels).items() if count}
    assert counts == {"draw_rows": 1, "tile_statistics": 1}


def test_loading_with_a_dtype_compiles_the_kernels_of_the_first_batch(kernels):
    backend = proven(Need(dtype="bfloat16"))
    before = compilations(kernels)
    for rows in (1, 64):
        backend.sample(torch.zeros(rows, 128_000, dtype=torch.bfloat16), metadata_of(rows, "mixed"))
    assert {name for name in before if before[name]} == {"draw_rows", "tile_statistics", "draw_large_sets"}
    assert compilations(kernels) == before
