"""Slots refuse values out of range, in words, and a refusal changes nothing."""

import pytest
import torch

from calling import refused
from request_slots_model import Held, assert_holds
from tokendraw import InvalidInputError, InvalidParameterError, RequestSlots, SamplingParams, VerifyOutput

S, M, V = 4, 6, 50
HELD = {
    1: Held(SamplingParams(repetition_penalty=1.2, bad_words=[[4, 5]]), [3, 3, 9]),
    2: Held(SamplingParams(seed=7), [1, 2, 3, 4]),
}


def filled():
    slots = RequestSlots(
        S,
        M,
        V,
        max_bias=2,
        max_stop_ids=2,
        max_bad_words=2,
        max_bad_word_len=3,
        max_dry_breakers=2,
        max_thinking_ids=2,
    )
    for slot, held in HELD.items():
        slots.add(slot, held.params, prompt_token_ids=held.prompt)
    return slots


def tokens(*rows):
    ids = torch.tensor(rows)
    return VerifyOutput(ids, ids, ids)


P = SamplingParams()
VALUES = {
    "'slot' needs an integer in [0, 3], found 4.": lambda s: s.add(4, P, [1]),
    "'slot' needs an integer in [0, 3], found -1.": lambda s: s.remove(-1),
    "'slot' needs one without a request, found 1, which has one. Remove that first, with slots.remove(1).": (
        lambda s: s.add(1, P, [1])
    ),
    "'slot' needs one with a request, found 0, which has none.": lambda s: s.remove(0),
    "'params' of slot 0 needs a tokendraw.SamplingParams, found dict. "
    "Make one: SamplingParams(temperature=..., top_k=...).": lambda s: s.add(0, {}, [1]),
    "'top_p' of slot 3 needs a number in (0, 1] (1: off), found 2.": (
        lambda s: s.add(3, SamplingParams(top_p=2), [1])
    ),
    "'frequency_penalty' of slot 3 needs a number in [-2, 2] (0: off), found 3.": (
        lambda s: s.add(3, SamplingParams(frequency_penalty=3), [1])
    ),
    "'allowed_token_ids' of slot 3 needs token ids in [0, 50), found 50.": (
        lambda s: s.add(3, SamplingParams(allowed_token_ids=[50]), [1])
    ),
    "'prompt_token_ids' of slot 0 needs at most 'max_tokens', 6, ids, found 7. "
    "Shorten the prompt, or make RequestSlots with a larger max_tokens.": lambda s: s.add(0, P, [1] * 7),
    "'prompt_token_ids' of slot 0 needs at most 'max_tokens', 6, ids, found 4 and 3 of 'output_token_ids'. "
    "Shorten the prompt, or make RequestSlots with a larger max_tokens.": lambda s: s.add(
        0, P, [1] * 4, [2] * 3
    ),
    "'prompt_token_ids' of slot 0 needs integers, found 1.5.": lambda s: s.add(0, P, [1, 1.5]),
    "'prompt_token_ids' of slot 0 needs integers, found True.": lambda s: s.add(0, P, [1, True]),
    "'output_token_ids' of slot 0 needs integers, found 'x'.": lambda s: s.add(0, P, [1], ["x"]),
    "'output_token_ids' of slot 0 needs a list of integers, found int. Pass a list.": lambda s: s.add(
        0, P, [1], 5
    ),
    "'logit_bias' of slot 0 needs at most 'max_bias', 2, entries, found 3. "
    "Ask for fewer, or make RequestSlots with a larger max_bias.": (
        lambda s: s.add(0, SamplingParams(logit_bias={1: 1, 2: 1, 3: 1}), [1])
    ),
    "'stop_token_ids' of slot 0 needs at most 'max_stop_ids', 2, ids, found 3. "
    "Ask for fewer, or make RequestSlots with a larger max_stop_ids.": (
        lambda s: s.add(0, SamplingParams(min_tokens=1, stop_token_ids=[1, 2, 3]), [1])
    ),
    "'dry_sequence_breakers' of slot 0 needs at most 'max_dry_breakers', 2, ids, found 3. "
    "Ask for fewer, or make RequestSlots with a larger max_dry_breakers.": (
        lambda s: s.add(0, SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=[1, 2, 3]), [1])
    ),
    "'thinking_budget' of slot 0 needs at most 'max_thinking_ids', 2, ids in a sequence, found 3. "
    "Ask for fewer, or make RequestSlots with a larger max_thinking_ids.": (
        lambda s: s.add(0, SamplingParams(thinking_budget=(0, [1], [1, 2, 3])), [1])
    ),
    "'bad_words' of slot 0 needs at most 'max_bad_words', 2, sequences, found 3. "
    "Ask for fewer, or make RequestSlots with a larger max_bad_words.": (
        lambda s: s.add(0, SamplingParams(bad_words=[[1], [2], [3]]), [1])
    ),
    "'bad_words' of slot 0 needs at most 'max_bad_word_len', 3, ids in a sequence, found 4. "
    "Ask for fewer, or make RequestSlots with a larger max_bad_word_len.": (
        lambda s: s.add(0, SamplingParams(bad_words=[[1, 2, 3, 4]]), [1])
    ),
    "'row_index' of row 1 needs an integer in [0, 3], found 4.": lambda s: s.append([1, 4], [5, 5]),
    "'row_index' of row 1 needs a slot with a request, found 0, which has none. "
    "Add the request with slots.add first.": lambda s: s.append(torch.tensor([1, 0]), [5, 5]),
    "'row_index' of row 1 needs each slot at most once, found 2 again.": lambda s: s.append([2, 2], [5, 5]),
    "'token_ids' of row 1 needs an integer in [-1, 2147483647], found -2.": lambda s: s.append(
        [1, 2], [5, -2]
    ),
    "'token_ids' of row 1 needs room for 3 in slot 2, found 4 tokens of 'max_tokens', 6. "
    "Remove the request, or make RequestSlots with a larger max_tokens.": (
        lambda s: s.append_verified(torch.tensor([1, 2]), tokens([5, 5, -1], [5, 5, 5]))
    ),
    "'row_index' of row 0 needs a slot with a request, found 3, which has none. "
    "Add the request with slots.add first. ": lambda s: s.metadata([3], [0]),
    "'positions' of row 1 needs an integer >= 0, found -1.": lambda s: s.metadata([1, 2], [0, -1]),
    "'seed' of slot 2 needs 'positions', found none: without them every step would draw with the same noise. "
    "Pass positions, one integer a row: the sequence length minus one.": lambda s: s.metadata([1]),
}
FORMS = {
    "'prompt_token_ids' needs an integer dtype, found torch.float32.": lambda s: s.add(0, P, torch.ones(2)),
    "'output_token_ids' needs an integer dtype, found torch.float32.": lambda s: s.add(
        0, P, [1], torch.ones(2)
    ),
    "'row_index' needs one slot for each row of tokens, 1, found 2.": lambda s: s.append([1, 2], [5]),
    "'row_index' needs an integer dtype, found torch.float32.": lambda s: s.append(torch.ones(1), [5]),
    "'row_index' needs one dimension, found shape [1, 1].": lambda s: s.metadata(torch.tensor([[1]]), [0]),
    "'row_index' needs the device of the slots, cpu, found meta.": (
        lambda s: s.append(torch.tensor([1]).to("meta"), [5])
    ),
    "'verify_output.token_ids' needs two dimensions, found shape [1].": (
        lambda s: s.append_verified([1], tokens(5))
    ),
    "'verify_output' needs a tokendraw.VerifyOutput, found list. Pass what sampler.verify returned.": (
        lambda s: s.append_verified([1], [5])
    ),
    "the tensors need one length, found positions 2, row_index 1.": lambda s: s.metadata([1], [0, 0]),
}


