"""The compiled verifier emits native's tokens, in every instruction set that this processor has."""

import random
from dataclasses import replace

import pytest
import torch

from cpu_batches import assert_alike, logits_of, requests_of
from tokendraw import Drafts, Need, SamplingMetadata, SamplingParams, speculative
from tokendraw.plugin import DRAFT_KINDS, LOGPROBS_MODES, VERIFY_MODES
from tokendraw_cpu.library import LibraryError, missing_library, supported_targets
from tokendraw_native.sampler import NativeSampler

if reason := missing_library():
    pytest.skip(f"the compiled sampler {reason}", allow_module_level=True)
try:
    TARGETS = supported_targets()
except LibraryError as error:
    pytest.skip(f"the compiled sampler {error}", allow_module_level=True)

from tokendraw_cpu.verification import CpuVerifier

CPU = torch.device("cpu")
REQUESTS = 24
MOST_DRAFTS = 5
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def draft_logits_of(rng, target, generator):
    """Make logits of drafts: the target's own, the target's with noise, with digits of another dtype, or others."""
    rows = [
        rng.choice(
            (
                row,
                row + 0.5 * torch.randn(len(row), generator=generator),
                row + 1e-3 * torch.randn(len(row), generator=generator),
                torch.randn(len(row), generator=generator),
                torch.full_like(row, -torch.inf),
            )
        )
        for row in target.float()
    ]
    return torch.stack(rows) if rows else target.float()


def drafts_of(rng, target, kind, params):
    """Make the drafts of some requests, most of them drawn from their own distribution.

    :returns: the drafts, and the request of each row of the target.
    """
    generator, size = torch.Generator().manual_seed(rng.getrandbits(32)), target.shape[1]
    counts = [rng.randrange(MOST_DRAFTS + 1) for _ in range(len(params))]
    offsets = speculative.cu_num_logits(torch.tensor(counts))
    total = sum(counts)
    judging = speculative.target_rows(offsets, total)
    request = speculative.row_index(offsets, total + len(params))
    logits = draft_logits_of(rng, target[judging], generator)
    temperature = torch.tensor([params[i].temperature or 1.0 for i in request[judging]])
    probs = (logits / temperature.unsqueeze(-1)).softmax(-1).nan_to_num(nan=0.0)
    ids = (probs + 1e-30).multinomial(1, generator=generator).squeeze(-1)
    places = torch.rand(total, generator=generator)
    ids = torch.where(places < 0.1, torch.randint(size, (total,), generator=generator), ids)
    ids = torch.where(places > 0.95, torch.tensor([-1, size, 2**31 - 1])[torch.arange(total) % 3], ids)
    if kind == "probs":
        for row, value in ((3, torch.nan), (5, -0.5), (7, torch.inf), (9, 0.0)):
            if row < total:
                probs[row, row % size :: 2] = value
        kinds = {"draft_probs": probs.to(rng.choice((torch.float32, torch.float64, torch.bfloat16)))}
    elif kind == "logits":
        kinds = {"draft_logits": logits.to(rng.choice(DTYPES))}
    else:
        kinds = {}
    if rng.random() < 0.5:  # a padded matrix in place of a ragged list
        padded = torch.full((len(params), MOST_DRAFTS), -1)
        steps = torch.arange(MOST_DRAFTS) < torch.tensor(counts).unsqueeze(-1)
        padded[steps] = ids
        ids = padded
    if rng.random() < 0.5:
        ids = ids.to(torch.int32)
    return Drafts.from_counts(ids, counts, **kinds), request


def batch_of(rng, size, dtype, kind, **fields):
    """Make the arguments of a verification. Some rows of a request hold NaN or infinities."""
    params = requests_of(rng, REQUESTS, **fields)
    target = logits_of(size, dtype, rng.getrandbits(32), rows=REQUESTS * (MOST_DRAFTS + 1))
    drafts, request = drafts_of(rng, target, kind, params)
    target = target[: len(request)]
    rows = [replace(params[i], seed=rng.getrandbits(64)) for i in request]
    return target, drafts, SamplingMetadata.from_params(rows, positions=range(2**33, 2**33 + len(rows)))


@pytest.mark.parametrize("mode", VERIFY_MODES)
@pytest.mark.parametrize("target", TARGETS)
def test_mixed_requests_have_the_output_of_native(target, mode):
    rng = random.Random(f"{target} {mode}")
    for number, size in enumerate((1, 15, 1025, 2500, 7003)):
        for kind in DRAFT_KINDS:
            need = Need(
                logprobs_mode=rng.choice(LOGPROBS_MODES),
                threshold=True,
                gumbel_dtype=("fp32", "fp64")[number % 2],
            )
            batch = batch_of(rng, size, rng.choice(DTYPES), kind)
            found = CpuVerifier(need, target).verify(*batch, mode=mode)
            assert_alike(found, NativeSampler(CPU, need).verify(*batch, mode=mode))


