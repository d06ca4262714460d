"""A single activation scale for all experts, or the first different expert by name."""

import pytest
import torch

from tokendraw import InvalidInputError, InvalidParameterError
from tokendraw.sm90_w4 import shared_activation_scale


@pytest.mark.parametrize("num_tokens", [0, 1, 4, 100])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (4, 1), (2, 2)], ids=str)
def test_equal_entries_are_one_scale_of_the_same_dtype(shape, num_tokens):
    for dtype in (torch.float32, torch.bfloat16):
        scale = torch.full(shape, 0.25, dtype=dtype)
        found = shared_activation_scale(scale, num_tokens)
        assert (found.tolist(), found.shape, found.dtype) == ([0.25], (1,), dtype)
        scale.zero_()
        assert found.tolist() == [0.25]  # a copy


def test_entries_need_no_order_in_memory():
    assert shared_activation_scale(torch.full((1,), 2.0).expand(8), 3).tolist() == [2.0]
    assert shared_activation_scale(torch.tensor([[2.0, 9.0], [2.0, 9.0]])[:, 0], num_tokens=3).tolist() == [
        2.0
    ]


def test_the_first_entry_that_differs_is_named():
    with pytest.raises(InvalidInputError) as refused:
        shared_activation_scale(torch.tensor([0.5, 0.5, 0.25, 0.125]), 7)
    assert str(refused.value) == (
        "'scale' needs 4 equal entries to scale 7 tokens together, found 0.25 as entry 2 and 0.5 before it. "
        "Quantize the activations of all experts with one scale."
    )
    with pytest.raises(ValueError, match="found nan as entry 1 and 1 before it"):
        shared_activation_scale(torch.tensor([1.0, float("nan")]), 2)
    with pytest.raises(ValueError, match="found nan as entry 0"):
        shared_activation_scale(torch.tensor([float("nan")] * 2), 2)


def test_entries_that_print_the_same_but_differ_are_told_apart():
    scale = torch.tensor([1.0, torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))])
    with pytest.raises(ValueError, match=r"found 1\.00000012 as entry 1 and 1 before it"):
        shared_activation_scale(scale, 2)


@pytest.mark.parametrize(
    ("scale", "num_tokens", "error", "message"),
    [
        (0.5, 1, InvalidInputError, "'scale' needs a torch.Tensor, found float. Pass a tensor."),
        (torch.ones(0), 1, InvalidInputError, "'scale' needs at least one entry, found shape [0]."),
        (torch.ones(2), -1, InvalidParameterError, "'num_tokens' needs an integer from 0, found -1."),
        (torch.ones(2), 1.0, InvalidParameterError, "'num_tokens' needs an integer from 0, found 1.0."),
        (torch.ones(2), True, InvalidParameterError, "'num_tokens' needs an integer from 0, found True."),
    ],
    ids=["no tensor", "empty", "negative", "float", "bool"],
)
def test_bad_input_is_refused(scale, num_tokens, error, message):
    with pytest.raises(error) as refused:
        shared_activation_scale(scale, num_tokens)
    assert str(refused.value) == message