@pytest.mark.parametrize("message", VALUES)
def test_a_bad_value_is_refused_and_changes_nothing(message):
    slots = filled()
    facts = slots.facts
    refused(message.rstrip(), InvalidParameterError, lambda: VALUES[message](slots))
    assert_holds(slots, HELD)
    assert slots.facts == facts
    slots.append([1, 2], [5, 6])  # its room is what it was


@pytest.mark.parametrize("message", FORMS)
def test_a_bad_form_is_refused_and_changes_nothing(message):
    slots = filled()
    refused(message, InvalidInputError, lambda: FORMS[message](slots))
    assert_holds(slots, HELD)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_slots": 0}, "'num_slots' needs an integer in [1, 2147483647], found 0."),
        ({"max_tokens": 2**27}, "'max_tokens' needs an integer in [1, 134217727], found 134217728."),
        ({"vocab_size": 0}, "'vocab_size' needs an integer in [1, 2147483647], found 0."),
        ({"max_bias": 1.5}, "'max_bias' needs an integer in [1, 2147483647], found 1.5."),
        (
            {"device": "cuda:99"},
            "'device' needs a device that torch finds here, found 'cuda:99'. Pass one such as 'cpu'.",
        ),
    ],
)
def test_slots_of_other_sizes_are_refused(sizes, message):
    given = {"num_slots": S, "max_tokens": M, "vocab_size": V} | sizes
    refused(message, InvalidParameterError, lambda: RequestSlots(**given))
    with pytest.raises(AttributeError):  # nor may the sizes of slots change
        filled().num_slots = 1


def test_a_full_request_is_found_by_the_host_alone_until_it_may_be_full(monkeypatch):
    """Lengths are read only if the host's count does not decide, and a request with free places goes on."""
    slots, read = filled(), []
    exact = type(slots._room).take_exactly
    monkeypatch.setattr(type(slots._room), "take_exactly", lambda *given: (read.append(1), exact(*given))[1])
    for token in (5, 6):
        slots.append([1, 2], [token, token])
    assert read == []
    refused(
        "'token_ids' of row 0 needs room for 1 in slot 2, found 6 tokens of 'max_tokens', 6. "
        "Remove the request, or make RequestSlots with a larger max_tokens.",
        InvalidParameterError,
        lambda: slots.append([2], [7]),
    )
    assert read == [1]
    slots.append([1], [7])
    assert (read, slots.tables.num_tokens.tolist()) == ([1], [0, 6, 6, 0])


def test_rows_that_only_the_device_knows_may_be_of_any_request():
    """The host counts their tokens for all requests, and reads lengths once the fullest might be full."""
    slots, refusal = filled(), "needs room for 1 in slot 2, found 6 tokens"
    first, second, one = torch.tensor([1]), torch.tensor([2]), torch.tensor([[5]])
    for _ in range(3):  # slot 2 has room for two
        slots._append(None, first, one)
    assert slots.tables.num_tokens.tolist() == [0, 6, 4, 0]
    for _ in range(2):
        slots._append(None, second, one)
    with pytest.raises(InvalidParameterError, match=refusal):
        slots._append(None, second, one)
    slots.remove(1)
    slots.remove(2)
    slots.add(1, P, [])
    for _ in range(M):
        slots._append(None, first, one)
    with pytest.raises(InvalidParameterError, match="needs room for 1 in slot 1"):
        slots._append(None, first, one)