def test_drafts_are_drawn_with_the_noise_of_drafts_and_without_xtc():
    rng, need = random.Random(4), Need(threshold=True)
    logits = logits_of(5003, torch.float32, 4)
    requests = requests_of(rng, xtc_probability=1.0, temperature=0.8)
    metadata = SamplingMetadata.from_params(requests, positions=range(len(requests)))
    found = CpuVerifier(need).sample(logits, metadata, draft=True)
    assert_alike(found, NativeSampler(CPU, need).sample(logits, metadata, draft=True))
    assert not found.token_ids.equal(CpuVerifier(need).sample(logits, metadata).token_ids)


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_requests_without_seeds_draw_from_the_generator_of_torch(mode):
    target, drafts, metadata = batch_of(random.Random(5), 1025, torch.float32, "logits")
    metadata = replace(metadata, seed=None, seeded=None, facts=replace(metadata.facts, all_seeded=False))
    tokens = []
    for verifier in (CpuVerifier(Need()), NativeSampler(CPU, Need())) * 2:
        torch.manual_seed(len(tokens) // 2)
        tokens.append(verifier.verify(target, drafts, metadata, mode=mode).token_ids)
    assert tokens[0].equal(tokens[1])
    assert tokens[2].equal(tokens[3])
    assert not tokens[0].equal(tokens[2])


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_strided_logits_of_targets_and_drafts_are_read_in_place_or_copied(mode):
    target, drafts, metadata = batch_of(random.Random(6), 1500, torch.float32, "logits")
    verifier = CpuVerifier(Need())
    wanted = verifier.verify(target, drafts, metadata, mode=mode).token_ids

    def widened(logits):
        wide = torch.full((len(logits), 1600), torch.inf)
        wide[:, 50:1550] = logits
        return wide[:, 50:1550]

    for changed in (widened, lambda logits: logits.T.contiguous().T):
        moved = replace(drafts, draft_logits=changed(drafts.draft_logits))
        assert verifier.verify(changed(target), moved, metadata, mode=mode).token_ids.equal(wanted)


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_requests_without_drafts_draw_a_sample_and_no_requests_nothing(mode):
    verifier, target = CpuVerifier(Need()), logits_of(1025, torch.float32, 7)
    params = [SamplingParams(seed=row) for row in range(len(target))]
    metadata = SamplingMetadata.from_params(params, positions=range(len(target)))
    for values in ({}, {"draft_logits": target[:0]}, {"draft_probs": target[:0]}):
        drafts = Drafts.from_lists([[]] * len(target), **values)
        output = verifier.verify(target, drafts, metadata, mode=mode)
        assert output.token_ids.squeeze(-1).equal(verifier.sample(target, metadata).token_ids)
        assert output.num_accepted.tolist() == [0] * len(target)
    output = verifier.verify(target[:0], Drafts.from_lists([]), SamplingMetadata(), mode=mode)
    assert (output.token_ids.shape, output.num_accepted.shape, output.valid.shape) == ((0, 1), (0,), (0,))


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_rows_behind_the_last_request_are_ignored(mode):
    target, drafts, metadata = batch_of(random.Random(8), 1025, torch.float32, "logits", logprobs=2)
    verifier = CpuVerifier(Need(threshold=True))
    wanted = verifier.verify(target, drafts, metadata, mode=mode)
    longer = replace(drafts, num_drafts=None, max_drafts=drafts.max_drafts)
    rows = torch.cat((torch.arange(len(target)), torch.zeros(7, dtype=torch.int64)))
    found = verifier.verify(
        target[rows], longer, metadata.for_rows(rows, metadata.positions[rows]), mode=mode
    )
    bounds = {name: getattr(found, name)[:-7] for name in ("threshold", "ceiling")}
    assert_alike(replace(found, **bounds), wanted)


def test_any_number_of_threads_emits_the_same_tokens():
    batch = batch_of(random.Random(9), 20_011, torch.float32, "probs")
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(CpuVerifier(Need()).verify(*batch).token_ids)
    finally:
        torch.set_num_threads(before)
    assert found[0].equal(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_thousands_of_mixed_requests_have_the_tokens_of_native(part):
    for number in range(60):
        rng = random.Random(60 * part + number)
        size = rng.choice((15, 1025, 2500, 7003, 20_011))
        batch = batch_of(rng, size, rng.choice(DTYPES), rng.choice(DRAFT_KINDS), logprobs=None)
        for mode in VERIFY_MODES:
            found = CpuVerifier(Need(), rng.choice(TARGETS)).verify(*batch, mode=mode)
            assert_alike(found, NativeSampler(CPU, Need()).verify(*batch, mode=mode))
