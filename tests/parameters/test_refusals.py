"""Requests, batches and drafts are refused by name before any sampler runs: needed, found, what to do."""

import copy
import math
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import call_tables
import tokendraw
from calling import recording, refused
from tokendraw import (
    BatchFacts,
    Drafts,
    InvalidInputError,
    InvalidParameterError,
    LogprobsTensors,
    Need,
    RequestSlots,
    RowKinds,
    SamplingMetadata,
    SamplingParams,
)
from tokendraw.plugin import Host

V = 50
LOGITS = torch.zeros(2, V)
PARAMS = [SamplingParams()] * 2
METADATA = SamplingMetadata.from_params(PARAMS)
IDS, OFFSETS = torch.tensor([5, 6, 7]), torch.tensor([0, 3, 4, 6])
PROBS = torch.full((3, 10), 0.1)
SEEDS = [SamplingParams(seed=3), SamplingParams(seed=4)]
SEEDED = SamplingMetadata.from_params(SEEDS, positions=[0, 0])
MIX = [
    SamplingParams(
        temperature=(0.0, 0.5, 1, 1.5)[i % 4],
        top_k=(0, -1, 50, 7, 2**70)[i % 5],
        top_p=(1.0, 0.9, 1)[i % 3],
        min_p=(0.0, 0.1)[i % 2],
        seed=(None, i, 2**64 - 1 - i)[i % 3],
        logprobs=(None, -1, 3)[i % 3] if i % 8 == 0 else None,
        filter_order=("top_k_first", "joint")[i % 7 == 0],
    )
    for i in range(64)
]
"""Requests whose columns are checked as a whole."""


def same_refusal(first, *others):
    """Require the same message of all calls, and raise it."""
    texts = []
    for call in (first, *others):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared)
            call()
        texts.append(str(caught.value))
    assert len(set(texts)) == 1, texts
    first()


def request(**fields):
    """Check a request, which is refused wherever it stands in a batch too, unless only the vocabulary rules it out."""
    bad = SamplingParams(**fields)
    with pytest.raises(InvalidParameterError) as caught:
        bad.check(V)
    if "[0, 50), found 50" in str(caught.value):
        bad.check()
        raise caught.value
    head, quote, tail = str(caught.value).replace("in [0, 50)", ">= 0").partition("' needs ")
    for row in (0, 1, 63):
        params, message = [*MIX[:row], bad, *MIX[row + 1 :]], f"{head}' of row {row}{quote[1:]}{tail}"
        for door in (lambda p: SamplingMetadata.from_params(p, positions=range(64)), RowKinds.of):
            refused(message, InvalidParameterError, lambda door=door, params=params: door(params))
    raise caught.value


def unslotted(**fields):
    """A batch without slots refuses what changes logits, whether columns are checked as such or row by row."""
    asking = SamplingParams(**fields).check(V)
    assert RowKinds.of([asking]).of_slot == (0,)
    same_refusal(
        *(
            lambda odd=odd: SamplingMetadata.from_params([SamplingParams(**odd), asking])
            for odd in ({}, {"top_k": np.int64(5)})
        )
    )


def batch(params):
    same_refusal(lambda: SamplingMetadata.from_params(params), lambda: RowKinds.of(params))


def granted(limit, params):
    """A batch is held against ``Need(max_logprobs=)`` before anything is drawn."""
    sampler, backend = recording(Need(max_logprobs=limit))
    metadata = SamplingMetadata.from_params([SamplingParams(logprobs=2), params])
    ready = SamplingMetadata(facts=BatchFacts(max_logprobs=params.logprobs))
    try:
        same_refusal(
            lambda: sampler.sample(LOGITS, metadata),
            lambda: sampler.sample(LOGITS, ready),
            lambda: sampler.draft(LOGITS, metadata),
            lambda: sampler.verify(LOGITS, Drafts.from_lists([[1]]), metadata),
        )
    finally:
        assert backend.logits == []


def logits(bad):
    """Logits are checked after sound calls too, and verifications name theirs."""
    (sampler, backend), drafts = recording(), Drafts.from_lists([[], []])
    with pytest.raises(InvalidInputError) as caught:
        sampler.sample(bad, METADATA)
    sampler.sample(LOGITS, METADATA)
    message = str(caught.value)
    refused(message, InvalidInputError, lambda: sampler.sample(bad, METADATA))
    refused(message, InvalidInputError, lambda: sampler.draft(bad, METADATA))
    message = message.replace("'logits' needs", "'target_logits' needs")
    message = message.replace("Pass logits", "Pass target_logits").replace("(logits)", "(target_logits)")
    if "shape" not in message:
        refused(message, InvalidInputError, lambda: sampler.verify(bad, drafts, METADATA))
    assert len(backend.logits) == 1
    raise caught.value


def metadata(bad):
    (sampler, backend), drafts = recording(), Drafts.from_lists([[], []])
    try:
        same_refusal(
            lambda: sampler.sample(LOGITS, bad),
            lambda: sampler.draft(LOGITS, bad),
            lambda: sampler.verify(LOGITS, drafts, bad),
        )
    finally:
        assert backend.logits == []


