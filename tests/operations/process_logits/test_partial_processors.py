"""A processor of some edits is given no others: calls with any other edit go whole to its companion."""

import pytest
import torch

import tokendraw
from calling import provider_of
from fake_dists import offering
from tokendraw import PluginError, RequestSlots, SamplingParams
from tokendraw.edits.process import prove
from tokendraw.plugin import EDITS, EditFacts, ProcessCapabilities, ProcessNeed
from tokendraw.resolution import State
from tokendraw_native.logits_processing import NativeProcessor

VOCAB_SIZE = 40
FIELDS = {
    "allowed_token_ids": {"allowed_token_ids": [1, 2]},
    "bad_words": {"bad_words": [[1]]},
    "min_tokens": {"min_tokens": 1, "stop_token_ids": [1]},
    "logit_bias": {"logit_bias": {1: 1.0}},
    "repetition_penalty": {"repetition_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "presence_penalty": {"presence_penalty": 1.0},
}
"""Fields of a request that asks for one edit."""
LATER_FIELDS = {
    "thinking_budget": {"thinking_budget": (0, [1], [2])},
    "penalty_last_n": {"presence_penalty": 1.0, "penalty_last_n": 3},
    "dry_multiplier": {"dry_multiplier": 0.8},
}
"""Fields of a request for each edit that a processor names to serve it."""
NATIVE = (
    "from tokendraw_native.logits_processing import NativeProcessor\nbuild = lambda *given: NativeProcessor()"
)


def add_processor_of(dists, edits):
    """Install native's processor as ``acme``, with some edits."""
    offered = f"ProcessCapabilities(dtypes=tokendraw.plugin.INPUT_DTYPES, drafts=True, edits={edits!r})"
    dists.add_plugin("acme", offering("process_logits", offered, NATIVE))


def slots_of(*requests):
    slots = RequestSlots(num_slots=16, max_tokens=8, vocab_size=VOCAB_SIZE)
    for slot, fields in enumerate(requests):
        slots.add(slot, SamplingParams(**fields), prompt_token_ids=[1])
    return slots


def served_by(processor, slots, bitmask=None):
    """Return the name of the processor that edits a row of slot 0."""
    before = processor.stats()
    processor.process(torch.ones(1, VOCAB_SIZE), slots, torch.zeros(1).long(), bitmask)
    (name,) = (name for name, rows in processor.stats().items() if rows > before.get(name, 0))
    return name


@pytest.mark.parametrize("edit", FIELDS)
def test_slots_know_by_name_what_their_requests_ask_for(edit):
    slots = slots_of(FIELDS[edit], FIELDS[edit], {"min_tokens": 3})  # without stop ids, so nothing
    assert slots.edits == (edit,)
    slots.remove(0)
    assert slots.edits == (edit,)
    slots.remove(1)
    assert slots.edits == ()


def test_all_edits_have_their_order():
    assert slots_of(*reversed([*FIELDS.values(), *LATER_FIELDS.values()])).edits == EDITS[1:]


def test_a_graph_under_capture_may_serve_what_captured_edits_say(monkeypatch):
    slots = slots_of({})
    monkeypatch.setattr("tokendraw.edits.slots.is_capturing", lambda: True)
    assert slots.edits == EDITS[1:]
    slots.captured_edits = EditFacts.of(["bitmask", "logit_bias", "presence_penalty"])
    assert slots.edits == ("logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty")


@pytest.mark.parametrize("edit", EDITS)
def test_a_call_beyond_the_edits_goes_whole_to_the_companion(dists, edit):
    others = tuple(name for name in EDITS if name != edit)
    add_processor_of(dists, others)
    processor = tokendraw.load("process_logits", device="cpu")
    assert (processor.name, processor.resolution.companion) == ("acme", "native")
    words = torch.full((1, 2), -1, dtype=torch.int32)
    slots = slots_of({}, (FIELDS | LATER_FIELDS).get(edit, {}))
    assert served_by(processor, slots, words if edit == "bitmask" else None) == "native"
    if edit != "bitmask":
        slots.remove(1)
    slots.add(2, SamplingParams(**FIELDS["bad_words" if edit != "bad_words" else "logit_bias"]))
    assert served_by(processor, slots) == "acme"


def test_the_resolution_and_the_page_of_a_plugin_name_what_it_lacks(dists):
    add_processor_of(dists, ("bitmask", "logit_bias", "repetition_penalty"))
    processor = tokendraw.load("process_logits", device="cpu")
    assert processor.resolution.beyond == (
        "requests with allowed_token_ids",
        "requests with bad_words",
        "requests with min_tokens",
        "requests with thinking_budget",
        "requests with frequency_penalty",
        "requests with presence_penalty",
        "requests with penalty_last_n",
        "requests with dry_multiplier",
    )


@pytest.mark.parametrize(
    ("edits", "found"),
    [
        (("bad_word",), "('bad_word',)"),
        (("top_k", "logit_bias"), "('top_k', 'logit_bias')"),
        ("logit_bias", "'logit_bias'"),
        ((), "()"),
    ],
)
def test_unknown_names_are_refused_in_the_description(dists, edits, found):
    add_processor_of(dists, edits)
    (acme,) = (candidate for candidate in tokendraw.discover() if candidate.name == "acme")
    assert acme.state is State.BROKEN
    assert acme.reason == (
        "ProcessCapabilities.edits of the operation 'process_logits' needs a tuple of at least one of 'bitmask', "
        "'allowed_token_ids', 'bad_words', 'min_tokens', 'thinking_budget', 'logit_bias', 'repetition_penalty', "
        f"'frequency_penalty', 'presence_penalty', 'penalty_last_n' or 'dry_multiplier', found {found}"
    )


class Deaf(NativeProcessor):
    """Edits nothing."""

    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        return logits


@pytest.mark.parametrize("edit", EDITS)
def test_the_proof_asks_for_each_edit_that_is_advertised_and_for_no_other(edit):
    edits = ("presence_penalty", edit) if edit == "penalty_last_n" else (edit,)
    capabilities, device = ProcessCapabilities(edits=edits), torch.device("cpu")
    asked = []

    class Recording(NativeProcessor):
        def process(self, logits, slots, row_index, bitmask=None, drafts=None):
            asked.append((*(("bitmask",) if bitmask is not None else ()), *slots.edits))
            return super().process(logits, slots, row_index, bitmask, drafts)

    prove(Recording(), capabilities, device, ProcessNeed())
    assert asked == [edits]
    with pytest.raises(PluginError, match=r"the proof call needs .* as logit"):
        prove(Deaf(), capabilities, device, ProcessNeed())


class Recorder:
    """A processor with a list of requested edits."""

    def __init__(self):
        self.edits = []

    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        self.edits.append({*(("bitmask",) if bitmask is not None else ()), *slots.edits})
        return logits


@pytest.mark.usefixtures("warmup_on_a_cpu")
@pytest.mark.parametrize("companion", [True, False])
def test_a_warmup_edits_as_the_chosen_processor_serves_and_then_as_its_companion_does(dists, companion):
    edits = ("logit_bias", "min_tokens", "presence_penalty")
    own, other = Recorder(), Recorder()
    beside = (other, ProcessCapabilities(edits=EDITS)) if companion else ()
    processor = provider_of("process_logits", own, ProcessCapabilities(edits=edits), *beside)
    processor.warmup(VOCAB_SIZE, dtypes=[torch.float32], batch_sizes=[1], index_dtypes=[torch.int64])
    assert {frozenset(found) for found in own.edits} == {
        frozenset(name for name, on in zip(edits, bits, strict=True) if on)
        for bits in [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)][1:]
    }
    assert bool(other.edits) == companion
    assert all(found - {*edits} for found in other.edits)
