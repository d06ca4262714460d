"""The compiled sampler draws native's tokens, in every instruction set that this processor has."""

import random
from functools import partial

import pytest
import torch

from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw.plugin import FILTER_ORDERS, LOGPROBS_MODES
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
ROWS = 48
VALUES = {
    "temperature": (1.0, 0.8, 0.3, 2.0, 0.0, 1e-6),
    "top_k": (0, 0, 0, 1, 7, 50, 900, 6000),
    "top_p": (1.0, 1.0, 0.05, 0.5, 0.9, 0.99, 0.9999),
    "min_p": (0.0, 0.0, 0.0, 0.001, 0.05, 0.5),
    "xtc_probability": (0.0, 0.0, 0.0, 0.7),
    "xtc_threshold": (0.001, 0.02, 0.1),
    "filters": (None, None, None, {"top_n_sigma": 1.0}, {"eta_cutoff": 1e-4}, {"p_less": 1}),
    "filter_order": FILTER_ORDERS,
    "logprobs": (None, 0, 3, 20),
    "logprob_token_ids": (None, None, [0, 5]),
}
DESIGNS = {
    "bell": lambda noise: noise,
    "wide bell": lambda noise: 5 * noise,
    "ties": lambda noise: (2 * noise).round(),
    "all alike": torch.zeros_like,
    "nearly flat, far from 0": lambda noise: 0.01 * noise - 4000,
    "masked": lambda noise: noise.masked_fill(noise < 0.5, -torch.inf),
}


def requests_of(rng, **fields):
    rows = [{name: rng.choice(values) for name, values in VALUES.items()} | fields for _ in range(ROWS)]
    for row in rows:
        if row["logprobs"] is None:
            row["logprob_token_ids"] = None
        if (
            row["temperature"] < 0.1
        ):  # native rounds the distance of the ceiling to float32 before it divides by T
            row["xtc_probability"] = 0.0
    return [SamplingParams(seed=rng.getrandbits(64), **row) for row in rows]


def logits_of(size, dtype, seed):
    noise = torch.randn(ROWS, size, generator=torch.Generator().manual_seed(seed))
    logits = torch.stack([[*DESIGNS.values()][row % len(DESIGNS)](noise[row]) for row in range(ROWS)])
    logits[7, size // 2] = logits[9, -1] = torch.nan
    logits[11, : size // 3 + 1] = torch.inf
    logits[13] = -torch.inf
    logits[14] = torch.nan
    return logits.to(dtype)


def assert_alike(found, wanted):
    """Compare outputs: ids, ranks and bounds are equal, log-probabilities within the rounding of a sum."""
    for name in ("token_ids", "valid", "threshold", "ceiling"):
        close(name, getattr(found, name), getattr(wanted, name), 0)
    close("log_kept_mass", found.log_kept_mass, wanted.log_kept_mass, 2e-6)
    assert (found.logprobs is None) == (wanted.logprobs is None)
    if found.logprobs is not None:
        for name in ("token_ids", "ranks", "given_token_ids"):
            close(name, getattr(found.logprobs, name), getattr(wanted.logprobs, name), 0)
        for name in ("logprobs", "given_logprobs"):
            close(name, getattr(found.logprobs, name), getattr(wanted.logprobs, name), 2e-6)


def close(name, found, wanted, tolerance):
    if found is None or wanted is None:
        assert found is wanted, name
        return
    torch.testing.assert_close(
        found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )


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
        build=lambda operation, need: CpuSampler(need),
        effort=Effort.tiny(),
    )
    bad = [line for line in run(subject).lines if line.status is Status.FAILED]
    assert not bad
