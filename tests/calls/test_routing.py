"""Rows beyond the chosen sampler go to the companion, no more, and the outputs are merged."""

import gc
import logging
import weakref
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calling import CPU, Recorded, assert_same_rows, pair
from fake_candidates import EVERYTHING, PER_ROW
from tokendraw import (
    BatchFacts,
    InvalidInputError,
    Need,
    PluginError,
    RowKinds,
    SamplerOutput,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
)
from tokendraw.calls.routing import MIN_SPLIT_ROWS, is_worthwhile
from tokendraw.plugin import Capabilities
from tokendraw_native.sampler import NativeSampler

FILTERS_ONLY = Capabilities(filters=PER_ROW, filter_orders=("top_k_first", "joint"))
PLAIN = SamplingParams(temperature=0.7, top_k=3, top_p=0.9)
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(seed=5, temperature=0.5)
LOGPROBS = SamplingParams(logprobs=2, min_p=0.1)
ROWS, V = 20, 50


def logits_of(rows=ROWS, size=V):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(rows)).mul_(3)


def batch(others, rows=ROWS, **options):
    """``rows`` plain requests, with ``others`` in place by row."""
    params = [others.get(row, PLAIN) for row in range(rows)]
    return SamplingMetadata.from_params(params, positions=range(rows), **options)


def recorded(capabilities=FILTERS_ONLY, **options):
    chosen, companion = Recorded(1), Recorded(2)
    return pair(capabilities, chosen, companion, **options), chosen, companion


# Which rows go where


JOINT = replace(PLAIN, filter_order="joint")


@pytest.mark.parametrize(
    ("capabilities", "rest", "others"),
    [
        (FILTERS_ONLY, PLAIN, {3: GREEDY, 11: GREEDY}),
        (FILTERS_ONLY, PLAIN, {3: SEEDED, 11: SEEDED}),
        (FILTERS_ONLY, PLAIN, {3: LOGPROBS, 11: LOGPROBS}),
        (replace(FILTERS_ONLY, max_top_k=8), replace(PLAIN, top_k=8), {4: replace(PLAIN, top_k=9)}),
        (replace(FILTERS_ONLY, filters=PER_ROW[:2]), PLAIN, {7: replace(PLAIN, min_p=0.2)}),
        (replace(FILTERS_ONLY, filter_orders=("joint",)), JOINT, {2: PLAIN}),
    ],
    ids=["greedy", "seeded", "logprobs", "top_k above a limit", "filter", "order"],
)
def test_only_the_rows_that_are_beyond_the_chosen_sampler_go_to_its_companion(capabilities, rest, others):
    sampler, _, companion = recorded(capabilities)
    logits, params = logits_of(), [others.get(row, rest) for row in range(ROWS)]
    output = sampler.sample(logits, SamplingMetadata.from_params(params, positions=range(ROWS)))
    assert output.token_ids.tolist() == [2 if row in others else 1 for row in range(ROWS)]
    assert torch.equal(companion.logits[0], logits[[*others]])
    assert companion.metadata[0].facts.max_top_k == max(p.top_k for p in others.values())
    assert sampler.stats() == {"acme": ROWS - len(others), "native": len(others)}


def test_where_nobody_needs_ranks_a_batch_of_both_has_none():
    @dataclass
    class Rankless(Recorded):
        """Draws as native, without ranks."""

        def sample(self, logits, metadata):
            output = super().sample(logits, metadata)
            best = output.logprobs
            return replace(output, logprobs=None if best is None else replace(best, ranks=None))

    sampler = pair(FILTERS_ONLY, Recorded(1), Rankless(2))
    asking = batch({3: LOGPROBS})
    with pytest.raises(
        PluginError, match=r"to return logprobs\.ranks \[1\] torch\.int64 on cpu, found NoneType"
    ):
        sampler.sample(logits_of(), asking)
    sampler = pair(FILTERS_ONLY, Recorded(1), Rankless(2), ranks=False)
    best = sampler.sample(logits_of(), asking).logprobs
    assert (best.ranks, best.token_ids.shape[0]) == (None, ROWS)


