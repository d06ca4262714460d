"""After a warmup no call of an engine to triton-gumbel compiles: kernels record their compilations."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from calling import CPU, drafting
from selections import substitute
from tokendraw import Drafts, Need, PluginError, SamplingMetadata, SamplingParams
from tokendraw.operations.sample.proof import prove
from tokendraw.operations.verify import calls as verifying
from tokendraw.operations.verify.capabilities import DRAFT_KINDS, VERIFY_MODES
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from triton_stand_ins import kernels

__all__ = ["kernels"]

pytestmark = pytest.mark.usefixtures("warmup_on_a_cpu")
OPERATIONS = plugin.tokendraw_describe().operations
V = 3000
PLAIN, GREEDY = SamplingParams(), SamplingParams(temperature=0.0)
FILTERED = SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=1)
REQUESTS = {
    "plain": (PLAIN,),
    "greedy": (GREEDY,),
    "mixed": (FILTERED, GREEDY, SamplingParams(min_p=0.1), SamplingParams(top_p=0.8, filter_order="joint")),
    "logprobs": (PLAIN, SamplingParams(seed=2, logprobs=3)),
    "filtered, logprobs": (replace(FILTERED, logprobs=5), PLAIN),
}
DTYPES = {"draft_logits": torch.bfloat16, "draft_probs": torch.float32}


@pytest.fixture
def compiled(kernels):
    """Return a function that lists all recorded compilations."""
    return lambda: {(name, key) for name, kernel in kernels.items() for key, _ in kernel.compilations}


def warm(**options):
    backend = TritonGumbelSampler(CPU, Need())
    sampler = drafting(OPERATIONS["verify"], backend, companion_capabilities=None)
    substitute(sampler._dispatcher, backend, "triton-gumbel")
    sampler.warmup(V, dtypes=[torch.bfloat16], batch_sizes=[1, 16], **options)
    return sampler


def metadata_of(requests, kind):
    params = [REQUESTS[kind][i % len(REQUESTS[kind])] for i in range(requests)]
    return SamplingMetadata.from_params(params, positions=range(7, 7 + requests))


def layouts(requests, most, known):
    """Yield the drafts of a batch in every layout that an engine may use."""
    counts = [(most - i) % (most + 1) for i in range(requests)]
    q = {known: torch.zeros(sum(counts), V, dtype=DTYPES[known])} if known else {}
    lists = Drafts.from_lists([[5] * count for count in counts], **q)
    yield lists
    yield replace(lists, num_drafts=None, any_placeholder=True)
    yield Drafts.from_counts(torch.full((requests, most), -1), counts, **q)
    yield Drafts.from_lists([[]] * requests)


def verify(sampler, known="draft_logits", mode="rejection", most=4):
    """Verify and draft like an engine, in batches of several sizes."""
    for requests in (1, 17):
        for kind in REQUESTS:
            metadata = metadata_of(requests, kind)
            for drafts in layouts(requests, most, known):
                target = torch.zeros(drafts.num_rows, V, dtype=torch.bfloat16)
                sampler.verify(target, drafts, metadata, mode=mode)
                sampler.verify(target, drafts, verifying.by_row(metadata, drafts, len(target)), mode=mode)
            sampler.draft(torch.zeros(requests, V, dtype=torch.bfloat16), metadata)


@pytest.mark.fast_first
@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"max_drafts": 4}, [{}, {"most": 2}]),
        (
            {"max_drafts": 9, "verify_modes": VERIFY_MODES, "draft_kinds": DRAFT_KINDS},
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
def test_no_draft_and_no_verification_that_was_asked_for_compiles_anything(compiled, options, calls):
    sampler = warm(**options)
    before = compiled()
    for call in calls:
        verify(sampler, **call)
        assert compiled() - before == set(), call


@pytest.mark.slow
def test_what_was_not_asked_for_is_compiled_when_it_comes(compiled):
    sampler = warm(max_drafts=4)
    for call in ({"known": "draft_probs"}, {"known": None}, {"mode": "coupled"}, {"most": 9}):
        before = compiled()
        verify(sampler, **call)
        assert compiled() - before, call


@pytest.mark.parametrize("kind", ["plain", "mixed"])
@pytest.mark.parametrize("known", ["draft_logits", "draft_probs", None])
def test_a_verification_draws_large_sets_with_the_kernel_of_samples(compiled, kind, known):
    """The kernel of large sets takes longest to compile."""
    sampler = warm()
    before = compiled()
    metadata = metadata_of(3, kind)
    for drafts in layouts(3, 4, known):
        sampler.verify(torch.zeros(drafts.num_rows, V, dtype=torch.bfloat16), drafts, metadata)
    new = {name for name, _ in compiled() - before}
    assert "accept_drafts" in new
    assert "draw_large_sets" not in new


def proven(need):
    """Return a sampler after its proof draw, without a check of its result: no kernel runs."""
    backend = TritonGumbelSampler(CPU, need)
    with pytest.raises(PluginError, match="the proof draw needs"):
        prove(backend, OPERATIONS["sample"], CPU, need)
    return backend


def test_loading_compiles_two_small_kernels_where_nobody_says_what_will_be_drawn_from(compiled):
    proven(Need())
    assert sorted(name for name, _ in compiled()) == ["draw_rows", "tile_statistics"]


def test_where_the_need_says_the_dtype_loading_compiles_what_the_first_batch_needs(compiled):
    backend = proven(Need(dtype="bfloat16"))
    before = compiled()
    for rows in (1, 64):
        backend.sample(torch.zeros(rows, 128_000, dtype=torch.bfloat16), metadata_of(rows, "mixed"))
    assert {name for name, _ in before} == {"draw_rows", "tile_statistics", "draw_large_sets"}
    assert compiled() == before
