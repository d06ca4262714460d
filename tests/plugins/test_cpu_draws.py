"""The compiled sampler draws native's tokens, in every instruction set that this processor has."""

import random
from functools import partial

import pytest
import torch

from cpu_batches import ROWS, assert_alike, logits_of, requests_of
from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw.plugin import LOGPROBS_MODES
from tokendraw_cpu import plugin
from tokendraw_cpu.library import LibraryError, missing_library, supported_targets
from tokendraw_native.sampler import NativeSampler
from tokendraw_testing import Effort, Status, Subject, run

if reason := missing_library():
    pytest.skip(f"the compiled sampler {reason}", allow_module_level=True)
try:
    TARGETS = supported_targets()
except LibraryError as error:
    pytest.skip(f"the compiled sampler {error}", allow_module_level=True)

from tokendraw_cpu.sampler import CpuSampler

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_mixed_rows_have_the_output_of_native(target, dtype):
    rng = random.Random(f"{target} {dtype}")
    for number, size in enumerate((1, 15, 1025, 5003, 20_011)):
        mode = LOGPROBS_MODES[(number + TARGETS.index(target)) % len(LOGPROBS_MODES)]
        need = Need(logprobs_mode=mode, threshold=True, gumbel_dtype=("fp32", "fp64")[number % 2])
        logits = logits_of(size, dtype, number)
        metadata = SamplingMetadata.from_params(requests_of(rng), positions=range(2**33, 2**33 + ROWS))
        found = CpuSampler(need, target).sample(logits, metadata)
        assert_alike(found, NativeSampler(CPU, need).sample(logits, metadata))


def test_all_tokens_can_be_ranked():
    need = Need(logprobs_mode="processed_logprobs")
    logits = logits_of(1500, torch.bfloat16, 5)
    metadata = SamplingMetadata.from_params(requests_of(random.Random(5), logprobs=-1), positions=range(ROWS))
    assert_alike(CpuSampler(need).sample(logits, metadata), NativeSampler(CPU, need).sample(logits, metadata))


def test_a_wide_nucleus_that_a_sample_misjudges_is_found_all_the_same():
    """The sample looks at every 16th vector or so: here these alone are large, or small."""
    size = 1 << 17
    places = torch.arange(size) // 16 % 32
    logits = torch.stack(
        [torch.where(places == place, value, 0.0) for place in range(32) for value in (-3.0, 0.5)]
    )
    logits += 0.1 * torch.rand(size, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(top_p=0.8, top_k=(0, 70_000)[row % 2], seed=row) for row in range(64)]
    metadata = SamplingMetadata.from_params(params, positions=range(64))
    need = Need(threshold=True)
    assert_alike(CpuSampler(need).sample(logits, metadata), NativeSampler(CPU, need).sample(logits, metadata))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_a_large_logit_that_a_sample_misses_changes_no_draw_from_a_wide_nucleus(target, dtype):
    """The first pass weighs a wide nucleus relative to the largest value of a sample, if float32 has room for that."""
    size = 40_000
    logits = torch.rand(12, size, generator=torch.Generator().manual_seed(1))
    for row, spike in enumerate((2.0, 8.0, 12.0, 30.0, 50.0, 100.0, 3e4)):
        logits[row, 1024 * 20 + 7] = spike
    logits[8, 2048:4096] = -torch.inf
    logits[9, 5000] = torch.nan
    logits[10, 5000] = torch.inf
    params = [
        SamplingParams(top_p=0.8, temperature=(1.0, 0.5)[row % 2], seed=row, logprobs=2) for row in range(12)
    ]
    metadata = SamplingMetadata.from_params(params, positions=range(12))
    need, logits = Need(threshold=True), logits.to(dtype)
    found = CpuSampler(need, target).sample(logits, metadata)
    assert_alike(found, NativeSampler(CPU, need).sample(logits, metadata))


def test_strided_and_expanded_logits_are_read_in_place_or_copied():
    need = Need()
    metadata = SamplingMetadata.from_params(
        [SamplingParams(seed=row) for row in range(8)], positions=range(8)
    )
    logits = torch.randn(8, 3000, generator=torch.Generator().manual_seed(2))
    wide = torch.full((8, 3100), torch.inf)
    wide[:, 50:3050] = logits
    sample = partial(CpuSampler(need).sample, metadata=metadata)
    wanted = sample(logits).token_ids
    assert sample(wide[:, 50:3050]).token_ids.equal(wanted)
    assert sample(logits.T.contiguous().T).token_ids.equal(wanted)
    assert sample(logits[:1].expand(8, -1)).token_ids.equal(sample(logits[:1].repeat(8, 1)).token_ids)


@pytest.mark.slow
def test_the_kit_passes_every_line_in_small():
    subject = Subject(
        "cpu",
        capabilities=plugin.tokendraw_describe().operations,
        device=CPU,
        build=lambda operation, need: plugin.tokendraw_build(operation, CPU, need),
        effort=Effort.tiny(),
    )
    bad = [line for line in run(subject).lines if line.status is Status.FAILED]
    assert not bad