def test_the_companion_gets_the_parameters_of_its_rows():
    sampler, _, companion = recorded()
    sampler.sample(logits_of(), batch({3: SEEDED, 11: GREEDY, 12: LOGPROBS}))
    (metadata,) = companion.metadata
    assert metadata.per_row("temperature").tolist() == [0.5, 0.0, 1.0]
    assert metadata.per_row("seed").tolist() == [5, 0, 0]
    assert metadata.per_row("seeded").tolist() == [True, False, False]
    assert metadata.per_row("min_p").tolist() == [0.0, 0.0, 0.1]
    assert metadata.positions.tolist() == [3, 11, 12]
    facts = metadata.facts
    assert (facts.any_greedy, facts.all_greedy, facts.any_seeded, facts.all_seeded) == (
        True,
        False,
        True,
        False,
    )
    assert (facts.max_top_k, facts.any_top_p, facts.any_min_p, facts.max_logprobs) == (0, False, True, 2)


def test_the_chosen_sampler_finds_nothing_that_it_cannot_serve():
    sampler, chosen, _ = recorded()
    logits = logits_of()
    joint = replace(SEEDED, filter_order="joint", min_p=0.5, top_k=40, top_p=0.3)
    sampler.sample(logits, batch({3: joint, 11: GREEDY, 12: LOGPROBS}))
    (metadata,) = chosen.metadata
    assert torch.equal(chosen.logits[0], logits)
    leaving = [3, 11, 12]
    assert metadata.temperature[leaving].tolist() == [1.0] * 3
    assert metadata.top_k[leaving].tolist() == [1] * 3
    assert metadata.top_p[leaving].tolist() == [1.0] * 3
    assert [metadata.min_p, metadata.seed, metadata.seeded, metadata.joint, metadata.logprobs] == [None] * 5
    assert metadata.facts == batch({}).facts
    staying = [row for row in range(ROWS) if row not in leaving]
    assert metadata.temperature[staying].tolist() == [0.7] * 17
    assert metadata.top_k[staying].tolist() == [3] * 17


def test_all_rows_of_a_slot_go_its_way():
    sampler, _, companion = recorded()
    slots = [0] * 5 + [1] * 4 + [2] * 11
    logits = logits_of()
    metadata = SamplingMetadata.from_params(
        [PLAIN, SEEDED, PLAIN], positions=range(100, 100 + ROWS), row_index=slots
    )
    assert sampler.sample(logits, metadata).token_ids.tolist() == [1] * 5 + [2] * 4 + [1] * 11
    assert torch.equal(companion.logits[0], logits[5:9])
    assert companion.metadata[0].row_index.tolist() == [1] * 4
    assert companion.metadata[0].positions.tolist() == [105, 106, 107, 108]


def test_the_next_step_is_routed_alike_at_its_own_positions():
    sampler, _, companion = recorded()
    metadata = batch({3: SEEDED})
    sampler.sample(logits_of(), metadata)
    sampler.sample(logits_of(), metadata.with_positions(torch.arange(70, 70 + ROWS)))
    assert [m.positions.tolist() for m in companion.metadata] == [[3], [73]]
    assert companion.metadata[0].row_index is companion.metadata[1].row_index  # nothing is uploaded twice


# Which batches go one way


@pytest.mark.parametrize(
    ("rows", "leaving", "shared"),
    [
        (2, 1, True),
        (3, 1, True),
        (3, 2, False),
        (2 * MIN_SPLIT_ROWS, MIN_SPLIT_ROWS, True),
        (2 * MIN_SPLIT_ROWS, MIN_SPLIT_ROWS + 1, False),
        (1, 1, False),
    ],
)
def test_a_batch_on_a_cpu_is_shared_where_half_of_its_rows_stay(rows, leaving, shared):
    sampler, _, _ = recorded()
    tokens = sampler.sample(logits_of(rows), batch(dict.fromkeys(range(leaving), GREEDY), rows)).token_ids
    assert tokens.tolist() == [2] * leaving + [1 if shared else 2] * (rows - leaving)


