"""Early refusals by a server: a request by ``SamplingParams.check``, a batch by ``Need(max_logprobs=)``."""

import copy
import pickle
import sys

import pytest
import torch

import tokendraw
from calling import recording
from fake_candidates import BAD_VALUES
from tokendraw import BatchFacts, Drafts, InvalidParameterError, Need, SamplingMetadata, SamplingParams

V = 40


@pytest.mark.parametrize(("field", "bad", "needed"), BAD_VALUES)
def test_a_bad_value_is_refused_by_its_field_alone(field, bad, needed):
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**{field: bad}).check()
    assert str(caught.value) == f"'{field}' needs {needed}, found {bad!r}."


def test_a_good_request_is_returned_as_it_is():
    params = SamplingParams(temperature=0.8, top_k=10**6, seed=7, logprobs=10**6)
    assert params.check() is params
    assert params.check(50) is params
    assert params.check(vocab_size=50, max_logprobs=10**6) is params
    assert SamplingParams(logprobs=-1).check(20, max_logprobs=20)
    assert SamplingParams().check(max_logprobs=0)


LIMITED = {
    "'logprobs' needs at most 'max_logprobs', 20, found 21. Ask for fewer, or raise max_logprobs.": (21, {}),
    "'logprobs' needs at most 'max_logprobs', 20, found -1, all 21 tokens of the vocabulary. Ask for fewer, or raise "
    "max_logprobs.": (-1, {"vocab_size": 21}),
    "'logprobs' needs at most 'max_logprobs', 20, found -1, all tokens of a vocabulary of unknown size. Ask for fewer, "
    "or raise max_logprobs.": (-1, {}),
    "'vocab_size' needs an integer >= 1, found 0.": (0, {"vocab_size": 0}),
    "'max_logprobs' needs an integer >= 0, found -1.": (0, {"max_logprobs": -1}),
}


@pytest.mark.parametrize("message", LIMITED)
def test_logprobs_above_what_a_server_grants_are_refused(message):
    wanted, sizes = LIMITED[message]
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(logprobs=wanted).check(**{"max_logprobs": 20} | sizes)
    assert str(caught.value) == message


def test_values_that_cannot_be_printed_are_refused_in_one_line():
    for bad in (-(10**5000), torch.tensor([[1, 2], [3, 4]]), "\n\x1b[31m"):
        with pytest.raises(InvalidParameterError) as caught:
            SamplingParams(top_k=bad).check()
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value)


def test_a_check_leaves_no_trace_in_what_a_request_is():
    """A checked request equals, prints as and is copied like an unchecked request."""
    params = SamplingParams(temperature=0.5, seed=3).check()
    assert params == SamplingParams(temperature=0.5, seed=3)
    assert hash(params) == hash(SamplingParams(temperature=0.5, seed=3))
    assert repr(params) == repr(SamplingParams(temperature=0.5, seed=3))
    for other in (copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert other == params
        assert other.check() is other
    bad = copy.replace(params, top_p=7) if sys.version_info >= (3, 13) else SamplingParams(0.5, 0, 7)
    with pytest.raises(InvalidParameterError):
        bad.check()
    equal = SamplingParams(top_k=True)  # equal to one that was checked, and no such thing
    SamplingParams(top_k=1).check()
    with pytest.raises(InvalidParameterError):
        equal.check()


def capped(limit):
    return tokendraw.load_sampler("native", device="cpu", need=Need(max_logprobs=limit))


@pytest.mark.parametrize(
    ("wanted", "found"), [(6, "6"), (10**9, "1000000000"), (-1, f"-1, all {V} tokens of the vocabulary")]
)
def test_a_batch_that_asks_for_more_than_the_need_grants_is_refused_before_anything_is_drawn(wanted, found):
    sampler, logits = capped(5), torch.zeros(2, V)
    metadata = SamplingMetadata.from_params([SamplingParams(logprobs=2), SamplingParams(logprobs=wanted)])
    message = (
        f"'logprobs' needs at most 'max_logprobs', 5, found {found}. Ask for fewer, or raise max_logprobs."
    )
    ready = SamplingMetadata(facts=BatchFacts(max_logprobs=wanted))
    drafts = Drafts.from_lists([[1]])
    for call in (
        lambda: sampler.sample(logits, metadata),
        lambda: sampler.sample(logits, ready),
        lambda: sampler.draft(logits, metadata),
        lambda: sampler.verify(logits, drafts, metadata),
    ):
        with pytest.raises(InvalidParameterError) as caught:
            call()
        assert str(caught.value) == message
    assert sampler.stats() == {}


def test_a_batch_within_the_limit_is_drawn():
    logits = torch.zeros(2, V)
    for limit, wanted in ((5, 5), (5, None), (0, 0), (V, -1), (10**6, 10**6)):
        out = capped(limit).sample(
            logits, SamplingMetadata.from_params([SamplingParams(logprobs=wanted)] * 2)
        )
        assert (out.logprobs is None) == (wanted is None)


def test_the_limit_holds_whoever_is_chosen():
    sampler, backend = recording(Need(max_logprobs=1))
    with pytest.raises(InvalidParameterError):
        sampler.sample(torch.zeros(1, V), SamplingMetadata(facts=BatchFacts(max_logprobs=2)))
    assert backend.logits == []
