"""The fields of a request for edits of logits: refused values, and the words of each refusal."""

import copy
import math
import pickle

import numpy as np
import pytest

from calling import refused
from tokendraw import InvalidParameterError, RowKinds, SamplingMetadata, SamplingParams

V = 50
BAD_LISTS = [
    ({"logit_bias": {50: 1.0}}, "'logit_bias'{} needs token ids in [0, 50), found 50."),
    ({"logit_bias": {-1: 1.0}}, "'logit_bias'{} needs token ids in [0, 50), found -1."),
    ({"logit_bias": {"7": 1.0}}, "'logit_bias'{} needs token ids in [0, 50), found '7'."),
    ({"logit_bias": {7: math.inf}}, "'logit_bias'{} needs finite float32 values, found inf."),
    ({"logit_bias": {7: math.nan}}, "'logit_bias'{} needs finite float32 values, found nan."),
    ({"logit_bias": {7: 1e39}}, "'logit_bias'{} needs finite float32 values, found 1e+39."),
    ({"logit_bias": [7]}, "'logit_bias'{} needs a mapping of token ids to numbers, found list. Pass a dict."),
    (
        {"allowed_token_ids": []},
        "'allowed_token_ids'{} needs at least one token id, found none. Leave it out to allow all.",
    ),
    ({"allowed_token_ids": [3, 50]}, "'allowed_token_ids'{} needs token ids in [0, 50), found 50."),
    ({"allowed_token_ids": 3}, "'allowed_token_ids'{} needs a list of integers, found int. Pass a list."),
    (
        {"bad_words": [[3], []]},
        "'bad_words'{} needs at least one token id in each sequence, found an empty one.",
    ),
    ({"bad_words": [[3, 50]]}, "'bad_words'{} needs token ids in [0, 50), found 50."),
    ({"bad_words": [3]}, "'bad_words'{} needs a list of integers, found int. Pass a list."),
    ({"bad_words": 3}, "'bad_words'{} needs a list of sequences of token ids, found int. Pass a list."),
    ({"penalty_last_n": -2}, "'penalty_last_n'{} needs an integer >= -1 (-1: all tokens, 0: off), found -2."),
    (
        {"penalty_last_n": 1.5},
        "'penalty_last_n'{} needs an integer >= -1 (-1: all tokens, 0: off), found 1.5.",
    ),
    ({"dry_multiplier": -0.1}, "'dry_multiplier'{} needs a finite float32 >= 0 (0: off), found -0.1."),
    ({"dry_multiplier": math.inf}, "'dry_multiplier'{} needs a finite float32 >= 0 (0: off), found inf."),
    ({"dry_multiplier": False}, "'dry_multiplier'{} needs a finite float32 >= 0 (0: off), found False."),
    (
        {"dry_multiplier": np.ones(2)},
        "'dry_multiplier'{} needs a finite float32 >= 0 (0: off), found array([1., 1.]).",
    ),
    ({"dry_allowed_length": 2.0}, "'dry_allowed_length'{} needs an integer >= 0, found 2.0."),
    ({"dry_base": 0.5}, "'dry_base'{} needs a finite float32 >= 1, found 0.5."),
    ({"dry_allowed_length": -1}, "'dry_allowed_length'{} needs an integer >= 0, found -1."),
    (
        {"dry_penalty_last_n": -2},
        "'dry_penalty_last_n'{} needs an integer >= -1 (-1: all tokens, 0: off), found -2.",
    ),
    (
        {"dry_multiplier": 1.0, "dry_sequence_breakers": [50]},
        "'dry_sequence_breakers'{} needs token ids in [0, 50), found 50.",
    ),
    (
        {"dry_sequence_breakers": 5},
        "'dry_sequence_breakers'{} needs a list of integers, found int. Pass a list.",
    ),
    (
        {"thinking_budget": 5},
        "'thinking_budget'{} needs (n, start_token_ids, end_token_ids), found 5. Pass these three in a tuple.",
    ),
    (
        {"thinking_budget": (5, [1])},
        "'thinking_budget'{} needs (n, start_token_ids, end_token_ids), found (5, [1]). Pass these three in a tuple.",
    ),
    (
        {"thinking_budget": (-1, [1], [2])},
        "'thinking_budget'{} needs a number n of tokens, an integer >= 0, found -1.",
    ),
    ({"thinking_budget": (1, [1], [50])}, "'thinking_budget'{} needs token ids in [0, 50), found 50."),
    (
        {"thinking_budget": (1, 7, [2])},
        "'thinking_budget'{} needs a list of integers, found int. Pass a list.",
    ),
    (
        {"thinking_budget": (1, [1], [])},
        "'thinking_budget'{} needs at least one token id in end_token_ids, found none.",
    ),
    ({"stop_token_ids": [-1]}, "'stop_token_ids'{} needs token ids in [0, 50), found -1."),
]
NEED_SLOTS = [
    ("repetition_penalty", 1.2, {}),
    ("frequency_penalty", -0.5, {}),
    ("presence_penalty", 1, {}),
    ("logit_bias", {3: 1.0}, {}),
    ("allowed_token_ids", (3, 4), {}),
    ("bad_words", [[3]], {}),
    ("dry_multiplier", 0.8, {}),
    ("thinking_budget", (5, [1], [2]), {}),
    ("min_tokens", 5, {}),
    ("min_tokens", 5, {"stop_token_ids": [3]}),
]
OFF = SamplingParams(
    repetition_penalty=1,
    frequency_penalty=0,
    presence_penalty=-0.0,
    logit_bias={3: 0.0},
    bad_words=[],
    stop_token_ids=[4],
    penalty_last_n=7,
    dry_base=2.0,
    dry_sequence_breakers=[4],
)
NO_DRY = SamplingParams(dry_multiplier=0.8, dry_penalty_last_n=0)
NO_WINDOW = SamplingParams(repetition_penalty=1.5, presence_penalty=1.0, penalty_last_n=0)


