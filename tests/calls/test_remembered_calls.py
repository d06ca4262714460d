"""A checked call with the same metadata and form of logits is not checked again; any other call is."""

import gc
import weakref

import pytest
import torch

from calling import CPU, loaded, recording, selection_of
from tokendraw import InvalidInputError, Need, SamplerOutput, SamplingMetadata, SamplingParams
from tokendraw.calls import rows
from tokendraw.calls.negotiator import Negotiator
from tokendraw.providers.sampler import Sampler

V = 8
LOGITS = torch.zeros(2, V)


def requests(**settings):
    return SamplingMetadata.from_params([SamplingParams(**settings)] * 2, positions=[3, 4])


@pytest.fixture
def checked(monkeypatch):
    """The logits compared with metadata."""
    found, original = [], rows.check_batch

    def check_batch(name, logits, metadata, need):
        found.append(logits)
        original(name, logits, metadata, need)

    monkeypatch.setattr(rows, "check_batch", check_batch)
    return found


def test_the_same_metadata_at_the_same_or_other_positions_are_checked_once(checked):
    (sampler, backend), metadata = recording(), requests(seed=1)
    for step in range(3):
        sampler.sample(torch.zeros(2, V), metadata)
        sampler.sample(torch.zeros(2, V), metadata.with_positions(torch.tensor([step, 9])))
    assert (len(checked), len(backend.logits), sampler.stats()) == (1, 6, {"acme": 12})


@pytest.mark.parametrize(
    ("other", "times"),
    [
        (torch.zeros(2, V + 1), 2),
        (torch.zeros(2, V, dtype=torch.bfloat16), 2),
        (torch.nn.Parameter(LOGITS), 2),
        (torch.zeros(2, 2 * V)[:, ::2], 1),
    ],
    ids=["vocabulary", "dtype", "subclass", "strides"],
)
def test_logits_of_another_form_are_checked_again_unless_only_strides_differ(checked, other, times):
    (sampler, backend), metadata = recording(), requests()
    sampler.sample(LOGITS, metadata)
    sampler.sample(other, metadata)
    assert (len(checked), len(backend.logits)) == (times, 2)


def test_another_number_of_rows_is_refused_after_sound_calls_too():
    (sampler, backend), metadata = recording(), requests()
    for _ in range(2):
        sampler.sample(LOGITS, metadata)
    with pytest.raises(InvalidInputError) as refused:
        sampler.sample(torch.zeros(3, V), metadata)
    assert str(refused.value) == "'metadata' needs as many rows as 'logits', 3, found 2."
    assert len(backend.logits) == 2


def test_metadata_for_another_device_is_refused_by_a_second_sampler():
    (sampler, _), metadata = recording(), requests()
    sampler.sample(LOGITS, metadata)
    elsewhere, backend = recording()
    elsewhere._negotiator.device = torch.device("meta")
    with pytest.raises(InvalidInputError, match="'logits' needs device meta"):
        elsewhere.sample(LOGITS, metadata)
    assert backend.logits == []


class Turning:
    """Returns the output set by a test."""

    output = None

    def sample(self, logits, metadata):
        return self.output


def test_the_form_of_every_output_is_checked():
    backend = Turning()
    sampler = Sampler(Negotiator(CPU, Need(), selected=[selection_of(loaded("acme", backend))]))
    metadata, right = requests(), SamplerOutput(torch.zeros(2).long(), torch.ones(2) > 0)
    for output, wrong in (
        (right, ""),
        (SamplerOutput(right.token_ids.int(), right.valid), "to return token_ids"),
        (right, ""),
        (3, "to return a SamplerOutput, found int"),
        (right, ""),
    ):
        backend.output = output
        if not wrong:
            assert sampler.sample(LOGITS, metadata) is output
        else:
            with pytest.raises(Exception, match=wrong):
                sampler.sample(LOGITS, metadata)


@pytest.mark.slow
def test_metadata_that_is_kept_keeps_neither_logits_nor_samplers_alive():
    (sampler, backend), metadata = recording(), requests()
    logits = torch.zeros(2, V)
    sampler.sample(logits, metadata)
    gone = [weakref.ref(logits), weakref.ref(backend), weakref.ref(sampler)]
    backend.logits.clear()
    del logits, backend, sampler
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