def indices(**given):
    """Values on the host are looked at however they are given."""
    given = {"positions": [1, 1]} | given
    tensors = {name: torch.tensor(values) for name, values in given.items()}
    moved = given if "row_index" in given else tensors
    same_refusal(
        lambda: SamplingMetadata.from_params(SEEDS, **given),
        lambda: SamplingMetadata.from_params(SEEDS, **tensors),
        lambda: SamplingMetadata.from_params(SEEDS, **{n: t.to(torch.int8) for n, t in tensors.items()}),
        lambda: SamplingMetadata(top_k=torch.tensor([3, 4]), **tensors),
        lambda: replace(SEEDED, **tensors),
        lambda: replace(SEEDED, **tensors) if moved is given else SEEDED.with_positions(given["positions"]),
    )


def on(device):
    same_refusal(
        lambda: SamplingMetadata.from_params(PARAMS, device=device),
        lambda: Drafts.from_lists([[1]], device=device),
    )


class OwnMetadata(SamplingMetadata):
    """A subclass, as plugins had them."""

    __module__ = "tests"


def native():
    return tokendraw.load_sampler("native", device="cpu")


def names():
    sampler = recording()[0]
    return globals() | {
        "LogprobsTensors": LogprobsTensors,
        "RequestSlots": RequestSlots,
        "INF": math.inf,
        "NAN": math.nan,
        "NESTED": torch.nested.nested_tensor([torch.zeros(3), torch.zeros(4)], layout=torch.jagged),
        "OWN": OwnMetadata(
            **{name: getattr(METADATA, name) for name in SamplingMetadata.__dataclass_fields__}
        ),
        "TOP_K": SamplingMetadata(top_k=torch.tensor([3, 4]), positions=torch.tensor([1, 2])),
        "drafts_of": lambda **given: Drafts(**{"draft_token_ids": IDS, "cu_num_logits": OFFSETS} | given),
        "drafts": lambda: Drafts.from_counts(IDS, [2, 0, 1], draft_probs=PROBS),
        "padded": lambda: Drafts(draft_token_ids=torch.full((3, 2), -1), cu_num_logits=OFFSETS),
        "asking": lambda ids: SamplingMetadata.from_params(
            [PARAMS[0], SamplingParams(logprob_token_ids=ids)]
        ),
        "scored": lambda ids: native().score(LOGITS, ids, METADATA),
        "sample": sampler.sample,
        "verify": sampler.verify,
        "score": lambda *given: native().score(*given),
    }


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:torch.quantize_per_tensor")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the table is of a machine without a CUDA device")
def test_what_is_refused_with_which_words():
    table = call_tables.Table(__file__, "refusals.txt")
    assert table.found(names) == table.text


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


def test_what_asks_for_nothing_passes_everywhere():
    assert SamplingParams(temperature=-1.0, seed="x").seed == "x"  # not checked on construction
    for params in (OFF, NO_WINDOW, NO_DRY, SamplingParams(top_k=10**6, seed=7, logprobs=10**6)):
        assert params.check(V) is params.check() is params
    assert SamplingParams(logprobs=-1).check(20, max_logprobs=20)
    assert SamplingMetadata.from_params([OFF, NO_WINDOW, NO_DRY, SamplingParams()]).num_rows == 4
    assert Need(vocab_size=np.int64(5), dtype="float16", tie_rule="either", max_logprobs=0).vocab_size == 5
    assert Need(filter_orders=()).filter_orders == ()
    assert Host(compute_capability=(9, 0), sm_count=132).sm_count == 132
    for rows in (6, 9):  # padded ids leave the number of rows open, above one a request
        names()["padded"]().check(torch.empty(rows, 10))


@pytest.mark.parametrize(("limit", "wanted"), [(5, 5), (5, None), (0, 0), (V, -1), (10**6, 10**6)])
def test_a_batch_within_the_limit_of_logprobs_is_drawn(limit, wanted):
    sampler = tokendraw.load_sampler("native", device="cpu", need=Need(max_logprobs=limit))
    out = sampler.sample(LOGITS, SamplingMetadata.from_params([SamplingParams(logprobs=wanted)] * 2))
    assert (out.logprobs is None) == (wanted is None)


def test_values_that_cannot_be_printed_are_refused_in_one_line():
    for bad in (-(10**5000), torch.tensor([[1, 2], [3, 4]]), "\n\x1b[31m"):
        with pytest.raises(InvalidParameterError) as caught:
            SamplingParams(top_k=bad).check()
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value)


def test_a_checked_request_and_its_copies_are_what_they_were():
    for fields in ({"temperature": 0.5, "seed": 3}, {"repetition_penalty": 1.5, "logit_bias": {3: 1.0}}):
        params, same = SamplingParams(**fields).check(), SamplingParams(**fields)
        for other in (params, copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
            assert (other, hash(other), repr(other)) == (same, hash(same), repr(same))
            assert other.check() is other
    with pytest.raises(InvalidParameterError, match="'repetition_penalty' of row 0"):
        SamplingMetadata.from_params([other])
    bad = copy.replace(params, top_p=7) if sys.version_info >= (3, 13) else SamplingParams(0.5, 0, 7)
    SamplingParams(top_k=1).check()
    for wrong in (bad, SamplingParams(top_k=True)):  # the second equals one that was checked
        with pytest.raises(InvalidParameterError):
            wrong.check()
    assert SamplingParams(logit_bias={3: 1.0}) != SamplingParams(logit_bias={3: 2.0})
    assert hash(SamplingParams(logit_bias={3: 1.0})) == hash(SamplingParams(logit_bias={3: 2.0}))
