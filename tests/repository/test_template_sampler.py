"""The sampler written by ``tokendraw new``: the kit's lines that compare with the reference, token for token."""

from dataclasses import replace

import pytest
import torch

import tokendraw
from command_line import call
from pages import importable, install
from tokendraw import BatchFacts, SamplingMetadata
from tokendraw._torch.threads import one_thread
from tokendraw_testing import Effort, Status, Subject, run

LINES = (
    *("output", "crossed requests", "crossed logprobs", "near ties", "last ids", "far NaN and infinities"),
    *("ready tensors", "noise precision"),
)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """The template's sampler on the CPU, under the name acme."""
    folder = tmp_path_factory.mktemp("vendor")
    assert call("new", "acme", folder / "acme-tokendraw").exit_code == 0
    install(folder / "acme-tokendraw", folder / "site")
    with importable(folder / "site"), one_thread():
        subject = Subject.installed("acme", device="cpu", quick=True)
        subject.effort = replace(
            Effort.of(quick=True, device_type="cpu"), crossed_sizes=(1, 33, 1025, 5003), crossed_batch=90
        )
        yield subject


@pytest.mark.parametrize("line", LINES)
@pytest.mark.fast_first
def test_a_line_of_the_kit_is_green(subject, line):
    (result,) = run(subject, only=line).lines
    assert result.status is Status.PASSED, result


def test_values_in_ready_tensors_are_clamped_to_the_table(subject):
    nan, inf = float("nan"), float("inf")
    metadata = SamplingMetadata(
        temperature=torch.tensor([-1.0, nan, inf, 1e-45, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64),
        top_k=torch.tensor([3, 3, 3, 3, -7, 10**9, 5, 0], dtype=torch.int32),
        top_p=torch.tensor([1.0, 1.0, 1.0, 1.0, nan, 7.0, -1.0, 0.0]),
        min_p=torch.tensor([0.0, 0.0, 0.0, 0.0, nan, -3.0, 0.0, 2.0]),
        seed=torch.arange(8),
        positions=torch.arange(8),
        facts=BatchFacts(max_logprobs=9),
    )
    logits = torch.randn(8, 3000, generator=torch.Generator().manual_seed(5))
    left, right = (
        tokendraw.load_sampler(name, device="cpu", logprobs_mode="processed_logprobs").sample(
            logits, metadata
        )
        for name in ("acme", "native")
    )
    assert left.token_ids.tolist() == right.token_ids.tolist()
    assert left.valid.tolist() == right.valid.tolist()
    assert left.logprobs.token_ids.tolist() == right.logprobs.token_ids.tolist()
    assert left.logprobs.ranks.tolist() == right.logprobs.ranks.tolist()
    torch.testing.assert_close(left.logprobs.logprobs, right.logprobs.logprobs)
    torch.testing.assert_close(left.log_kept_mass, right.log_kept_mass)