@pytest.mark.parametrize(("fields", "message"), BAD_LISTS, ids=str)
def test_a_bad_list_is_refused_at_the_door(fields, message):
    refused(message.format(""), InvalidParameterError, lambda: SamplingParams(**fields).check(V))


@pytest.mark.parametrize(("fields", "message"), BAD_LISTS, ids=str)
def test_a_bad_list_is_refused_in_a_batch_which_does_not_know_the_vocabulary(fields, message):
    params = [SamplingParams(), SamplingParams(**fields)]
    if "[0, 50), found 50" in message:
        SamplingParams(**fields).check()
        with pytest.raises(InvalidParameterError, match=r"needs tokendraw\.RequestSlots"):
            SamplingMetadata.from_params(params)
    else:
        message = message.format(" of row 1").replace("in [0, 50)", ">= 0")
        refused(message, InvalidParameterError, lambda: SamplingMetadata.from_params(params))
        refused(message, InvalidParameterError, lambda: RowKinds.of(params))


@pytest.mark.parametrize(("field", "value", "beside"), NEED_SLOTS, ids=str)
def test_a_batch_without_slots_refuses_what_changes_logits_and_says_what_to_do(field, value, beside):
    params = [SamplingParams(), SamplingParams(**{field: value}, **beside)]
    message = (
        f"'{field}' of row 1 needs tokendraw.RequestSlots, which keep it beside the request's history, found {value!r} "
        "and no slots. Add the request with slots.add, edit the logits with tokendraw.load('process_logits').process("
        "logits, slots, row_index), and sample with slots.metadata(row_index, positions)."
    )
    for odd in ({}, {"top_k": np.int64(5)}):  # columns are checked as such, or row by row
        batch = [SamplingParams(**odd), params[1]]
        refused(message, InvalidParameterError, lambda batch=batch: SamplingMetadata.from_params(batch))
    params[1].check(V)
    assert RowKinds.of(params).of_slot == (0, 0)


def test_fields_that_ask_for_nothing_pass_everywhere():
    assert OFF.check(V) is OFF
    assert SamplingMetadata.from_params([OFF, NO_WINDOW, NO_DRY, SamplingParams()]).num_rows == 4


def test_a_copy_asks_for_what_the_original_does():
    params = SamplingParams(repetition_penalty=1.5, logit_bias={3: 1.0}, bad_words=[[1, 2]])
    for other in (copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert other == params
        assert hash(other) == hash(params)
        with pytest.raises(InvalidParameterError, match="'repetition_penalty' of row 0"):
            SamplingMetadata.from_params([other])
    plain = pickle.loads(pickle.dumps(SamplingParams(seed=3)))
    assert SamplingMetadata.from_params([plain], positions=[0]).facts.all_seeded


def test_requests_differ_by_their_collections():
    assert SamplingParams(logit_bias={3: 1.0}) != SamplingParams(logit_bias={3: 2.0})
    assert hash(SamplingParams(logit_bias={3: 1.0})) == hash(SamplingParams(logit_bias={3: 2.0}))
