"""A device fault in an operation of a plugin counts for every operation of the plugin."""

import sys
import warnings

import pytest
import torch

from fake_dists import serving_both
from tokendraw import Drafts, SamplerFallbackWarning, SamplingMetadata, SamplingParams, load_sampler
from tokendraw.calls.negotiator import is_device_fault

LOGITS = torch.zeros(3, 50)
METADATA = SamplingMetadata.from_params([SamplingParams(seed=i) for i in range(3)], positions=[0, 1, 2])
ILLEGAL = "raise RuntimeError('CUDA error: an illegal memory access was encountered')"


def verify(sampler):
    """Verify, and return the name of the verifier."""
    sampler.verify(LOGITS, Drafts.from_lists([[1, 2]]), METADATA)
    return sampler.verify_resolution.chosen


def reason(sampler):
    """The reason against acme as a verifier."""
    (decision,) = [d for d in sampler.verify_resolution.decisions if d.name == "acme"]
    return decision.reason


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered\nSearch for it"), True),
        (RuntimeError("HIP error: invalid device function"), True),
        (RuntimeError("CUDA error: out of memory"), False),
        (torch.OutOfMemoryError("CUDA out of memory."), False),
        (RuntimeError("The size of tensor a (2) must match the size of tensor b (3)"), False),
        (OSError("CUDA error: no such file"), False),
        (None, False),
    ],
    ids=str,
)
def test_what_is_a_fault_of_the_device(error, expected):
    assert is_device_fault(error) is expected


@pytest.mark.skipif(
    not hasattr(torch, "AcceleratorError"), reason="this torch has no class of its own for it"
)
def test_whatever_torch_raises_as_an_error_of_the_accelerator_is_one():
    assert is_device_fault(torch.AcceleratorError("misaligned address"))


GONE = "raise OSError('gone')"
FAULTS = {
    "sample is built": ({"build": f"if operation == 'sample': {ILLEGAL}"}, ("native", "native"), ["sample"]),
    "sample is built, another fault": (
        {"build": f"if operation == 'sample': {GONE}"},
        ("native", "acme"),
        ["sample", "verify"],
    ),
    "sample is called": ({"sample": ILLEGAL}, ("native", "native"), ["sample"]),
    "sample is called, another fault": ({"sample": GONE}, ("native", "acme"), ["sample", "verify"]),
    "verify is built": (
        {"build": f"if operation == 'verify': {ILLEGAL}"},
        ("native", "native"),
        ["sample", "verify"],
    ),
    "verify is called": ({"verify": ILLEGAL}, ("native", "native"), ["sample", "verify"]),
    "verify is called, another fault": ({"verify": GONE}, ("acme", "native"), ["sample", "verify"]),
}
"""Statements of acme, who samples and verifies in the end, and what acme has built where verify is used last."""


@pytest.mark.parametrize("operations", [("sample",), ("sample", "verify")], ids=str)
@pytest.mark.parametrize("while_", FAULTS)
def test_a_fault_of_the_device_counts_for_every_operation_and_another_for_its_own(dists, while_, operations):
    statements, names, built = FAULTS[while_]
    module = dists.add_plugin("acme", serving_both(**statements))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sampler = load_sampler(device="cpu", operations=operations)
        for _ in range(2):
            sampler.sample(LOGITS, METADATA)
            verify(sampler)
    assert (sampler.name, sampler.verify_resolution.chosen) == names
    assert {warning.category for warning in caught} == {SamplerFallbackWarning}
    if operations == ("sample",):
        assert built == sys.modules[module].BUILT
    if names[1] == "native" and "verify" not in while_:
        assert "raised RuntimeError: CUDA error: an illegal memory access was encountered" in reason(sampler)
