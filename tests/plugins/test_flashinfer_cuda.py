"""FlashInfer's kernels by every sequence of its version, and its verification of drafts, on a CUDA device with
FlashInfer.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from goodness_of_fit import FALSE_ALARM, INF, NAN, chi_square
from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_testing import reference

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


PATTERNS = {
    "clean": {},
    "one NaN": {3: NAN},
    "a few NaN": {3: NAN, 700: NAN, 31000: NAN},
    "NaN at the top": {"top": NAN},
    "NaN at the ends": {0: NAN, -1: NAN},
    "one +inf": {7: INF},
    "+inf, NaN and -inf": {2: INF, 900: INF, 5: NAN, 6: -INF},
    "all NaN": NAN,
    "all +inf": INF,
    "all -inf": -INF,
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_nan_row_stays_in_range_and_leaves_its_batch_neighbours_alone(single_sequence, name, device):
    kind, sampler = single_sequence
    size, poisoned = 32001, [1, 4]
    clean = torch.randn(9, size, generator=torch.Generator().manual_seed(1)).mul_(3).to(device)
    logits = clean.clone()
    for row in poisoned:
        if isinstance(PATTERNS[name], dict):
            for at, value in PATTERNS[name].items():
                logits[row, int(clean[row].argmax()) if at == "top" else at] = value
        else:
            logits[row] = PATTERNS[name]
    metadata = metadata_of(kind, 9, device)
    outputs = []
    for inputs in (clean, logits):
        torch.manual_seed(7)
        outputs.append(sampler.sample(inputs, metadata))
    mates = [row for row in range(9) if row not in poisoned]
    assert torch.equal(outputs[0].token_ids[mates], outputs[1].token_ids[mates])
    found = outputs[1]
    assert ((found.token_ids >= 0) & (found.token_ids < size)).all()
    assert found.valid[mates].all()
    rows = logits[poisoned]
    assert found.valid[poisoned].tolist() == (~rows.isnan().any(-1) & (rows > -INF).any(-1)).tolist()
    drawn = rows.gather(1, found.token_ids[poisoned, None])
    if (rows == INF).any():
        assert (drawn == INF).all()
    elif not (rows > -INF).any():
        assert found.token_ids[poisoned].tolist() == [0, 0]
    else:
        assert not drawn.isnan().any()


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
        assert chi_square(drawn[:, i :: len(requests)].ravel(), expected / expected.sum()) > FALSE_ALARM
