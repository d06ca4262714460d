"""``Drafts``: their layout, and refusals before anything runs."""

import pytest
import torch

from tokendraw import Drafts, InvalidInputError, InvalidParameterError

IDS, OFFSETS = torch.tensor([5, 6, 7]), torch.tensor([0, 3, 4, 6])
PROBS = torch.full((3, 10), 0.1)


def test_lists_are_laid_out_request_after_request(device):
    drafts = Drafts.from_lists([[5, -1], [], [7]], device=device)
    assert drafts.draft_token_ids.tolist() == [5, -1, 7]
    assert drafts.cu_num_logits.tolist() == [0, 3, 4, 6]
    assert drafts.draft_token_ids.dtype == drafts.cu_num_logits.dtype == torch.int64
    assert drafts.draft_token_ids.device == drafts.cu_num_logits.device
    assert drafts.device.type == device.type
    assert (drafts.num_drafts, drafts.max_drafts, drafts.num_requests, drafts.num_rows) == (
        (2, 0, 1),
        2,
        3,
        6,
    )


@pytest.mark.parametrize(
    ("ids", "counts", "expected"),
    [
        (IDS, [2, 0, 1], (2, 3, 6)),
        (torch.full((3, 4), -1), [2, 0, 1], (4, 3, 6)),
        (torch.empty(0, dtype=torch.int64), [0, 0], (0, 2, 2)),
        (torch.empty(0, dtype=torch.int32), [], (0, 0, 0)),
        (torch.empty(0, 5, dtype=torch.int64), [], (5, 0, 0)),
    ],
)
def test_sizes_are_known_from_counts(ids, counts, expected):
    drafts = Drafts.from_counts(ids, counts)
    assert (drafts.max_drafts, drafts.num_requests, drafts.num_rows) == expected
    assert drafts.num_drafts == tuple(counts)


def test_sizes_are_known_from_shapes():
    ragged = Drafts(draft_token_ids=IDS, cu_num_logits=OFFSETS, max_drafts=4)
    assert (ragged.max_drafts, ragged.num_requests, ragged.num_rows) == (4, 3, 6)
    padded = Drafts(draft_token_ids=torch.full((3, 2), -1), cu_num_logits=OFFSETS)
    assert (padded.max_drafts, padded.num_requests, padded.num_rows) == (2, 3, None)
    padded = Drafts(draft_token_ids=torch.full((3, 2), -1), cu_num_logits=OFFSETS, draft_probs=PROBS)
    assert padded.num_rows == 6


