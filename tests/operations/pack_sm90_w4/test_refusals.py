"""A wrong call is refused before anything runs, in words that name argument, needed and found."""

import pytest
import torch

import tokendraw
from calling import selected
from cuda_batches import random_bytes
from tokendraw import InvalidInputError, InvalidParameterError, sm90_w4

WEIGHTS = random_bytes((2, 64, 64))
SCALES = random_bytes((2, 64, 4))
FLASHINFER = "Pass one of these, or upstream for that of the installed FlashInfer."


class Untouched:
    """A backend for calls that must not reach any."""

    def __getattr__(self, method):
        raise AssertionError(f"{method!r} was reached")


@pytest.fixture
def packer(monkeypatch):
    packer = tokendraw.load("pack_sm90_w4", "native", device="cpu")
    monkeypatch.setattr(selected(packer).backend, "object", Untouched())
    return packer


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.uint8)


def wide(tensor):
    return torch.cat((tensor, tensor), -1)[..., : tensor.shape[-1]]


WRONG_WEIGHTS = {
    "needs a torch.Tensor, found list. Pass a tensor [E, N, K / 2] of dtype torch.uint8.": ([[[1]]], "v2"),
    "needs device cpu, where the packer was built, found meta. Move it, or load a packer for meta.": (
        WEIGHTS.to("meta"),
        "v2",
    ),
    "needs dtype torch.uint8, found torch.int8. Pass its bytes, as .view(torch.uint8).": (
        WEIGHTS.view(torch.int8),
        "v2",
    ),
    "needs shape [E, N, K / 2] for the layout v2, found [64, 64]. Pass 3 dimensions.": (WEIGHTS[0], "v2"),
    "needs N, dimension 1, divisible by 16 for the layout v1, found 40. Pad it to 48.": (
        zeros(2, 40, 64),
        "v1",
    ),
    "needs N, dimension 1, divisible by 64 for the layout v2, found 48. Pad it to 64.": (
        zeros(2, 48, 64),
        "v2",
    ),
    "needs K, twice dimension 2, divisible by 64 for the layout v1, found 96. Pad it to 128.": (
        zeros(2, 64, 48),
        "v1",
    ),
    "needs K, twice dimension 2, divisible by 128 for the layout v2, found 2880. Pad it to 2944.": (
        zeros(1, 64, 1440),
        "v2",
    ),
    "needs to be contiguous, found strides [8192, 128, 1] of shape [2, 64, 64]. Pass weights.contiguous().": (
        wide(WEIGHTS),
        "v2",
    ),
}
WRONG_SCALES = {
    "'scales' needs N, dimension 1, divisible by 16 for the layout v1, found 8. Pad it to 16.": (
        "pack_scales",
        zeros(2, 8, 4),
        "v1",
    ),
    "'scales' needs K, 32 times dimension 2, divisible by 128 for the layout v1, found 64. Pad it to 128.": (
        "pack_scales",
        zeros(2, 64, 2),
        "v1",
    ),
    "'scales' needs K, 32 times dimension 2, divisible by 128 for the layout v2, found 2880. Pad it to 2944.": (
        "pack_scales",
        zeros(1, 64, 90),
        "v2",
    ),
    "'scales' needs dtype torch.uint8, found torch.float32. Pass its bytes, as .view(torch.uint8).": (
        "pack_scales",
        SCALES.float(),
        "v1",
    ),
    "'packed' needs shape [E, K / 128, 4 N] for the layout v1, found [1, 1, 1, 16, 16]. Pass 3 dimensions.": (
        "unpack_scales",
        zeros(1, 1, 1, 16, 16),
        "v1",
    ),
    "'packed' needs shape [E, N / 64, K / 128, 16, 16] for the layout v2, found [1, 1, 256]. Pass 5 dimensions.": (
        "unpack_scales",
        zeros(1, 1, 256),
        "v2",
    ),
    "'packed' needs shape [E, N / 64, K / 128, 16, 16] for the layout v2, found [1, 1, 1, 16, 8]. Pass 5 dimensions.": (
        "unpack_scales",
        zeros(1, 1, 1, 16, 8),
        "v2",
    ),
    "'packed' needs 4 N, dimension 2, divisible by 64 for the layout v1, found 100. Pad it to 128.": (
        "unpack_scales",
        zeros(1, 1, 100),
        "v1",
    ),
}
WRONG_OPTIONS = {
    "'format' needs fp4, int4 or fp4_fp8, found 'nf4'. Pass one of these.": {"format": "nf4", "layout": "v2"},
    "'format' needs fp4, int4 or fp4_fp8, found nothing. Pass one of these.": {"layout": "v2"},
    "'format' needs fp4 or int4 in the layout v1, found 'fp4_fp8'. Use the layout v2.": {
        "format": "fp4_fp8",
        "layout": "v1",
    },
    **{
        f"'layout' needs v1 or v2, found {layout!r}. {FLASHINFER}": {"format": "fp4", "layout": layout}
        for layout in ("v3", None, ["v1"])
    },
    f"'layout' needs v1 or v2, found nothing. {FLASHINFER}": {"format": "fp4"},
}


