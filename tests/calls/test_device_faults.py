"""A device fault in an operation of a plugin counts for every operation of the plugin."""

import sys
import warnings

import pytest
import torch

from fake_dists import FakeDists, serving_both
from tokendraw import Drafts, Sampler, SamplerFallbackWarning, SamplingMetadata, SamplingParams, load_sampler
from tokendraw.calls.device_faults import is_device_fault

LOGITS = torch.zeros(3, 50)
METADATA = SamplingMetadata.from_params([SamplingParams(seed=i) for i in range(3)], positions=[0, 1, 2])
ILLEGAL = "raise RuntimeError('CUDA error: an illegal memory access was encountered')"


def verify(sampler: Sampler) -> str:
    """Verify, and return the name of the verifier."""
    sampler.verify(LOGITS, Drafts.from_lists([[1, 2]]), METADATA)
    return sampler.verify_resolution.chosen


def reason(sampler: Sampler) -> str:
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
def test_what_is_a_fault_of_the_device(error: BaseException | None, expected: bool) -> None:
    assert is_device_fault(error) is expected


@pytest.mark.skipif(
    not hasattr(torch, "AcceleratorError"), reason="this torch has no class of its own for it"
)
def test_whatever_torch_raises_as_an_error_of_the_accelerator_is_one() -> None:
    assert is_device_fault(torch.AcceleratorError("misaligned address"))


def test_one_while_sample_is_built_counts_for_verify(dists: FakeDists) -> None:
    module = dists.add_plugin("acme", serving_both(build=f"if operation == 'sample': {ILLEGAL}"))
    with pytest.warns(SamplerFallbackWarning):
        sampler = load_sampler(device="cpu")
    with pytest.warns(SamplerFallbackWarning):
        assert (sampler.name, verify(sampler)) == ("native", "native")
    assert sys.modules[module].BUILT == ["sample"]
    assert reason(sampler).startswith(
        "tokendraw_build raised RuntimeError: CUDA error: an illegal memory access was encountered (fake_acme.py:"
    )


def test_another_fault_while_sample_is_built_says_nothing_about_verify(dists: FakeDists) -> None:
    module = dists.add_plugin("acme", serving_both(build="if operation == 'sample': raise OSError('gone')"))
    with pytest.warns(SamplerFallbackWarning):
        sampler = load_sampler(device="cpu")
    assert (sampler.name, verify(sampler)) == ("native", "acme")
    assert sys.modules[module].BUILT == ["sample", "verify"]


def test_one_in_a_call_of_sample_takes_verify_from_the_plugin(dists: FakeDists) -> None:
    dists.add_plugin("acme", serving_both(sample=ILLEGAL))
    sampler = load_sampler(device="cpu", operations=("sample", "verify"))
    assert sampler.verify_resolution.chosen == "acme"
    with pytest.warns(SamplerFallbackWarning):
        sampler.sample(LOGITS, METADATA)
    with pytest.warns(SamplerFallbackWarning):
        assert (sampler.name, verify(sampler)) == ("native", "native")
    assert "CUDA error: an illegal memory access" in reason(sampler)


def test_one_in_a_call_of_sample_counts_for_verify_that_nobody_has_used_yet(dists: FakeDists) -> None:
    module = dists.add_plugin("acme", serving_both(sample=ILLEGAL))
    sampler = load_sampler(device="cpu")
    with pytest.warns(SamplerFallbackWarning):
        sampler.sample(LOGITS, METADATA)
    with pytest.warns(SamplerFallbackWarning):
        assert verify(sampler) == "native"
    assert sys.modules[module].BUILT == ["sample"]


def test_another_error_of_a_call_of_sample_leaves_verify_as_it_is(dists: FakeDists) -> None:
    dists.add_plugin("acme", serving_both(sample="raise ValueError('odd batch')"))
    sampler = load_sampler(device="cpu", operations=("sample", "verify"))
    with pytest.warns(SamplerFallbackWarning):
        sampler.sample(LOGITS, METADATA)
    assert (sampler.name, verify(sampler)) == ("native", "acme")


def test_one_while_verify_is_built_takes_sample_from_the_plugin(dists: FakeDists) -> None:
    dists.add_plugin("acme", serving_both(build=f"if operation == 'verify': {ILLEGAL}"))
    sampler = load_sampler(device="cpu")
    assert sampler.name == "acme"
    with pytest.warns(SamplerFallbackWarning):
        assert verify(sampler) == "native"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerFallbackWarning)  # of sample too, acme was passed over
        sampler.sample(LOGITS, METADATA)
    assert sampler.name == "native"


def test_one_in_a_call_of_verify_takes_sample_from_the_plugin(dists: FakeDists) -> None:
    dists.add_plugin("acme", serving_both(verify=ILLEGAL))
    sampler = load_sampler(device="cpu", operations=("sample", "verify"))
    assert (sampler.name, sampler.verify_resolution.chosen) == ("acme", "acme")
    with pytest.warns(SamplerFallbackWarning):
        assert verify(sampler) == "native"
    with pytest.warns(SamplerFallbackWarning):
        sampler.sample(LOGITS, METADATA)
    assert sampler.name == "native"
