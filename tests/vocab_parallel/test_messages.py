"""A gather returns the fields packed by the ranks unchanged."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tokendraw.vocab_parallel.messages import exchange


class Said(NamedTuple):
    """A message of every width of a word."""

    one: Tensor
    two: Tensor | None
    three: Tensor
    four: Tensor


class Echo:
    """The transport of ranks with equal messages."""

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
    heard = exchange(Echo(ranks), said).tensors()
    for sent, received in zip(said, heard, strict=True):
        if sent is None:
            assert received is None
            continue
        assert received.dtype == sent.dtype
        assert torch.equal(received, sent.expand(ranks, *sent.shape))


class Noting(Echo):
    """Keeps the tensors sent."""

    def all_gather(self, tensor):
        self.sent = tensor
        return super().all_gather(tensor)


def in_one_buffer(rows, width=10):
    """Make a message as kernels write it: fields of two words at even words, and an unused word.

    No word is a NaN as a float32: it would differ from itself.
    """
    buffer = torch.randint(-(2**31), 2**31 - 1, (rows + 1, width), dtype=torch.int32)[1:] & ~(1 << 30)
    columns = (
        buffer[:, :1].view(torch.float32),
        buffer[:, 2:6].view(torch.int64),
        buffer[:, 6:9],
        buffer[:, 8:10].view(torch.int64),
    )
    return buffer, Said(*columns)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_columns_of_one_buffer_are_sent_as_they_are(rows):
    buffer, said = in_one_buffer(rows)
    talk = Noting(3)
    heard = exchange(talk, said)
    assert (talk.sent.data_ptr(), talk.sent.shape, talk.sent.is_contiguous()) == (
        buffer.data_ptr(),
        buffer.shape,
        True,
    )
    assert heard.offsets == (0, 2, 6, 8)
    for sent, received in zip(said, heard.tensors(), strict=True):
        assert received.dtype == sent.dtype
        assert torch.equal(received, sent.expand(3, *sent.shape))


def test_any_field_may_begin_the_rows_of_the_buffer():
    buffer, said = in_one_buffer(3)
    talk = Noting(2)
    heard = exchange(talk, said._replace(one=said.three, three=said.one))
    assert talk.sent.data_ptr() == buffer.data_ptr()
    assert heard.offsets == (6, 2, 0, 8)
    assert torch.equal(heard.tensors().three[1], said.one)


def test_a_field_that_is_not_there_has_no_place():
    _, said = in_one_buffer(4)
    heard = exchange(Echo(2), said._replace(two=None))
    assert heard.offsets == (0, -1, 6, 8)
    assert heard.tensors().two is None


APART = {
    "of another buffer": lambda buffer, said: said._replace(three=buffer.clone()[:, 6:9]),
    "of other rows": lambda buffer, said: Said(*[column[:-1] for column in said[:3]], said.four[1:]),
    "one element behind the other down the rows": lambda buffer, said: said._replace(
        three=torch.arange(18, dtype=torch.int32).view(3, 6).T
    ),
}


@pytest.mark.parametrize("apart", APART)
def test_other_fields_are_packed(apart):
    said = APART[apart](*in_one_buffer(6))
    talk = Noting(2)
    heard = exchange(talk, said)
    assert talk.sent.shape[1] == 1 + 4 + 3 + 2
    assert heard.offsets == (0, 1, 5, 8)
    for sent, received in zip(said, heard.tensors(), strict=True):
        assert torch.equal(received, sent.expand(2, *sent.shape))