@pytest.mark.parametrize(
    ("staying", "leaving", "shared"),
    [
        (MIN_SPLIT_ROWS, 1, True),
        (MIN_SPLIT_ROWS - 1, 1, False),
        (MIN_SPLIT_ROWS, MIN_SPLIT_ROWS, True),
        (MIN_SPLIT_ROWS, MIN_SPLIT_ROWS + 1, False),
    ],
)
def test_a_batch_on_a_gpu_is_shared_where_16_rows_stay_too(staying, leaving, shared):
    assert is_worthwhile(staying, leaving, torch.device("cuda")) is shared


def goes_whole(sampler, metadata, rows=ROWS):
    tokens = set(sampler.sample(logits_of(rows), metadata).token_ids.tolist())
    assert len(tokens) == 1
    return tokens == {2}


@pytest.mark.parametrize(
    ("tensor", "inference"),
    [("temperature", False), ("temperature", True), ("seeded", False), ("top_k", False), ("logprobs", False)],
)
def test_after_a_change_in_place_the_rows_are_not_told_apart(tensor, inference):
    with torch.inference_mode(inference):
        sampler, _, _ = recorded()
        metadata = batch({3: SEEDED, 4: LOGPROBS})
        assert len(set(sampler.sample(logits_of(), metadata).token_ids.tolist())) == 2
        getattr(metadata, tensor)[3] = 0
        assert goes_whole(sampler, metadata)
        assert goes_whole(sampler, metadata.with_positions(torch.arange(ROWS)))


def test_other_tensors_in_the_place_of_those_that_it_speaks_of_take_row_kinds_away():
    metadata = batch({3: SEEDED})
    other = replace(metadata, temperature=torch.zeros(ROWS, dtype=torch.float64))
    assert (metadata.row_kinds is None, other.row_kinds) == (False, None)
    assert metadata.with_positions(torch.arange(ROWS)).row_kinds is metadata.row_kinds


def test_ready_tensors_go_whole_unless_row_kinds_come_with_them():
    sampler, _, _ = recorded()
    params = [GREEDY if row == 6 else PLAIN for row in range(ROWS)]
    temperature = torch.tensor([p.temperature for p in params])
    facts = BatchFacts(any_seeded=False)
    assert goes_whole(sampler, SamplingMetadata(temperature=temperature, facts=facts))
    told = SamplingMetadata(temperature=temperature, row_kinds=RowKinds.of(params))
    assert sampler.sample(logits_of(), told).token_ids.tolist() == [
        2 if row == 6 else 1 for row in range(ROWS)
    ]


def test_facts_that_allow_for_more_than_row_kinds_tell_of_cost_nothing():
    sampler, _, _ = recorded()
    told = SamplingMetadata(temperature=torch.ones(ROWS), row_kinds=RowKinds.of([PLAIN] * ROWS))
    assert told.facts.any_greedy
    assert sampler.sample(logits_of(), told).token_ids.tolist() == [1] * ROWS


def test_row_kinds_of_another_number_of_rows_are_refused_or_not_used():
    with pytest.raises(InvalidInputError) as refused:
        SamplingMetadata(temperature=torch.ones(3), row_kinds=RowKinds.of([PLAIN] * 4))
    assert str(refused.value) == "'row_kinds' needs one entry a slot, 3, found 4."
    with pytest.raises(InvalidInputError) as refused:
        SamplingMetadata(
            temperature=torch.ones(2),
            row_index=torch.zeros(3, dtype=torch.int64),
            row_kinds=RowKinds.of([PLAIN] * 2, row_index=[0, 1]),
        )
    assert str(refused.value) == (
        "'row_kinds' needs the slots of as many rows as 'row_index' has, 3, found 2. "
        "Pass row_index= to RowKinds.of."
    )


# What neither of them serves


def test_a_row_that_the_companion_cannot_serve_either_is_refused_before_anything_is_drawn():
    limited = replace(EVERYTHING, filter_orders=("top_k_first",))
    sampler, chosen, companion = recorded(companion_capabilities=limited)
    both = replace(PLAIN, seed=3, filter_order="joint")
    with pytest.raises(SamplerUnavailableError) as refused:
        sampler.sample(logits_of(), batch({3: both}))
    assert str(refused.value) == (
        "'acme' cannot serve seeded rows, and its companion 'native' cannot serve filter order joint, both of which "
        "this batch may hold. Install one that serves both (`pip install ./plugins/native` in tokendraw's "
        "checkout), or, if the batch "
        "holds only one of them, say so in SamplingMetadata.facts."
    )
    assert (chosen.logits, companion.logits) == ([], [])


