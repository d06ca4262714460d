"""A wrong call is refused before anything runs, in words that name argument, needed and found."""

import re

import pytest
import torch

import tokendraw
from calling import selected
from cuda_batches import random_bytes
from tokendraw import InvalidInputError, InvalidParameterError, sm90_w4

WEIGHTS = random_bytes((2, 64, 64))
SCALES = random_bytes((2, 64, 4))


class Untouched:
    """A backend for calls that must not reach any."""

    def __getattr__(self, method):
        raise AssertionError(f"{method!r} was reached")


@pytest.fixture
def packer(monkeypatch):
    packer = tokendraw.load("pack_sm90_w4", "native", device="cpu")
    monkeypatch.setattr(selected(packer).backend, "object", Untouched())
    return packer


def refusal(call, error=InvalidInputError):
    assert issubclass(error, ValueError)
    with pytest.raises(error) as refused:
        call()
    return str(refused.value)


def wide(tensor):
    return torch.cat((tensor, tensor), -1)[..., : tensor.shape[-1]]


WRONG_WEIGHTS = {
    "no tensor": (
        [[[1]]],
        "v2",
        "'weights' needs a torch.Tensor, found list. Pass a tensor [E, N, K / 2] of dtype torch.uint8.",
    ),
    "device": (
        WEIGHTS.to("meta"),
        "v2",
        "'weights' needs device cpu, where the packer was built, found meta. Move it, or load a packer for meta.",
    ),
    "dtype": (
        WEIGHTS.view(torch.int8),
        "v2",
        "'weights' needs dtype torch.uint8, found torch.int8. Pass its bytes, as .view(torch.uint8).",
    ),
    "two dimensions": (
        WEIGHTS[0],
        "v2",
        "'weights' needs shape [E, N, K / 2] for the layout v2, found [64, 64]. Pass 3 dimensions.",
    ),
    "N of v1": (
        WEIGHTS[:, :40].contiguous(),
        "v1",
        "'weights' needs N, dimension 1, divisible by 16 for the layout v1, found 40. Pad it to 48.",
    ),
    "N of v2": (
        WEIGHTS[:, :48].contiguous(),
        "v2",
        "'weights' needs N, dimension 1, divisible by 64 for the layout v2, found 48. Pad it to 64.",
    ),
    "K of v1": (
        WEIGHTS[:, :, :48].contiguous(),
        "v1",
        "'weights' needs K, twice dimension 2, divisible by 64 for the layout v1, found 96. Pad it to 128.",
    ),
    "K of v2": (
        torch.zeros(1, 64, 1440, dtype=torch.uint8),
        "v2",
        "'weights' needs K, twice dimension 2, divisible by 128 for the layout v2, found 2880. Pad it to 2944.",
    ),
    "strides": (
        wide(WEIGHTS),
        "v2",
        "'weights' needs to be contiguous, found strides [8192, 128, 1] of shape [2, 64, 64]. "
        "Pass weights.contiguous().",
    ),
}
WRONG_SCALES = {
    "N of v1": (
        SCALES[:, :8].contiguous(),
        "v1",
        "'scales' needs N, dimension 1, divisible by 16 for the layout v1, found 8. Pad it to 16.",
    ),
    "K of v1": (
        SCALES[:, :, :2].contiguous(),
        "v1",
        "'scales' needs K, 32 times dimension 2, divisible by 128 for the layout v1, found 64. Pad it to 128.",
    ),
    "K of v2": (
        torch.zeros(1, 64, 90, dtype=torch.uint8),
        "v2",
        "'scales' needs K, 32 times dimension 2, divisible by 128 for the layout v2, found 2880. Pad it to 2944.",
    ),
    "dtype": (
        SCALES.float(),
        "v1",
        "'scales' needs dtype torch.uint8, found torch.float32. Pass its bytes, as .view(torch.uint8).",
    ),
}
WRONG_PACKED_SCALES = {
    "five dimensions of v1": (
        torch.zeros(1, 1, 1, 16, 16, dtype=torch.uint8),
        "v1",
        "'packed' needs shape [E, K / 128, 4 N] for the layout v1, found [1, 1, 1, 16, 16]. Pass 3 dimensions.",
    ),
    "three dimensions of v2": (
        torch.zeros(1, 1, 256, dtype=torch.uint8),
        "v2",
        "'packed' needs shape [E, N / 64, K / 128, 16, 16] for the layout v2, found [1, 1, 256]. Pass 5 dimensions.",
    ),
    "last dimensions of v2": (
        torch.zeros(1, 1, 1, 16, 8, dtype=torch.uint8),
        "v2",
        "'packed' needs shape [E, N / 64, K / 128, 16, 16] for the layout v2, found [1, 1, 1, 16, 8]. "
        "Pass 5 dimensions.",
    ),
    "N of v1": (
        torch.zeros(1, 1, 100, dtype=torch.uint8),
        "v1",
        "'packed' needs 4 N, dimension 2, divisible by 64 for the layout v1, found 100. Pad it to 128.",
    ),
}


