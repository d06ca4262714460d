"""Prompts and sets of ids come in many forms: each is read in the same way, and refused in the same words."""

from array import array

import numpy as np
import pytest
import torch

from request_slots_model import Held, assert_holds
from tokendraw import InvalidInputError, InvalidParameterError, RequestSlots, SamplingParams

M, V = 1300, 3000
SHORT, LONG = 5, 1200
FORMS = {
    "a list": list,
    "a tuple": tuple,
    "an iterator": iter,
    "a dict's keys": lambda ids: dict.fromkeys(ids).keys(),
    "an array": lambda ids: array("q", ids),
    "int64 of numpy": lambda ids: np.array(ids, dtype=np.int64),
    "int16 of numpy": lambda ids: np.array(ids, dtype=np.int16),
    "uint64 of numpy": lambda ids: np.array(ids, dtype=np.uint64),
    "big-endian numbers of numpy": lambda ids: np.array(ids, dtype=">i4"),
    "a read-only array of numpy": lambda ids: np.frombuffer(array("i", ids).tobytes(), dtype=np.int32),
    "every second number of numpy": lambda ids: np.repeat(np.array(ids), 2)[::2],
    "numbers of numpy in a list": lambda ids: [*np.array(ids)],
    "an int64 tensor": lambda ids: torch.tensor(ids, dtype=torch.int64),
    "an int32 tensor": lambda ids: torch.tensor(ids, dtype=torch.int32),
    "every second number of a tensor": lambda ids: torch.tensor(ids, dtype=torch.int64).repeat_interleave(2)[
        ::2
    ],
}
PLACEHOLDERS = [-1, -5, V, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63, -(2**70)]


def distinct_ids(count):
    """Return ids in no order; their values fit into an int16."""
    return [i * 7 % V for i in range(count)]


@pytest.mark.parametrize("count", [0, SHORT, LONG])
@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_and_an_output_may_come_in_any_form(form, count):
    ids = distinct_ids(count)
    slots, held = RequestSlots(2, 2 * M, V), Held(SamplingParams(), ids, ids[: count // 2])
    slots.add(1, held.params, FORMS[form](ids), FORMS[form](held.output))
    assert_holds(slots, {1: held})


@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("form", FORMS)
def test_allowed_ids_may_come_in_any_form(form, count):
    ids = distinct_ids(count)
    slots = RequestSlots(2, 8, V)
    slots.add(1, SamplingParams(allowed_token_ids=FORMS[form](ids)))
    assert_holds(slots, {1: Held(SamplingParams(allowed_token_ids=ids), [])})


@pytest.mark.parametrize("make", [range, lambda n: {*range(n)}, lambda n: bytes(range(256)) * (n // 256)])
def test_ranges_sets_and_bytes_are_ids(make):
    ids = make(1024)
    slots = RequestSlots(2, M, V)
    slots.add(0, SamplingParams(allowed_token_ids=ids), ids)
    assert_holds(slots, {0: Held(SamplingParams(allowed_token_ids=[*ids]), [*ids])})


@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
def test_a_number_out_of_range_is_a_placeholder_in_a_short_and_a_long_prompt(count, placeholder):
    ids = distinct_ids(count)
    prompt = [*ids, placeholder, ids[0]]
    slots = RequestSlots(2, M, V)
    slots.add(0, SamplingParams(), prompt)
    stored = placeholder if -1 <= placeholder < 2**31 else -1
    assert_holds(slots, {0: Held(SamplingParams(), [*ids, stored, ids[0]])})


def test_a_prompt_may_be_placeholders_alone():
    slots = RequestSlots(2, M, V)
    slots.add(0, SamplingParams(), [V, -1])
    assert_holds(slots, {0: Held(SamplingParams(), [V, -1])})


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_placeholders_come_in_tensors(dtype):
    slots = RequestSlots(2, M, V)
    slots.add(
        0, SamplingParams(), torch.tensor([3, -7, V, 3], dtype=dtype), torch.tensor([-1, 3], dtype=dtype)
    )
    assert_holds(slots, {0: Held(SamplingParams(), [3, -1, V, 3], [-1, 3])})


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor])
@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("wrong", [-1, V, 2**31, 2**40])
def test_an_allowed_id_out_of_range_is_refused_in_any_form(form, count, wrong):
    ids = form([*distinct_ids(count), wrong])
    slots = RequestSlots(2, M, V)
    found = format(wrong) if form in (list, tuple) else f".*{wrong}.*"
    with pytest.raises(
        InvalidParameterError,
        match=rf"^'allowed_token_ids' of slot 1 needs token ids in \[0, 3000\), found {found}\.$",
    ):
        slots.add(1, SamplingParams(allowed_token_ids=ids))
    assert_holds(slots, {})


@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("wrong", [True, 1.0, None, "x", [1], b"abcd"], ids=str)
@pytest.mark.parametrize("place", [0, 3, -1])
def test_an_entry_of_another_type_is_refused_in_short_and_long_lists(count, wrong, place):
    ids = distinct_ids(count)
    ids[place] = wrong
    slots = RequestSlots(2, M, V)
    with pytest.raises(InvalidParameterError, match=r"^'prompt_token_ids' of slot 0 needs integers, found "):
        slots.add(0, SamplingParams(), ids)
    with pytest.raises(InvalidParameterError, match=r"^'allowed_token_ids' of slot 0 needs token ids in "):
        slots.add(0, SamplingParams(allowed_token_ids=ids), [])
    assert_holds(slots, {})


@pytest.mark.parametrize(
    "wrong",
    [np.array([True, False]), np.array([1.0]), np.array([[1, 2]]), np.array(["a"]), [np.bool_(1)], "ab"],
    ids=str,
)
def test_arrays_of_other_types_and_shapes_are_refused(wrong):
    slots = RequestSlots(2, M, V)
    with pytest.raises(InvalidParameterError, match=r"^'prompt_token_ids' of slot 0 needs integers, found "):
        slots.add(0, SamplingParams(), wrong)


@pytest.mark.parametrize("wrong", [torch.tensor([True]), torch.ones(1), torch.ones(1, 1, dtype=torch.int64)])
def test_tensors_of_other_types_and_shapes_are_refused(wrong):
    with pytest.raises(InvalidInputError, match=r"^'prompt_token_ids' needs "):
        RequestSlots(2, M, V).add(0, SamplingParams(), wrong)


def test_a_prompt_is_copied():
    prompt = torch.tensor([1, 2, 3])
    slots = RequestSlots(2, M, V)
    slots.add(0, SamplingParams(), prompt)
    prompt.zero_()
    assert_holds(slots, {0: Held(SamplingParams(), [1, 2, 3])})


def test_a_default_device_of_the_host_changes_nothing():
    slots = RequestSlots(2, M, V)
    held = Held(SamplingParams(logit_bias={3: 1.0}, allowed_token_ids=[3]), [1, -1], [3, 4])
    with torch.device("meta"):
        slots.add(0, held.params, held.prompt, held.output)
    assert_holds(slots, {0: held})


@pytest.mark.gpu
def test_a_prompt_on_a_cuda_device_is_read():
    ids = distinct_ids(LONG)
    slots = RequestSlots(2, M, V, device="cuda")
    slots.add(0, SamplingParams(), torch.tensor(ids, device="cuda"))
    assert_holds(slots, {0: Held(SamplingParams(), ids)})
