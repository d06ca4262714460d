"""FlashInfer's kernels by every sequence of its version, on a CUDA device with FlashInfer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from special_rows import FALSE_ALARM
from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_testing import reference
from tokendraw_testing.kit.statistical_tests import fit

pytestmark = pytest.mark.gpu

BOTH = SamplingParams(top_k=50, top_p=0.9, temperature=0.8)
REQUESTS = {
    "none": [SamplingParams(temperature=0.8)],
    "min_p": [SamplingParams(min_p=0.05)],
    "top_k": [SamplingParams(top_k=50, temperature=0.8)],
    "top_p": [SamplingParams(top_p=0.9, temperature=0.8)],
    "top_k_first": [BOTH],
    "joint": [replace(BOTH, filter_order="joint")],
    "both orders": [BOTH, replace(BOTH, filter_order="joint")],
}
SINGLE_SEQUENCES = [(kind, index) for kind, requests in REQUESTS.items() for index in range(2)]


@pytest.fixture(scope="module")
def device():
    pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="module", params=SINGLE_SEQUENCES, ids=str)
def single_sequence(request, device):
    """A kind of batch, and a sampler restricted to a single kernel sequence."""
    from tokendraw_flashinfer.kernel_sequences import SEQUENCES, available
    from tokendraw_flashinfer.sampler import FlashInferSampler
    from tokendraw_flashinfer.signatures import EntryPoints

    kind, index = request.param
    capability = torch.cuda.get_device_capability(device)
    sequences = available(SEQUENCES, EntryPoints.installed(), "either", capability)[kind]
    if index >= len(sequences):
        pytest.skip(f"there are {len(sequences)} ways for {kind}")
    general = next(other for other in sequences if other.is_general)
    return kind, FlashInferSampler(
        device, Need(tie_rule="either"), SEQUENCES | {kind: (sequences[index], general)}
    )


def metadata_of(kind, rows, device):
    requests = REQUESTS[kind]
    return SamplingMetadata.from_params([requests[r % len(requests)] for r in range(rows)], device=device)


def test_draws_follow_the_distribution(single_sequence, device):
    kind, sampler = single_sequence
    size, rows, calls = 1200, 8192, 24
    row = torch.randn(size, generator=torch.Generator().manual_seed(3)).mul_(2)
    logits, metadata = row.to(device).repeat(rows, 1), metadata_of(kind, rows, device)
    drawn = torch.stack([sampler.sample(logits, metadata).token_ids for _ in range(calls)]).cpu().numpy()
    requests = REQUESTS[kind]
    for i, params in enumerate(requests):
        prepared = reference.prepare(row.numpy(), params)
        expected = np.where(prepared.kept, np.exp(prepared.y), 0.0)
        assert fit(drawn[:, i :: len(requests)].ravel(), expected / expected.sum()).p_value > FALSE_ALARM