REFUSED = {
    "'draft_token_ids' needs shape [L - B] or [B, K], found [].": {"draft_token_ids": torch.tensor(5)},
    "'draft_token_ids' needs an integer dtype, found torch.float32.": {"draft_token_ids": torch.ones(3)},
    "'draft_token_ids' needs an integer dtype, found torch.bool.": {"draft_token_ids": torch.ones(3) > 0},
    "'draft_token_ids' of two dimensions needs a row for each of the 3 requests in 'cu_num_logits', found 2.": {
        "draft_token_ids": torch.full((2, 4), -1)
    },
    "'cu_num_logits' needs shape [B + 1], found [0].": {"cu_num_logits": torch.empty(0, dtype=torch.int64)},
    "'cu_num_logits' needs shape [B + 1], found [1, 4].": {"cu_num_logits": OFFSETS[None]},
    "'cu_num_logits' needs an integer dtype, found torch.float32.": {"cu_num_logits": OFFSETS.float()},
    "'cu_num_logits' needs the device of 'draft_token_ids', cpu, found meta.": {
        "cu_num_logits": OFFSETS.to("meta")
    },
    "'drafts' needs draft_probs or draft_logits, found both. Pass one of them.": {
        "draft_probs": PROBS,
        "draft_logits": PROBS,
    },
    "'draft_probs' needs a floating-point dtype, found torch.int64.": {"draft_probs": PROBS.long()},
    "'draft_logits' needs dtype float32, bfloat16, float16, found torch.float64.": {
        "draft_logits": PROBS.double()
    },
    "'draft_probs' needs shape [L - B, V] with V >= 1, found [3].": {"draft_probs": PROBS[:, 0]},
    "'draft_logits' needs shape [L - B, V] with V >= 1, found [3, 0].": {"draft_logits": PROBS[:, :0]},
    "'draft_probs' needs a row for each of the 3 draft_token_ids, found 2.": {"draft_probs": PROBS[:2]},
    "'draft_logits' needs the device of 'draft_token_ids', cpu, found meta.": {
        "draft_logits": PROBS.to("meta")
    },
    "'draft_token_ids' needs 4 rows, the sum of 'num_drafts', found 3.": {"num_drafts": (2, 0, 2)},
    "'draft_probs' needs 4 rows, the sum of 'num_drafts', found 3.": {
        "draft_token_ids": torch.full((3, 2), -1),
        "num_drafts": (2, 0, 2),
        "draft_probs": PROBS,
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_tensors_that_do_not_fit_are_a_value_error(message):
    with pytest.raises(InvalidInputError) as caught:
        Drafts(**({"draft_token_ids": IDS, "cu_num_logits": OFFSETS, "max_drafts": 2} | REFUSED[message]))
    assert str(caught.value) == message


OUT_OF_RANGE = {
    "'num_drafts' needs a number for each of the 3 requests in 'cu_num_logits', found 2.": {
        "num_drafts": (2, 1)
    },
    "'num_drafts' of request 2 needs an integer in [0, 2], the width of 'draft_token_ids', found 3.": {
        "draft_token_ids": torch.full((3, 2), -1),
        "num_drafts": (2, 0, 3),
    },
    "'max_drafts' needs an integer >= 2, found 1.": {"num_drafts": (2, 0, 1), "max_drafts": 1},
    "'max_drafts' needs an integer >= 0, found -2.": {"max_drafts": -2},
    "'max_drafts' needs an integer >= 0, found True.": {"max_drafts": True},
    "'max_drafts' needs an integer >= 0, found 1.5.": {"max_drafts": 1.5},
    "'any_placeholder' needs True or False, found 'no'.": {"max_drafts": 2, "any_placeholder": "no"},
    "'num_drafts' needs a list of integers, found int. Pass a list.": {"num_drafts": 3},
    "'num_drafts' of row 2 needs an integer >= 0, found '1'.": {"num_drafts": (2, 0, "1")},
    "'num_drafts' of row 1 needs an integer >= 0, found -1.": {"num_drafts": (2, -1, 1)},
    "'num_drafts' of row 1 needs an integer >= 0, found True.": {"num_drafts": (2, True, 1)},
    "'cu_num_logits' needs 0 first, found 1.": {"cu_num_logits": OFFSETS + 1, "max_drafts": 2},
    "'cu_num_logits' needs 6 or more where request 1 ends, which begins at 5, found 2.": {
        "cu_num_logits": torch.tensor([0, 5, 2, 6]),
        "max_drafts": 4,
    },
    "'cu_num_logits' needs 4 or more where request 1 ends, which begins at 3, found 3.": {
        "cu_num_logits": torch.tensor([0, 3, 3, 6]),
        "max_drafts": 4,
    },
    "'cu_num_logits' needs 1 or more where request 0 ends, which begins at 0, found -3.": {
        "cu_num_logits": torch.tensor([0, -3, 4, 6]),
        "max_drafts": 4,
    },
    "'cu_num_logits' needs at most 6 last, one for each draft and one more for each of the 3 requests, found 9.": {
        "cu_num_logits": torch.tensor([0, 3, 4, 9]),
        "max_drafts": 4,
    },
    "'cu_num_logits' needs 3, as 'num_drafts' says, where request 0 ends, which begins at 0, found 2.": {
        "cu_num_logits": torch.tensor([0, 2, 4, 6]),
        "num_drafts": (2, 0, 1),
    },
    "'max_drafts' needs to be known on the host, since it is the width of the result, found neither it nor "
    "'num_drafts'. Pass max_drafts=.": {},
}


@pytest.mark.parametrize("message", OUT_OF_RANGE)
def test_numbers_out_of_range_are_a_value_error(message):
    with pytest.raises(InvalidParameterError) as caught:
        Drafts(**({"draft_token_ids": IDS, "cu_num_logits": OFFSETS} | OUT_OF_RANGE[message]))
    assert str(caught.value) == message


@pytest.mark.parametrize("bad", [1.5, "7", 2**63])
def test_an_id_that_is_no_integer_is_a_value_error(bad):
    with pytest.raises(InvalidParameterError) as caught:
        Drafts.from_lists([[1], [bad]])
    assert str(caught.value).startswith("'draft_token_ids' of row 1 needs a 64-bit integer, found ")


def test_logits_that_do_not_fit_the_drafts_are_a_value_error():
    drafts = Drafts.from_counts(IDS, [2, 0, 1], draft_probs=PROBS)
    drafts.check(torch.empty(6, 10))
    for logits, message in (
        (
            torch.empty(5, 10),
            "'target_logits' needs 6 rows, one for each draft and one more for each of the 3 requests, found 5.",
        ),
        (torch.empty(6, 11), "'draft_probs' needs the vocabulary of 'target_logits', 11, found 10."),
        (
            torch.empty(6, 10, device="meta"),
            "'drafts' needs the device of 'target_logits', meta, found cpu. Pass device= to Drafts.from_lists.",
        ),
    ):
        with pytest.raises(InvalidInputError) as caught:
            drafts.check(logits)
        assert str(caught.value) == message


def test_padded_ids_leave_the_number_of_rows_open_above_one_a_request():
    drafts = Drafts(draft_token_ids=torch.full((3, 2), -1), cu_num_logits=OFFSETS)
    drafts.check(torch.empty(6, 10))
    drafts.check(torch.empty(9, 10))
    for rows, message in (
        (2, "'target_logits' needs a row for each of the 3 requests, found 2."),
        (5, "'target_logits' needs 6 rows, as 'cu_num_logits' says last, found 5."),
    ):
        with pytest.raises(InvalidInputError) as caught:
            drafts.check(torch.empty(rows, 10))
        assert str(caught.value) == message
    nobody = Drafts(draft_token_ids=torch.empty(0, 2, dtype=torch.int64), cu_num_logits=OFFSETS[:1])
    with pytest.raises(InvalidInputError, match="needs 0 rows"):
        nobody.check(torch.empty(1, 10))


def test_drafts_are_frozen_and_differ_by_identity():
    drafts = Drafts.from_lists([[1]])
    with pytest.raises(AttributeError):
        drafts.max_drafts = 2
    assert drafts != Drafts.from_lists([[1]])
