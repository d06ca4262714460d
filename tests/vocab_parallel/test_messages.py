"""A gather hands over what ranks packed as it went in."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tokendraw.vocab_parallel.messages import gathered


class Said(NamedTuple):
    """A message of every width of a word."""

    one: Tensor
    two: Tensor | None
    three: Tensor
    four: Tensor


class Echo:
    """The transport of ranks that all say the same."""

    def __init__(self, size):
        self.size = size

    def all_gather(self, tensor):
        return tensor.unsqueeze(0).repeat(self.size, 1, 1)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("has_two", [False, True])
def test_a_message_comes_out_as_it_went_in(ranks, rows, has_two):
    generator = torch.Generator().manual_seed(rows)
    one = torch.randn(rows, 1, generator=generator)
    said = Said(
        one,
        torch.randn(rows, 2, generator=generator, dtype=torch.float64) if has_two else None,
        torch.arange(rows, dtype=torch.int32).unsqueeze(-1).repeat(1, 3),
        torch.full((rows, 1), -(2**62) + 1),
    )
    heard = gathered(Echo(ranks), said)
    for sent, received in zip(said, heard, strict=True):
        if sent is None:
            assert received is None
            continue
        assert received.dtype == sent.dtype
        assert torch.equal(received, sent.expand(ranks, *sent.shape))
