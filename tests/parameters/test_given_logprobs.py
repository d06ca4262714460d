"""``logprob_token_ids``: checks of the ids, their tensors in a batch and in slots, and their logprobs."""

import pytest
import torch

import tokendraw
from calling import refused
from tokendraw import (
    BatchFacts,
    Drafts,
    InvalidInputError,
    InvalidParameterError,
    RequestSlots,
    RowKinds,
    SamplingMetadata,
    SamplingParams,
    TokenLogprob,
)

V = 50
GIVEN, NONE = SamplingParams(logprob_token_ids=[3, 7, 1], seed=5), SamplingParams(top_k=4)
LOGITS = torch.randn(2, V, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def native():
    return tokendraw.load_sampler("native", device="cpu")


def batch(*requests):
    return SamplingMetadata.from_params(requests, positions=range(len(requests)))


def test_the_given_ids_come_back_in_their_order_and_other_rows_are_padded(native):
    found = native.sample(LOGITS, batch(GIVEN, NONE)).logprobs.cpu()
    expected = LOGITS.log_softmax(-1)[0, [3, 7, 1]]
    assert found.given_token_ids.tolist() == [[3, 7, 1], [-1] * 3]
    assert torch.allclose(found.given_logprobs[0], expected, atol=1e-6)
    assert (found.given_logprobs[1] == -torch.inf).all()
    assert found.token_ids.shape == (2, 1)  # the drawn token alone
    values = found.given_logprobs[0].tolist()
    assert found.row(0)[1:] == [
        TokenLogprob(3, values[0], None),
        *map(TokenLogprob, (7, 1), values[1:], (None, None)),
    ]
    assert [entry.token_id for entry in found.row(1)] == [int(found.token_ids[1, 0])]


def test_without_given_ids_there_are_no_such_tensors(native):
    found = native.sample(LOGITS, batch(NONE, SamplingParams(logprobs=2))).logprobs
    assert (found.given_token_ids, found.given_logprobs) == (None, None)


@pytest.mark.parametrize("mode", tokendraw.plugin.LOGPROBS_MODES)
def test_a_given_id_that_is_drawn_has_the_value_of_the_drawn_token(mode):
    sampler = tokendraw.load_sampler("native", device="cpu", logprobs_mode=mode)
    plain = batch(SamplingParams(temperature=0.7, top_p=0.8, seed=1), SamplingParams(temperature=0.0))
    tokens = sampler.sample(LOGITS, plain).token_ids.tolist()
    requests = [
        SamplingParams(temperature=0.7, top_p=0.8, seed=1, logprob_token_ids=tokens[:1]),
        SamplingParams(temperature=0.0, logprob_token_ids=tokens[1:]),
    ]
    found = sampler.sample(LOGITS, batch(*requests)).logprobs
    assert found.given_token_ids.flatten().tolist() == tokens
    assert torch.equal(found.given_logprobs, found.logprobs)


def test_each_step_of_a_verification_has_them(native):
    drafts = Drafts.from_lists([[3], []])
    target = torch.zeros(3, V)
    target[0, 3] = 50.0
    found = native.verify(
        target, drafts, SamplingMetadata.from_params([GIVEN, NONE], positions=[0, 4])
    ).logprobs
    assert found.given_token_ids.tolist() == [[[3, 7, 1]] * 2, [[-1] * 3] * 2]
    assert found.row(0, 0)[1] == TokenLogprob(3, 0.0, None)
    assert found.row(1, 1) == []


WRONG = [
    ({"logprob_token_ids": [5, -1]}, "'logprob_token_ids' of row 1 needs token ids >= 0, found -1."),
    ({"logprob_token_ids": ["a"]}, "'logprob_token_ids' of row 1 needs token ids >= 0, found 'a'."),
    (
        {"logprob_token_ids": 3},
        "'logprob_token_ids' of row 1 needs a list of integers, found int. Pass a list.",
    ),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=str)
def test_a_wrong_id_is_refused_with_its_row(fields, message):
    refused(message, InvalidParameterError, lambda: batch(NONE, SamplingParams(**fields)))


def test_an_id_beyond_the_vocabulary_is_refused_where_the_vocabulary_is_known(native):
    beyond = SamplingParams(logprob_token_ids=(4, V))
    message = f"'logprob_token_ids'{{}} needs token ids in [0, {V}), found {V}."
    refused(message.format(""), InvalidParameterError, lambda: beyond.check(V))
    refused(
        message.format(" of row 1") + " Ask for ids of the vocabulary.",
        InvalidParameterError,
        lambda: native.sample(LOGITS, batch(NONE, beyond)),
    )
    slots = RequestSlots(2, 8, V)
    refused(message.format(" of slot 1"), InvalidParameterError, lambda: slots.add(1, beyond))
    assert beyond.check() is beyond


def test_more_ids_than_the_vocabulary_has_are_refused(native):
    refused(
        f"'logprob_token_ids' needs at most {V} ids of a vocabulary of {V}, found {V + 1}. Name each id once.",
        InvalidParameterError,
        lambda: native.sample(LOGITS, batch(NONE, SamplingParams(logprob_token_ids=[1] * (V + 1)))),
    )


def test_facts_tell_the_largest_id():
    kinds = RowKinds.of([GIVEN, NONE, SamplingParams(logprob_token_ids=[9])])
    assert (kinds.facts.max_logprob_token_id, kinds.facts.max_logprobs) == (9, 0)
    assert kinds.kinds[1].max_logprob_token_id == -1
    assert (
        BatchFacts.merged([RowKinds.of([GIVEN]).facts, RowKinds.of([NONE]).facts]).max_logprob_token_id == 7
    )
    assert BatchFacts.merged([BatchFacts(), RowKinds.of([NONE]).facts]).max_logprob_token_id is None
    assert batch(NONE).facts.max_logprob_token_id == -1
    assert batch(SamplingParams(logprob_token_ids=())).logprob_token_ids is None


@pytest.mark.parametrize(
    ("ids", "facts", "message"),
    [
        (torch.zeros(2, dtype=torch.int64), {"max_logprobs": 0}, "needs shape [slots, M], found [2]."),
        (torch.zeros(2, 3), {"max_logprobs": 0}, "needs an integer dtype, found torch.float32."),
    ],
)
def test_a_ready_tensor_of_another_form_is_refused(ids, facts, message):
    refused(
        f"'logprob_token_ids' {message}",
        InvalidInputError,
        lambda: SamplingMetadata(logprob_token_ids=ids, facts=BatchFacts(**facts)),
    )


def test_facts_that_rule_out_given_ids_go_before_a_tensor(native):
    ids = torch.tensor([[1], [2]])
    facts = BatchFacts(max_logprobs=0, max_logprob_token_id=-1)
    metadata = SamplingMetadata(logprob_token_ids=ids, facts=facts)
    assert metadata.given_ids is None
    assert native.sample(LOGITS, metadata).logprobs.given_token_ids is None


def test_a_ready_tensor_needs_the_width_of_the_result():
    refused(
        "'logprob_token_ids' needs 'facts.max_logprobs', found None: it is the width of the result. "
        "Pass facts=BatchFacts(max_logprobs=...).",
        InvalidParameterError,
        lambda: SamplingMetadata(logprob_token_ids=torch.zeros(2, 3, dtype=torch.int64)),
    )


class TestSlots:
    def slots(self):
        slots = RequestSlots(4, 16, V, max_logprob_token_ids=5)
        slots.add(1, GIVEN)
        slots.add(2, NONE)
        return slots

    def test_rows_have_the_ids_of_their_requests(self, native):
        slots = self.slots()
        found = native.sample(LOGITS, slots.metadata([2, 1], [1, 0])).logprobs
        expected = native.sample(LOGITS, batch(NONE, GIVEN)).logprobs
        assert found.given_token_ids.tolist() == [[-1] * 3, [3, 7, 1]]
        assert torch.equal(found.given_logprobs, expected.given_logprobs)

    def test_the_result_is_as_wide_as_the_widest_request(self):
        slots = self.slots()
        slots.add(0, SamplingParams(logprob_token_ids=range(5)))
        assert slots.metadata([1, 0], [0, 0]).logprob_token_ids.shape == (4, 5)
        slots.remove(0)
        assert slots.metadata([1], [0]).logprob_token_ids.tolist() == [
            [-1] * 3,
            [3, 7, 1],
            [-1] * 3,
            [-1] * 3,
        ]
        slots.remove(1)
        assert slots.metadata([2]).logprob_token_ids is None

    def test_memory_comes_with_the_first_request_and_stays(self):
        slots = RequestSlots(4, 16, V)
        before = slots.num_bytes
        slots.add(1, GIVEN)
        ids = slots.metadata([1], [0]).logprob_token_ids
        slots.add(0, SamplingParams(logprob_token_ids=range(40)))
        assert slots.num_bytes == before + 4 * min(V, 128) * 8
        assert slots.metadata([1], [0]).logprob_token_ids.data_ptr() == ids.data_ptr()

    def test_more_ids_than_a_slot_has_room_for_are_refused(self):
        slots = self.slots()
        refused(
            "'logprob_token_ids' of slot 0 needs at most 'max_logprob_token_ids', 5, ids, found 6. "
            "Ask for fewer, or make RequestSlots with a larger max_logprob_token_ids.",
            InvalidParameterError,
            lambda: slots.add(0, SamplingParams(logprob_token_ids=range(6))),
        )
        assert slots.metadata([1], [0]).logprob_token_ids.shape == (4, 3)
