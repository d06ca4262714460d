"""The softmax kernel of the flashinfer plugin, on a machine without a GPU."""

from itertools import cycle, product

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import torch

import triton_stand_ins
from tokendraw_flashinfer import sampler, softmax


@pytest.mark.slow
def test_the_kernel_agrees_with_torch_for_any_rows():
    found = triton_stand_ins.interpreted("softmax", "errors")
    assert found["wrong"] == []
    assert found["compared"] > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "dtype", "temperature"),
    [
        (target, dtype, temperature)
        for (target, dtype), temperature in zip(
            product(("sm_80", "sm_120"), ("fp32", "bf16", "fp16")), cycle(("*fp32", None)), strict=False
        )
    ],
)
def test_the_kernel_compiles(target, dtype, temperature):
    types = {"logits": f"*{dtype}", "probs": "*fp32", "valid": "*i1", "row_stride": "i64"}
    constants = {"vocab_size": 128256, "BLOCK": softmax.configuration(1000, 4 if dtype == "fp32" else 2)[0]}
    if temperature:
        types["temperature"] = temperature
    else:
        constants["temperature"] = None
    assert triton_stand_ins.machine_code(softmax._softmax, types, constants, target, warps=16)


def test_where_triton_cannot_run_torch_does_the_same_and_the_log_says_why(monkeypatch, caplog):
    def broken(logits, temperature):
        raise RuntimeError("Failed to find C compiler")

    class OnCuda:
        device = torch.device("cuda")

    monkeypatch.setattr(softmax, "softmax", broken)
    with caplog.at_level("INFO", logger="tokendraw"):
        assert sampler._fused_softmax(OnCuda()) is None
    assert caplog.messages == [
        "logits are cleaned by torch, since Triton failed: RuntimeError: Failed to find C compiler"
    ]
