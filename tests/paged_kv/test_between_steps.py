"""The arithmetic between steps: lengths grow by the accepted tokens, and segments count from their start."""

import pytest
import torch

from paged_kv_model import ints
from tokendraw import InvalidInputError, InvalidParameterError, PagedKVPlan
from tokendraw.paged_kv import advance, segment_query_indptr
from tokendraw_testing.kit.device import capture

NAMES = ("num_computed", "query_lens", "num_logits", "num_sampled", "next_query_lens")


def test_lengths_grow_by_the_accepted_tokens(device):
    """None, then one, then all of three drafts are accepted; a decode without drafts follows."""
    computed, lengths = advance(
        ints([10, 10, 10, 10], device),
        ints([4, 4, 4, 1], device),
        ints([4, 4, 4, 1], device),
        ints([1, 2, 4, 1], device),
        ints([4, 1, 4, 2], device),
    )
    assert computed.tolist() == [11, 12, 14, 11]
    assert lengths.tolist() == [15, 13, 18, 13]
    assert (computed.dtype, lengths.dtype) == (torch.int32, torch.int32)


@pytest.mark.parametrize("sampled", [0, 1, 7])
def test_a_row_in_its_prefill_loses_nothing_whatever_its_token_counts(device, sampled):
    computed, lengths = advance(
        ints([512, 0], device),
        ints([256, 9], device),
        ints([0, 1], device),  # the second one's last chunk has the row of its first token
        ints([sampled, 1], device),
        ints([100, 1], device),
    )
    assert computed.tolist() == [768, 9]
    assert lengths.tolist() == [868, 10]


def test_inputs_stay_and_results_are_new(device):
    inputs = [ints([3, 5], device) for _ in NAMES]
    results = advance(*inputs)
    assert [tensor.tolist() for tensor in inputs] == [[3, 5]] * 5
    memory = [tensor.data_ptr() for tensor in (*inputs, *results)]
    assert len(set(memory)) == 7


@pytest.mark.gpu
def test_lengths_grow_at_each_replay_of_a_graph():
    computed, ones = ints([4, 0, 15], "cuda"), ints([1, 1, 1], "cuda")
    replay, _ = capture(lambda: computed.copy_(advance(computed, ones, ones, ones, ones)[0]))
    computed.copy_(ints([4, 0, 15], "cuda"))
    for _ in range(3):
        replay()
    assert computed.tolist() == [7, 3, 18]


def test_no_request_is_a_batch_too(device):
    assert [tensor.tolist() for tensor in advance(*[ints([], device)] * 5)] == [[], []]


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, 2], "'{}' needs a torch.Tensor, found list. Pass a tensor."),
        (torch.tensor([1, 2]), "'{0}' needs dtype torch.int32, found torch.int64. Pass {0}.to(torch.int32)."),
        (torch.ones(2, 1, dtype=torch.int32), "'{}' needs one dimension, found shape [2, 1]."),
    ],
)
def test_anything_but_a_vector_of_int32_is_refused(at, wrong, message):
    inputs = [ints([1, 2], "cpu") for _ in NAMES]
    inputs[at] = wrong
    with pytest.raises(InvalidInputError) as error:
        advance(*inputs)
    assert str(error.value) == message.format(NAMES[at])


@pytest.mark.parametrize("at", range(1, 5))
def test_other_shapes_and_devices_are_refused(at):
    inputs = [ints([1, 2], "cpu") for _ in NAMES]
    for wrong, message in (
        (ints([1], "cpu"), "'{}' needs the shape of 'num_computed', [2], found [1]."),
        (ints([1, 2], "meta"), "'{}' needs the device of 'num_computed', cpu, found meta."),
    ):
        with pytest.raises(InvalidInputError) as error:
            advance(*inputs[:at], wrong, *inputs[at + 1 :])
        assert str(error.value) == message.format(NAMES[at])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_segment_counts_from_its_own_start(device, dtype):
    indptr = torch.tensor([0, 4, 5, 9, 265], dtype=dtype, device=device)
    result = [segment_query_indptr(indptr, first) for first in range(5)]
    assert [segment.tolist() for segment in result] == [
        [0, 4, 5, 9, 265],
        [0, 1, 5, 261],
        [0, 4, 260],
        [0, 256],
        [0],
    ]
    assert {segment.dtype for segment in result} == {dtype}


def test_a_segment_is_a_tensor_of_its_own(device):
    indptr = ints([0, 4, 5], device)
    segment = segment_query_indptr(indptr, 0)
    indptr.fill_(7)
    assert segment.tolist() == [0, 4, 5]


@pytest.mark.parametrize(
    ("indptr", "first", "message"),
    [
        (ints([0, 4], "cpu"), 2, "'first' needs an integer in [0, 1], found 2."),
        (ints([0, 4], "cpu"), -1, "'first' needs an integer in [0, 1], found -1."),
        (ints([0, 4], "cpu"), True, "'first' needs an integer in [0, 1], found True."),
        (ints([], "cpu"), 0, "'query_indptr' needs shape [B + 1] with B >= 0, found [0]."),
        (torch.zeros(2), 0, "'query_indptr' needs an integer dtype, found torch.float32."),
        ([0, 4], 0, "'query_indptr' needs a torch.Tensor, found list. Pass a tensor."),
        (ints([[0, 4]], "cpu"), 0, "'query_indptr' needs one dimension, found shape [1, 2]."),
    ],
)
def test_a_segment_that_cannot_be_is_refused(indptr, first, message):
    with pytest.raises((InvalidInputError, InvalidParameterError)) as error:
        segment_query_indptr(indptr, first)
    assert str(error.value) == message


def test_buffers_have_the_shapes_of_a_plan(device):
    plan = PagedKVPlan.empty(3, 5, device=device)
    assert [
        (t.shape, t.dtype, t.device.type) for t in (plan.page_indptr, plan.last_page_len, plan.page_indices)
    ] == [(shape, torch.int32, device.type) for shape in ((4,), (3,), (15,))]
    assert PagedKVPlan.empty(3, 5, page_indices=False).page_indices is None
