"""Warming up edits: every possible edit runs before the first step, and nothing else changes."""

from dataclasses import astuple, dataclass, field
from itertools import product
from typing import Any

import pytest
import torch

import tokendraw
from calling import provider_of
from tokendraw import Drafts, InvalidInputError, SamplerUnavailableError
from tokendraw.plugin import EDITS, ProcessCapabilities

pytestmark = pytest.mark.usefixtures("warmup_on_a_cpu")

EVERYTHING = ProcessCapabilities(dtypes=("float32", "bfloat16", "float16"), drafts=True, edits=EDITS)
FACTS = [(penalty, penalty, *lists, late, late) for penalty, *lists, late in product((True, False), repeat=6)]
NOTHING = FACTS[-1]
INTS = (torch.int64, torch.int32)


@dataclass
class Seen:
    """A call, as received by the provider."""

    logits: torch.Tensor
    facts: tuple[bool, ...]
    row_index: torch.Tensor
    bitmask: torch.Tensor | None
    drafts: Drafts | None
    asking: int
    """Slots whose request asks for what the facts say."""

    @property
    def form(self) -> Any:
        """Dtypes of the indices, and how drafts lie."""
        if self.drafts is None:
            return (self.row_index.dtype,)
        ids, offsets = self.drafts.draft_token_ids, self.drafts.cu_num_logits
        return self.row_index.dtype, ids.dtype, offsets.dtype, ids.dim()


@dataclass
class Recorder:
    """A backend with a list of its calls."""

    calls: list[Seen] = field(default_factory=list)

    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        tables = slots.tables
        asks = (
            tables.repetition != 1,
            tables.penalty_last_n >= 0,
            tables.num_bias > 0,
            tables.is_restricted,
            tables.num_bad > 0,
            tables.min_tokens > 0,
            tables.dry_multiplier > 0,
            tables.thinking_budget >= 0,
        )
        facts = astuple(slots.facts)
        assert facts == tuple(bool(each.any()) for each in asks)
        self.calls.append(
            Seen(logits, facts, row_index, bitmask, drafts, int(torch.stack(asks).any(0).sum()))
        )
        return logits


def warmed(capabilities=EVERYTHING, **arguments):
    backend = Recorder()
    processor = provider_of("process_logits", backend, capabilities)
    assert processor.warmup(**({"vocab_size": 40, "dtypes": [torch.float32]} | arguments)) > 0
    return backend.calls, processor


def test_every_combination_of_edits_is_made_with_a_bitmask_and_without():
    calls, _ = warmed(batch_sizes=[3])
    masked = {(call.facts, call.bitmask is not None) for call in calls}
    assert masked == set(product(FACTS, (True, False))) - {(NOTHING, False)}
    assert {call.form for call in calls} == {(dtype,) for dtype in INTS}
    assert len(calls) == 127 * 2
    assert {call.asking for call in calls if call.facts != NOTHING} == {1}
    assert calls[0].facts == FACTS[0]


def test_what_will_not_come_is_left_out():
    calls, _ = warmed(batch_sizes=[1], bitmask=False, index_dtypes=[torch.int32])
    assert [call.facts for call in calls] == FACTS[:-1]
    assert {(call.bitmask is None, call.form) for call in calls} == {(True, (torch.int32,))}


def test_logits_have_the_dtypes_batch_sizes_and_strides_that_were_asked_for():
    dtypes = [torch.float32, torch.bfloat16]
    calls, _ = warmed(dtypes=dtypes, batch_sizes=[7, 2], row_stride=64)
    found = {(call.logits.dtype, tuple(call.logits.shape), call.logits.stride()) for call in calls}
    assert found == {(dtype, (rows, 40), (64, 1)) for dtype in dtypes for rows in (2, 7)}
    assert all(call.row_index.tolist() == list(range(len(call.logits))) for call in calls)


@pytest.mark.slow
def test_with_drafts_every_combination_of_dtypes_comes_in_one_row_and_in_padded_ones():
    calls, _ = warmed(batch_sizes=[1, 3], max_drafts=2)
    forms = {(dtype,) for dtype in INTS} | set(product(INTS, INTS, INTS, (1, 2)))
    assert {(call.form, call.facts, call.bitmask is not None) for call in calls} == set(
        product(forms, FACTS, (True, False))
    ) - set(product(forms, {NOTHING}, {False}))
    for call in calls:
        if call.drafts is not None:
            requests = len(call.row_index)
            assert (len(call.logits), call.drafts.num_drafts) == (3 * requests, (2,) * requests)
            assert requests in (1, 3)
            call.drafts.check(call.logits)
            call.drafts.check_values()
    assert len(calls) == 18 * 127 * 2


def test_the_line_on_the_terminal_counts_all_calls(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich believes in a terminal
    monkeypatch.setenv("COLUMNS", "100")
    calls, _ = warmed(batch_sizes=[2], max_drafts=1, index_dtypes=[torch.int64], progress=True)
    assert f"{len(calls)}/{len(calls)}" in capsys.readouterr().err
    assert len(calls) == 3 * 127


@pytest.mark.parametrize(
    ("capabilities", "arguments", "lacking"),
    [
        (ProcessCapabilities(), {"dtypes": [torch.float16]}, "logits in float16"),
        (ProcessCapabilities(), {"max_drafts": 1}, "rows of a verification"),
        (ProcessCapabilities(max_vocab_size=10), {}, "rows of a vocabulary above 10"),
    ],
)
def test_what_nobody_serves_is_refused_as_in_a_call(capabilities, arguments, lacking):
    with pytest.raises(SamplerUnavailableError, match=f"'acme' cannot serve {lacking}"):
        warmed(capabilities, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 0}, "'vocab_size' needs integers >= 1, found 0."),
        ({"dtypes": [torch.int32]}, "'dtypes' needs float32, bfloat16 or float16, found torch.int32."),
        ({"batch_sizes": []}, "'batch_sizes' needs a sequence of numbers, found []."),
        ({"index_dtypes": [torch.int16]}, "'index_dtypes' needs int64 or int32, found torch.int16."),
        (
            {"index_dtypes": torch.int32},
            "'index_dtypes' needs a sequence of dtypes of indices, found torch.int32.",
        ),
        ({"max_drafts": 0}, "'max_drafts' needs integers >= 1, found 0."),
    ],
)
def test_a_bad_argument_is_refused_by_its_name_before_anything_is_edited(arguments, message):
    backend = Recorder()
    processor = provider_of("process_logits", backend, EVERYTHING)
    with pytest.raises(InvalidInputError) as error:
        processor.warmup(**({"vocab_size": 40, "dtypes": [torch.float32]} | arguments))
    assert str(error.value) == message
    assert backend.calls == []


@pytest.mark.slow
def test_native_edits_what_a_warmup_makes_up():
    processor = tokendraw.load("process_logits", "native", device="cpu")
    options = {"dtypes": [torch.bfloat16], "batch_sizes": [2], "index_dtypes": [torch.int32], "max_drafts": 2}
    assert processor.warmup(40, **options) > 0
    assert processor.stats() == {}