@pytest.mark.parametrize("case", WRONG_WEIGHTS.values(), ids=WRONG_WEIGHTS)
def test_wrong_weights_are_refused_there_and_back(packer, case):
    weights, layout, message = case
    assert refusal(lambda: packer.pack_weights(weights, format="fp4", layout=layout)) == message
    found = refusal(lambda: packer.unpack_weights(weights, format="fp4", layout=layout))
    assert found == message.replace("weights", "packed")


@pytest.mark.parametrize("case", WRONG_SCALES.values(), ids=WRONG_SCALES)
def test_wrong_scales_are_refused(packer, case):
    scales, layout, message = case
    assert refusal(lambda: packer.pack_scales(scales, layout=layout)) == message


@pytest.mark.parametrize("case", WRONG_PACKED_SCALES.values(), ids=WRONG_PACKED_SCALES)
def test_wrong_packed_scales_are_refused(packer, case):
    packed, layout, message = case
    assert refusal(lambda: packer.unpack_scales(packed, layout=layout)) == message


def test_an_unknown_format_or_layout_is_refused(packer):
    assert refusal(
        lambda: packer.pack_weights(WEIGHTS, format="nf4", layout="v2"), InvalidParameterError
    ) == ("'format' needs fp4, int4 or fp4_fp8, found 'nf4'. Pass one of these.")
    for layout in ("v3", None, ["v1"]):
        assert refusal(lambda x=layout: packer.pack_scales(SCALES, layout=x), InvalidParameterError) == (
            f"'layout' needs v1 or v2, found {layout!r}. Pass one of these, or upstream for that of the installed "
            "FlashInfer."
        )


def test_fp4_fp8_is_refused_in_v1(packer):
    for call in (packer.pack_weights, packer.unpack_weights):
        message = refusal(
            lambda call=call: call(WEIGHTS, format="fp4_fp8", layout="v1"), InvalidParameterError
        )
        assert message == "'format' needs fp4 or int4 in the layout v1, found 'fp4_fp8'. Use the layout v2."


def test_the_layout_has_no_default_nor_has_the_format(packer):
    calls = [
        lambda: packer.pack_weights(WEIGHTS, format="fp4"),
        lambda: packer.unpack_weights(WEIGHTS, format="fp4"),
        lambda: packer.pack_scales(SCALES),
        lambda: packer.unpack_scales(SCALES),
    ]
    for call in calls:
        with pytest.raises(TypeError) as missing:  # as Python says of any argument that is missing
            call()
        assert isinstance(missing.value, InvalidParameterError)
        assert str(missing.value) == (
            "'layout' needs v1 or v2, found nothing. Pass one of these, or upstream for that of the installed "
            "FlashInfer."
        )
    with pytest.raises(TypeError) as missing:
        packer.pack_weights(WEIGHTS, layout="v2")
    assert str(missing.value) == "'format' needs fp4, int4 or fp4_fp8, found nothing. Pass one of these."
    with pytest.raises(TypeError):
        packer.pack_weights(WEIGHTS, "fp4", "v2")


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_upstream_is_the_layout_of_the_installed_flashinfer(monkeypatch, layout):
    packer = tokendraw.load("pack_sm90_w4", device="cpu")
    monkeypatch.setattr(sm90_w4, "layout_of_flashinfer", lambda: layout)
    found = packer.pack_weights(WEIGHTS, format="fp4", layout="upstream")
    assert torch.equal(found, packer.pack_weights(WEIGHTS, format="fp4", layout=layout))
    assert torch.equal(packer.unpack_weights(found, format="fp4", layout="upstream"), WEIGHTS)
    scales = packer.pack_scales(SCALES, layout="upstream")
    assert torch.equal(scales, packer.pack_scales(SCALES, layout=layout))
    assert torch.equal(packer.unpack_scales(scales, layout="upstream"), SCALES)


def test_upstream_is_refused_without_a_flashinfer_that_packs_and_says_why(packer, monkeypatch):
    missing = sm90_w4.FlashInferLayout(None, "needs flashinfer.fused_moe, found no FlashInfer")
    monkeypatch.setattr(sm90_w4, "probe_flashinfer", lambda: missing)
    for call in (
        lambda: packer.pack_scales(SCALES, layout="upstream"),
        lambda: packer.pack_weights(WEIGHTS, format="fp4", layout="upstream"),
    ):
        assert refusal(call, InvalidParameterError) == (
            "'layout' needs flashinfer.fused_moe, found no FlashInfer; 'upstream' is what that packs into. Pass v1 or "
            "v2, whichever your GEMM reads."
        )


def test_upstream_of_v1_refuses_what_v1_does_not_have(packer, monkeypatch):
    monkeypatch.setattr(sm90_w4, "layout_of_flashinfer", lambda: "v1")
    found = refusal(
        lambda: packer.pack_weights(WEIGHTS, format="fp4_fp8", layout="upstream"), InvalidParameterError
    )
    assert re.fullmatch(r"'format' needs fp4 or int4 in the layout v1, found 'fp4_fp8'. .*", found)