def refusal(method, *arguments, error=InvalidInputError, **options):
    with pytest.raises(error) as refused:
        method(*arguments, **options)
    assert isinstance(refused.value, ValueError)
    return str(refused.value)


@pytest.mark.parametrize("message", WRONG_WEIGHTS)
def test_wrong_weights_are_refused_there_and_back(packer, message):
    weights, layout = WRONG_WEIGHTS[message]
    found = refusal(packer.pack_weights, weights, format="fp4", layout=layout)
    assert found == f"'weights' {message}"
    found = refusal(packer.unpack_weights, weights, format="fp4", layout=layout)
    assert found == f"'packed' {message.replace('weights', 'packed')}"


@pytest.mark.parametrize("message", WRONG_SCALES)
def test_wrong_scales_are_refused(packer, message):
    method, scales, layout = WRONG_SCALES[message]
    assert refusal(getattr(packer, method), scales, layout=layout) == message


@pytest.mark.parametrize("message", WRONG_OPTIONS)
def test_wrong_formats_and_layouts_are_refused_and_neither_has_a_default(packer, message):
    options = WRONG_OPTIONS[message]
    error = TypeError if "found nothing" in message else InvalidParameterError  # as of any missing argument
    for method in (packer.pack_weights, packer.unpack_weights):
        assert refusal(method, WEIGHTS, error=error, **options) == message
    if message.startswith("'layout'"):
        options = {name: value for name, value in options.items() if name == "layout"}
        for method in (packer.pack_scales, packer.unpack_scales):
            assert refusal(method, SCALES, error=error, **options) == message
    with pytest.raises(TypeError):
        packer.pack_weights(WEIGHTS, "fp4", "v2")


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_upstream_is_the_layout_of_the_installed_flashinfer(monkeypatch, layout):
    packer = tokendraw.load("pack_sm90_w4", device="cpu")
    monkeypatch.setattr(sm90_w4, "probe_flashinfer", lambda: sm90_w4.FlashInferLayout(layout))
    found = packer.pack_weights(WEIGHTS, format="fp4", layout="upstream")
    assert torch.equal(found, packer.pack_weights(WEIGHTS, format="fp4", layout=layout))
    assert torch.equal(packer.unpack_weights(found, format="fp4", layout="upstream"), WEIGHTS)
    scales = packer.pack_scales(SCALES, layout="upstream")
    assert torch.equal(scales, packer.pack_scales(SCALES, layout=layout))
    assert torch.equal(packer.unpack_scales(scales, layout="upstream"), SCALES)
    if layout == "v1":  # which has no such format
        with pytest.raises(
            InvalidParameterError, match=r"^'format' needs fp4 or int4 in the layout v1, found"
        ):
            packer.pack_weights(WEIGHTS, format="fp4_fp8", layout="upstream")


def test_upstream_is_refused_without_a_flashinfer_that_packs_and_says_why(packer, monkeypatch):
    missing = sm90_w4.FlashInferLayout(None, "needs flashinfer.fused_moe, found no FlashInfer")
    monkeypatch.setattr(sm90_w4, "probe_flashinfer", lambda: missing)
    error = InvalidParameterError
    for message in (
        refusal(packer.pack_scales, SCALES, error=error, layout="upstream"),
        refusal(packer.pack_weights, WEIGHTS, error=error, format="fp4", layout="upstream"),
    ):
        assert message == (
            "'layout' needs flashinfer.fused_moe, found no FlashInfer; 'upstream' is what that packs into. Pass v1 or "
            "v2, whichever your GEMM reads."
        )
