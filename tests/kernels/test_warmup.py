"""After a warmup no call of an engine to triton-gumbel compiles: kernels record their compilations by Triton's key."""

from dataclasses import replace
from itertools import product

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from calling import CPU, drafting, provider_of, substitute
from tokendraw import Drafts, Need, PluginError, RequestSlots, SamplingMetadata, SamplingParams
from tokendraw.calls.rows import by_row
from tokendraw.operations.row_methods import SAMPLING
from tokendraw.plugin import DRAFT_KINDS
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from triton_stand_ins import compilations

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


def warm(vocab_size=V, *, mode="raw_logprobs", gumbel_dtype="fp32", batch_sizes=(1, 256), **options):
    backend = TritonGumbelSampler(CPU, Need(logprobs_mode=mode, gumbel_dtype=gumbel_dtype))
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


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.fast_first
def test_no_number_of_rows_and_no_place_in_larger_tensors_compiles_anything(kernels, vocab_size, mode):
    sampler = warm(vocab_size, mode=mode)
    before = compilations(kernels)
    assert before["row_logprobs"] > 0
    logits = torch.zeros(8 + SIZES[-1], vocab_size, dtype=torch.bfloat16)
    for rows in SIZES:
        for kind in REQUESTS:
            for first in (0, 1 + rows % 7):
                metadata = inside_larger_tensors(metadata_of(rows, kind), first)
                sampler.sample(logits[first : first + rows], metadata)
                assert compilations(kernels) == before, (rows, first, kind)


def test_a_number_of_best_tokens_warms_up_its_search(kernels):
    sampler = warm(logprobs=(300,))
    before = compilations(kernels)
    assert before["row_logprobs"] > 0
    for n in (257, 300, 1000):
        metadata = SamplingMetadata.from_params([SamplingParams(logprobs=n)] * 2, positions=range(2))
        sampler.sample(torch.zeros(2, V, dtype=torch.bfloat16), metadata)
        assert compilations(kernels) == before, n


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_a_warmup_compiles_the_kernels_of_the_noise_that_was_asked_for(kernels, dtype):
    warm(gumbel_dtype=dtype, batch_sizes=[2], max_drafts=2)
    drawing = ("draw_rows", "draw_large_sets", "accept_drafts")
    compiled = {(name, named["config"].FP64) for name in drawing for _, _, named in kernels[name].calls}
    assert compiled == {(name, dtype == "fp64") for name in drawing}


# Verifications.


def layouts(requests, most, known):
    """Yield the drafts of a batch in every layout of engines."""
    counts = [(most - i) % (most + 1) for i in range(requests)]
    q = {known: torch.zeros(sum(counts), V, dtype=DTYPES[known])} if known else {}
    lists = Drafts.from_lists([[5] * count for count in counts], **q)
    yield lists
    yield replace(lists, num_drafts=None, any_placeholder=True)
    yield Drafts.from_counts(torch.full((requests, most), -1), counts, **q)
    yield Drafts.from_lists([[]] * requests)


def verify(sampler, known="draft_logits", mode="rejection", most=4):
    """Verify and draft like an engine, in batches of several sizes, with logits at any alignment."""
    for requests in (1, 17, 129):
        for kind in REQUESTS:
            metadata = metadata_of(requests, kind)
            for drafts in layouts(requests, most, known):
                target = torch.zeros(1 + drafts.num_rows, V, dtype=torch.bfloat16)[1:]
                sampler.verify(target, drafts, metadata, mode=mode)
                sampler.verify(target, drafts, by_row(metadata, drafts, len(target)), mode=mode)
            sampler.draft(torch.zeros(requests, V, dtype=torch.bfloat16), metadata)


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
                {"most": 3, "known": None, "mode": "coupled"},
            ],
        ),
    ],
    ids=["logits", "everything"],
)
def test_drafts_and_verifications_within_the_warmup_compile_nothing(kernels, options, calls):
    sampler = warm(**options)
    before = compilations(kernels)
    assert before["accept_drafts"] > 0
    for call in calls:
        verify(sampler, **call)
        assert compilations(kernels) == before, call


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


# Edits.


ASKED = (
    {"presence_penalty": 1.0},
    {"logit_bias": {5: 1.0}, "allowed_token_ids": [5, 2999]},
    {"bad_words": [[1, 2]], "min_tokens": 2, "stop_token_ids": [5]},
    {},
)
ROWS, INTS = 9, (torch.int64, torch.int32)


def warm_processor(**options):
    processor = provider_of("process_logits", TritonLogitsProcessor(CPU), OPERATIONS["process_logits"])
    processor.warmup(V, dtypes=[torch.bfloat16], **options)
    return processor


def drafts_of_edits(ids, offsets):
    """Yield drafts of three requests, nine rows, in every layout that an engine may use."""
    counts = torch.tensor([0, 3, 4, 9], dtype=offsets)
    for shape, most in (((6,), 4), ((3, 4), 4), ((3, 7), 7)):
        yield Drafts(draft_token_ids=torch.ones(shape, dtype=ids), cu_num_logits=counts, max_drafts=most)


def edit(processor, *, drafts=(None,), indices=(*INTS, torch.int16), dtype=torch.bfloat16):
    """Apply all edits that an engine may request, to logits at any alignment."""
    for params in ASKED:
        slots = RequestSlots(2 * ROWS, 100, V, max_bias=7, max_bad_words=3)
        slots.add(4, SamplingParams(**params), prompt_token_ids=[1, 2])
        slots.add(ROWS, SamplingParams(**params), prompt_token_ids=range(99))
        for index, drafted, masked, offset in product(indices, drafts, (True, False), range(3)):
            logits = torch.zeros(ROWS * (V + 5) + offset, dtype=dtype)[offset:].view(ROWS, V + 5)[:, :V]
            words = torch.full((ROWS, 100), -1, dtype=torch.int32)[:, :94] if masked else None
            named = torch.arange(ROWS if drafted is None else 3).to(index)
            processor.process(logits, slots, named, words, drafted)


@pytest.mark.fast_first
@pytest.mark.parametrize("options", [{}, {"max_drafts": 2, "batch_sizes": [2]}], ids=["plain", "drafts"])
def test_no_edit_within_the_warmup_compiles_anything(kernels, options):
    processor = warm_processor(**options)
    before = compilations(kernels)
    edit(processor)
    for dtypes in product(INTS, INTS) if options else ():
        edit(processor, drafts=list(drafts_of_edits(*dtypes)))
    assert compilations(kernels) == before
    assert before["process_logits"] > 0