def test_rows_that_only_the_chosen_sampler_serves_stay_even_if_they_are_few():
    limited = replace(EVERYTHING, filter_orders=("top_k_first",))
    sampler, _, _ = recorded(companion_capabilities=limited)
    params = [SEEDED, replace(PLAIN, filter_order="joint"), SEEDED]
    metadata = SamplingMetadata.from_params(params, positions=range(3))
    assert sampler.sample(logits_of(3), metadata).token_ids.tolist() == [2, 1, 2]


# One output


ROW = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_k=st.sampled_from([0, 3, 20]),
    top_p=st.sampled_from([0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.sampled_from([None, 0, 2, -1]),
    filter_order=st.sampled_from(["top_k_first", "joint"]),
    logprob_token_ids=st.sampled_from([None, None, (0,), (3, 1)]),
)
LIMITED = [
    replace(EVERYTHING, logprob_token_ids=False),
    replace(EVERYTHING, greedy=False),
    replace(EVERYTHING, max_top_k=3),
    replace(EVERYTHING, filter_orders=("joint",)),
    replace(EVERYTHING, filters=PER_ROW[:2]),
    replace(EVERYTHING, greedy=False, filters=PER_ROW[1:]),
]


@pytest.mark.parametrize("capabilities", LIMITED, ids=range(len(LIMITED)))
@given(requests=st.lists(ROW, min_size=12, max_size=40), mode=st.sampled_from(EVERYTHING.logprobs_modes))
@settings(max_examples=25, deadline=None, derandomize=True)
@pytest.mark.fast_first
def test_what_two_draw_is_what_one_alone_draws(capabilities, requests, mode):
    """With native as both samplers and a seed in every row, a difference could come from routing alone."""
    metadata = SamplingMetadata.from_params(requests, positions=range(len(requests)))
    logits = logits_of(len(requests))
    logits[0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    alone = NativeSampler(CPU, Need(logprobs_mode=mode)).sample(logits, metadata)
    assert_same_rows(alone, pair(capabilities, mode=mode).sample(logits, metadata))


@pytest.mark.parametrize("widest", [2, 0, -1, 10**7])
def test_rows_whose_sampler_has_no_logprobs_carry_the_padding(widest):
    sampler = pair(FILTERS_ONLY)
    logits, others = logits_of(), {3: LOGPROBS, 9: replace(SEEDED, logprobs=widest), 10: GREEDY}
    output = sampler.sample(logits, batch(others))
    width = 2 if widest in (0, 2) else V
    assert output.logprobs.token_ids.shape == output.logprobs.logprobs.shape == (ROWS, 1 + width)
    staying = [row for row in range(ROWS) if row not in others]
    assert torch.equal(output.logprobs.token_ids[:, 0], output.token_ids)
    assert (output.logprobs.token_ids[staying, 1:] == -1).all()
    assert (output.logprobs.logprobs[staying] == -torch.inf).all()
    assert (output.logprobs.ranks[staying] == 0).all()
    assert (output.log_kept_mass[staying] == -torch.inf).all()
    native = NativeSampler(CPU, Need())
    alone = native.sample(logits, batch(others))
    assert_same_rows(alone, output, rows=[9, 10])
    assert (output.logprobs.logprobs[[3, 9, 10], 0] > -torch.inf).all()


def test_whether_a_row_is_valid_is_said_by_who_draws_it():
    logits = logits_of()
    logits[3, 7] = logits[5, 7] = float("nan")
    output = pair(FILTERS_ONLY, Recorded(1)).sample(logits, batch({3: SEEDED, 4: GREEDY}))
    assert (~output.valid).nonzero().flatten().tolist() == [3]


# Faults


class Overwriting:
    """Draws the argmax and leaves nothing of the logits."""

    def sample(self, logits, metadata):
        token = logits.argmax(-1)
        logits.fill_(float("nan"))
        return SamplerOutput(token, torch.ones_like(token, dtype=torch.bool))


def test_the_companion_draws_from_logits_that_nobody_has_overwritten():
    logits = logits_of()
    best = logits.argmax(-1)
    output = pair(FILTERS_ONLY, chosen=Overwriting()).sample(logits, batch({3: GREEDY}))
    assert torch.equal(output.token_ids, best)


def test_the_callers_logits_are_not_modified_by_a_companion_that_works_in_place():
    logits = logits_of()
    before = logits.clone()
    pair(FILTERS_ONLY, companion=Overwriting()).sample(logits, batch({3: GREEDY}))
    assert torch.equal(logits, before)


class Failing:
    def __init__(self, name):
        self.name = name

    def sample(self, logits, metadata):
        raise RuntimeError(f"{self.name} has no kernel image")


@pytest.mark.parametrize("who", ["chosen", "companion"])
def test_the_error_of_either_is_the_callers(who):
    with pytest.raises(RuntimeError, match=f"{who} has no kernel image") as raised:
        pair(FILTERS_ONLY, **{who: Failing(who)}).sample(logits_of(), batch({3: GREEDY}))
    assert raised.value.__cause__ is None


@pytest.fixture
def capturing(monkeypatch):
    """Pretends the capture of a CUDA graph, once called."""

    def start():
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)

    return start


def test_a_batch_that_was_never_drawn_is_captured_whole_since_its_indices_are_not_on_the_device(capturing):
    sampler, _, _ = recorded()
    metadata = batch({3: GREEDY})
    capturing()
    assert goes_whole(sampler, metadata)


def test_a_batch_that_was_drawn_is_captured_as_it_was_drawn(capturing):
    sampler, _, companion = recorded()
    metadata = batch({3: GREEDY})
    sampler.sample(logits_of(), metadata)
    capturing()
    assert sampler.sample(logits_of(), metadata).token_ids.tolist().count(2) == 1
    indices = weakref.ref(companion.metadata[-1].row_index)
    del metadata
    companion.metadata.clear()
    gc.collect()
    assert indices() is not None  # the graph reads them at every replay


# What the user hears


def test_a_class_of_rows_that_is_routed_away_is_logged_once_with_its_reason(caplog):
    sampler, _, _ = recorded()
    with caplog.at_level(logging.INFO, logger="tokendraw"):
        for others in ({3: SEEDED}, {4: SEEDED, 5: GREEDY}, {3: SEEDED}):
            sampler.sample(logits_of(), batch(others))
    assert caplog.messages == [
        "'acme' cannot serve seeded rows: they go to 'native'",
        "'acme' cannot serve greedy rows: they go to 'native'",
    ]


@pytest.mark.parametrize(
    ("metadata", "because"),
    [
        (lambda: batch({0: SEEDED, 1: SEEDED}, 3), "1 of 3 rows would stay"),
        (lambda: SamplingMetadata(temperature=torch.ones(3)), "its metadata has no row_kinds"),
        (
            lambda: SamplingMetadata.from_params([GREEDY], row_index=torch.zeros(3, dtype=torch.int64)),
            "its row_index is not known on the host",
        ),
    ],
    ids=["few rows", "ready tensors", "slots on the device"],
)
def test_a_batch_that_goes_whole_says_why_once(caplog, metadata, because):
    sampler, _, _ = recorded()
    kind = "seeded rows" if "would" in because else "greedy rows"
    with caplog.at_level(logging.INFO, logger="tokendraw"):
        for _ in range(2):
            assert goes_whole(sampler, metadata(), 3)
    assert caplog.messages == [
        f"'acme' cannot serve {kind}: they go to 'native', and with them the whole batch, since {because}"
    ]


def test_stats_count_rows_by_the_sampler_that_drew_them(warmup_on_a_cpu):
    sampler, _, _ = recorded()
    assert sampler.stats() == {}
    sampler.sample(logits_of(), batch({}))
    sampler.sample(logits_of(), batch({3: SEEDED}))
    sampler.sample(logits_of(3), batch({0: SEEDED, 1: SEEDED}, 3))
    counted = {"acme": 2 * ROWS - 1, "native": 4}
    assert sampler.stats() == counted
    sampler.warmup(V, dtypes=[torch.float32], batch_sizes=[12])
    assert sampler.stats() == counted
