"""Rows beyond the chosen sampler go to a companion, no more, and the outputs are merged."""

import gc
import logging
import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import call_tables
from call_tables import pairs
from calling import (
    CPU,
    Recorded,
    assert_same_rows,
    drafting,
    loaded,
    pair,
    selection_of,
)
from fake_candidates import EVERYTHING, PER_ROW, VERIFYING
from fake_dists import EVERYTHING as SERVING
from fake_dists import plugin
from tokendraw import (
    BatchFacts,
    Drafts,
    Need,
    PluginError,
    RowKinds,
    SamplerOutput,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
    VerifyOutput,
    load_sampler,
)
from tokendraw.calls.call import RowGroup
from tokendraw.calls.negotiator import Negotiator
from tokendraw.calls.routing import MIN_SPLIT_ROWS, is_worthwhile
from tokendraw.operations.row_methods import Sampler
from tokendraw.plugin import Capabilities
from tokendraw_native.sampler import NativeSampler

FILTERS_ONLY = Capabilities(filters=PER_ROW, filter_orders=("top_k_first", "joint"))
JOINT_ONLY = Capabilities(filters=PER_ROW, filter_orders=("joint",))
PLAIN = SamplingParams(temperature=0.7, top_k=3, top_p=0.9)
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(seed=5, temperature=0.5)
LOGPROBS = SamplingParams(logprobs=2, min_p=0.1)
JOINT = replace(PLAIN, filter_order="joint")
ROWS, V = 20, 50


def logits_of(rows=ROWS, size=V):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(rows)).mul_(3)


def batch(others, rows=ROWS, rest=PLAIN, **options):
    """``rows`` plain requests, with ``others`` in place by row."""
    params = [others.get(row, rest) for row in range(rows)]
    return SamplingMetadata.from_params(params, positions=range(rows), **options)


def recorded(capabilities=FILTERS_ONLY, **options):
    chosen, companion = Recorded(1), Recorded(2)
    return pair(capabilities, chosen, companion, **options), chosen, companion


# What a sampler cannot serve


def lacking(capabilities, **fields):
    """Return what a sampler of some capabilities lacks for a batch with a plain request and another."""
    facts = RowKinds.of([SamplingParams(), SamplingParams(**fields)]).facts
    return loaded("acme", None, capabilities).reason_against(RowGroup(facts, V))


def test_who_serves_what_and_what_the_others_lack():
    table = call_tables.Table(__file__, "served.txt")
    assert table.found(lambda: dict(globals())) == table.text


@pytest.mark.parametrize(
    ("capabilities", "rest", "others"),
    [
        (FILTERS_ONLY, PLAIN, {3: GREEDY, 11: GREEDY}),
        (FILTERS_ONLY, PLAIN, {3: SEEDED, 11: LOGPROBS}),
        (replace(FILTERS_ONLY, max_top_k=8), replace(PLAIN, top_k=8), {4: replace(PLAIN, top_k=9)}),
        (replace(FILTERS_ONLY, filters=PER_ROW[:2]), PLAIN, {7: replace(PLAIN, min_p=0.2)}),
        (JOINT_ONLY, JOINT, {2: PLAIN}),
    ],
    ids=["greedy", "seeded, logprobs", "top_k above a limit", "filter", "order"],
)
def test_only_the_rows_that_are_beyond_the_chosen_sampler_go_to_its_companion(capabilities, rest, others):
    sampler, _, companion = recorded(capabilities)
    logits = logits_of()
    output = sampler.sample(logits, batch(others, rest=rest))
    assert output.token_ids.tolist() == [2 if row in others else 1 for row in range(ROWS)]
    assert torch.equal(companion.logits[0], logits[[*others]])
    assert companion.metadata[0].facts.max_top_k == max(p.top_k for p in others.values())
    assert sampler.stats() == {"acme": ROWS - len(others), "native": len(others)}


def test_each_gets_the_parameters_of_its_rows_and_nothing_that_it_cannot_serve():
    sampler, chosen, companion = recorded()
    logits, joint = logits_of(), replace(SEEDED, filter_order="joint", min_p=0.5, top_k=40, top_p=0.3)
    sampler.sample(logits, batch({3: joint, 11: GREEDY, 12: LOGPROBS}))
    (theirs,), (ours,) = companion.metadata, chosen.metadata
    assert theirs.per_row("temperature").tolist() == [0.5, 0.0, 1.0]
    assert (theirs.per_row("seed").tolist(), theirs.per_row("seeded").tolist()) == (
        [5, 0, 0],
        [True, False, False],
    )
    assert theirs.positions.tolist() == [3, 11, 12]
    facts = theirs.facts
    assert (facts.any_greedy, facts.all_greedy, facts.any_seeded, facts.all_seeded) == (
        True,
        False,
        True,
        False,
    )
    assert (facts.max_top_k, facts.any_min_p, facts.max_logprobs) == (40, True, 2)
    assert torch.equal(chosen.logits[0], logits)
    assert [ours.min_p, ours.seed, ours.seeded, ours.joint, ours.logprobs] == [None] * 5
    assert ours.facts == batch({}).facts
    assert [ours.top_k[row].item() for row in (3, 11, 12, 13)] == [1, 1, 1, 3]


def test_all_rows_of_a_slot_go_its_way_and_the_next_step_at_its_own_positions():
    sampler, _, companion = recorded()
    slots = [0] * 5 + [1] * 4 + [2] * 11
    metadata = SamplingMetadata.from_params(
        [PLAIN, SEEDED, PLAIN], positions=range(100, 100 + ROWS), row_index=slots
    )
    for step in range(2):
        moved = metadata.with_positions(torch.arange(ROWS) + 100 + step)
        assert sampler.sample(logits_of(), moved).token_ids.tolist() == [1] * 5 + [2] * 4 + [1] * 11
        assert companion.metadata[step].row_index.tolist() == [1] * 4
        assert companion.metadata[step].positions.tolist() == [105 + step + i for i in range(4)]
    assert companion.metadata[0].row_index is companion.metadata[1].row_index  # nothing is uploaded twice


# Which batches go one way


@pytest.mark.parametrize(
    ("rows", "leaving", "shared"), [(2, 1, True), (3, 1, True), (3, 2, False), (32, 17, False), (1, 1, False)]
)
def test_a_batch_on_a_cpu_is_shared_where_half_of_its_rows_stay(rows, leaving, shared):
    sampler, _, _ = recorded()
    tokens = sampler.sample(logits_of(rows), batch(dict.fromkeys(range(leaving), GREEDY), rows)).token_ids
    assert tokens.tolist() == [2] * leaving + [1 if shared else 2] * (rows - leaving)


@pytest.mark.parametrize(
    ("staying", "leaving", "shared"), [(16, 1, True), (15, 1, False), (16, 16, True), (16, 17, False)]
)
def test_a_batch_on_a_gpu_is_shared_where_16_rows_stay_too(staying, leaving, shared):
    assert MIN_SPLIT_ROWS == 16
    assert is_worthwhile(staying, leaving, torch.device("cuda")) is shared


def goes_whole(sampler, metadata, rows=ROWS):
    tokens = set(sampler.sample(logits_of(rows), metadata).token_ids.tolist())
    assert len(tokens) == 1
    return tokens == {2}


@pytest.mark.parametrize("tensor", ["temperature", "seeded", "logprobs"])
@pytest.mark.parametrize("inference", [False, True])
def test_after_a_change_in_place_the_rows_are_not_told_apart(tensor, inference):
    with torch.inference_mode(inference):
        sampler, _, _ = recorded()
        metadata = batch({3: SEEDED, 4: LOGPROBS})
        assert len(set(sampler.sample(logits_of(), metadata).token_ids.tolist())) == 2
        getattr(metadata, tensor)[3] = 0
        assert goes_whole(sampler, metadata)
        assert goes_whole(sampler, metadata.with_positions(torch.arange(ROWS)))


def test_ready_tensors_go_whole_unless_row_kinds_come_with_them():
    sampler, _, _ = recorded()
    params = [GREEDY if row == 6 else PLAIN for row in range(ROWS)]
    temperature = torch.tensor([p.temperature for p in params])
    assert goes_whole(sampler, SamplingMetadata(temperature=temperature, facts=BatchFacts(any_seeded=False)))
    told = SamplingMetadata(temperature=temperature, row_kinds=RowKinds.of(params))
    assert told.facts.any_greedy
    assert sampler.sample(logits_of(), told).token_ids.tolist() == [
        2 if row == 6 else 1 for row in range(ROWS)
    ]
    plain = SamplingMetadata(temperature=torch.ones(ROWS), row_kinds=RowKinds.of([PLAIN] * ROWS))
    assert not goes_whole(sampler, plain)  # though its facts allow for more
    assert replace(told, temperature=torch.zeros(ROWS)).row_kinds is None


# What neither of them serves


def test_a_row_that_no_companion_serves_is_refused_before_anything_is_drawn():
    sampler, chosen, companion = recorded(
        companion_capabilities=replace(EVERYTHING, filter_orders=("top_k_first",))
    )
    with pytest.raises(SamplerUnavailableError) as caught:
        sampler.sample(logits_of(), batch({3: replace(JOINT, seed=3)}))
    assert str(caught.value) == (
        "'acme' cannot serve seeded rows, and its companion 'native' cannot serve filter order joint, both of which "
        "this batch may hold. Install one that serves both (`pip install ./plugins/native` in tokendraw's "
        "checkout), or, if the batch holds only one of them, say so in SamplingMetadata.facts."
    )
    assert (chosen.logits, companion.logits) == ([], [])
    few = SamplingMetadata.from_params([SEEDED, JOINT, SEEDED], positions=range(3))
    assert sampler.sample(logits_of(3), few).token_ids.tolist() == [
        2,
        1,
        2,
    ]  # the companion serves no joint row


def test_without_a_companion_such_a_batch_is_refused():
    alone = Sampler(
        Negotiator(CPU, Need(), selected=[selection_of(loaded("acme", Recorded(1), Capabilities()))])
    )
    with pytest.raises(SamplerUnavailableError) as caught:
        alone.sample(torch.zeros(1, 4), SamplingMetadata(temperature=torch.zeros(1)))
    assert str(caught.value) == (
        "'acme' cannot serve greedy rows, which this batch may hold, and has no companion. Install one that can "
        "(`pip install ./plugins/native` in tokendraw's checkout), or, if the batch holds none, say so in "
        "SamplingMetadata.facts."
    )


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


@pytest.mark.parametrize("widest", [2, -1, 10**7])
def test_rows_whose_sampler_has_no_logprobs_carry_the_padding(widest):
    logits, others = logits_of(), {3: LOGPROBS, 9: replace(SEEDED, logprobs=widest), 10: GREEDY}
    output = pair(FILTERS_ONLY).sample(logits, batch(others))
    best, staying = output.logprobs, [row for row in range(ROWS) if row not in others]
    assert best.token_ids.shape == best.logprobs.shape == (ROWS, 3 if widest == 2 else 1 + V)
    assert torch.equal(best.token_ids[:, 0], output.token_ids)
    assert (best.token_ids[staying, 1:] == -1).all()
    assert (best.logprobs[staying] == -torch.inf).all()
    assert (best.ranks[staying] == 0).all()
    assert (output.log_kept_mass[staying] == -torch.inf).all()
    assert_same_rows(NativeSampler(CPU, Need()).sample(logits, batch(others)), output, rows=[9, 10])


def test_where_nobody_needs_ranks_a_batch_of_both_has_none():
    class Rankless(Recorded):
        def sample(self, logits, metadata):
            output = super().sample(logits, metadata)
            best = output.logprobs
            return replace(output, logprobs=None if best is None else replace(best, ranks=None))

    asking = batch({3: LOGPROBS})
    with pytest.raises(
        PluginError, match=r"to return logprobs\.ranks \[1\] torch\.int64 on cpu, found NoneType"
    ):
        pair(FILTERS_ONLY, Recorded(1), Rankless(2)).sample(logits_of(), asking)
    best = pair(FILTERS_ONLY, Recorded(1), Rankless(2), ranks=False).sample(logits_of(), asking).logprobs
    assert (best.ranks, best.token_ids.shape[0]) == (None, ROWS)


# Faults, and the capture of a graph


class Overwriting:
    """Draws the argmax and leaves nothing of the logits."""

    def sample(self, logits, metadata):
        token = logits.argmax(-1)
        logits.fill_(float("nan"))
        return SamplerOutput(token, torch.ones_like(token, dtype=torch.bool))


def test_neither_draws_from_logits_that_the_other_has_overwritten():
    logits = logits_of()
    before = logits.clone()
    pair(FILTERS_ONLY, companion=Overwriting()).sample(logits, batch({3: GREEDY}))
    assert torch.equal(logits, before)
    output = pair(FILTERS_ONLY, chosen=Overwriting()).sample(logits, batch({3: GREEDY}))
    assert torch.equal(output.token_ids, before.argmax(-1))


@pytest.mark.parametrize("was_drawn", [False, True])
def test_a_batch_is_captured_as_it_was_drawn_and_whole_without_indices_on_the_device(monkeypatch, was_drawn):
    sampler, _, companion = recorded()
    metadata = batch({3: GREEDY})
    if was_drawn:
        sampler.sample(logits_of(), metadata)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert sampler.sample(logits_of(), metadata).token_ids.tolist().count(2) == (1 if was_drawn else ROWS)
    if was_drawn:
        indices = weakref.ref(companion.metadata[-1].row_index)
        del metadata
        companion.metadata.clear()
        gc.collect()
        assert indices() is not None  # the graph reads them at every replay


# What the user hears


@pytest.mark.parametrize(("metadata", "heard"), pairs(Path(__file__).with_name("heard.txt")))
def test_what_is_routed_away_is_logged_once_with_its_reason(caplog, metadata, heard):
    sampler, _, _ = recorded()
    with caplog.at_level(logging.INFO, logger="tokendraw"):
        for _ in range(2):
            made = eval(metadata, globals())
            sampler.sample(logits_of(made.num_rows or 3), made)
    assert caplog.messages == [heard]


# An explicit choice has a second companion, the machine's preferred sampler, where that serves all rows of a call

NO_MOMENTS = SERVING.replace("row_moments=tokendraw.plugin.MOMENTS", "row_moments=()")
RARE = SamplingParams(filters={"p_less": 1.0})


def add(dists, *, build="return ArgmaxSampler()"):
    """Install ``fast``, which serves most rows, and ``own``, which serves few, in this order of preference."""
    few = NO_MOMENTS.replace("greedy=True", "greedy=False")
    dists.add_plugin("fast", plugin("fast", priority=90, capabilities=NO_MOMENTS, build=build))
    dists.add_plugin("own", plugin("own", priority=80, capabilities=few))


def rows_of(sampler, *params):
    """Draw a batch, and return the number of its rows by the sampler that drew them."""
    before, metadata = sampler.stats(), SamplingMetadata.from_params(params)
    logits = torch.tensor([[0.0, 9.0, 1.0]]).expand(len(params), -1).contiguous()
    assert sampler.sample(logits, metadata).token_ids.tolist() == [1] * len(params)
    return {name: n for name, rows in sampler.stats().items() if (n := rows - before.get(name, 0))}


def test_rows_go_to_the_first_companion_that_serves_all_of_a_call(dists):
    add(dists)
    sampler = load_sampler("own", device="cpu")
    plain = SamplingParams(top_k=2)
    assert (sampler.resolution.partial_companion, sampler.resolution.companion) == ("fast", "native")
    assert rows_of(sampler, plain, plain, GREEDY) == {"own": 2, "fast": 1}
    assert rows_of(sampler, plain, plain, RARE) == {"own": 2, "native": 1}
    assert rows_of(sampler, plain, plain, plain, RARE, GREEDY) == {"own": 3, "native": 2}
    assert rows_of(sampler, GREEDY) == {"fast": 1}
    reasons = {decision.name: decision.reason for decision in sampler.resolution.decisions}
    assert reasons["fast"] == (
        "available, priority 90; serves the rows that own cannot, where it can serve all of them in a call"
    )
    assert reasons["native"].endswith("; serves the rows that own cannot")
    assert "): go to fast, or else to native\n" in sampler.resolution.explain()


@pytest.mark.parametrize(
    ("build", "choice", "options", "companions"),
    [
        ("raise RuntimeError('built')", "own", {"companion": False}, ("own", None, None)),
        ("raise RuntimeError('no kernels')", "own", {}, ("own", None, "native")),
        ("return ArgmaxSampler()", None, {}, ("fast", None, "native")),
    ],
    ids=["none is wanted", "it cannot be built", "the default choice has none"],
)
def test_where_there_is_no_second_companion(dists, build, choice, options, companions):
    add(dists, build=build)
    resolution = load_sampler(choice, device="cpu", **options).resolution
    assert (resolution.chosen, resolution.partial_companion, resolution.companion) == companions


# Drafts and verifications


@dataclass
class Counting:
    """Native, with counts of drafted rows and verified requests."""

    rows: list[int] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)

    def sample(self, logits, metadata, *, draft):
        assert draft is True
        self.rows.append(len(logits))
        return NativeSampler(CPU, Need()).sample(logits, metadata, draft=True)

    def verify(self, target_logits, drafts, metadata, *, mode="rejection") -> VerifyOutput:
        self.requests.append(drafts.num_requests)
        return NativeSampler(CPU, Need()).verify(target_logits, drafts, metadata, mode=mode)


def test_drafts_are_routed_by_the_verifier_as_samples_are():
    requests = [
        SamplingParams(seed=i, temperature=0.0 if i % 5 == 3 else 0.8, top_k=i % 3, logprobs=2)
        for i in range(30)
    ]
    metadata, logits = SamplingMetadata.from_params(requests, positions=range(30)), logits_of(30)
    chosen, companion = Counting(), Counting()
    sampler = drafting(replace(EVERYTHING, greedy=False), chosen, companion)
    drafted = sampler.draft(logits, metadata)
    assert (chosen.rows, companion.rows, sampler.stats()) == ([30], [6], {"acme": 24, "native": 6})
    assert_same_rows(NativeSampler(CPU, Need()).sample(logits, metadata, draft=True), drafted)
    alone = drafting(FILTERS_ONLY, chosen, companion_capabilities=None)
    alone.sample(logits, metadata)  # who samples serves it
    with pytest.raises(SamplerUnavailableError, match="'acme' cannot serve greedy rows"):
        alone.draft(logits, metadata)


PROBS = {"draft_probs": torch.full((3, V), 0.02)}


def verifier(lists, *, probs=False, **limits):
    """Return who verifies a batch with a seeded request: one with some limits or, of the whole batch, its companion."""
    chosen, companion = Counting(), Counting()
    capabilities = replace(VERIFYING, **limits)
    sampler = drafting(capabilities, chosen, companion, companion_capabilities=VERIFYING)
    requests = SamplingMetadata.from_params([SEEDED, PLAIN, PLAIN], positions=range(3))
    drafts = Drafts.from_lists(lists, **(PROBS if probs else {}))
    sampler.verify(logits_of(drafts.num_rows), drafts, requests)
    if chosen.requests:
        return "the chosen one"
    assert companion.requests == [3]
    alone = drafting(capabilities, chosen, companion_capabilities=None)
    with pytest.raises(
        SamplerUnavailableError, match=r"^'acme' cannot serve .* say so in SamplingMetadata"
    ) as error:
        alone.verify(logits_of(drafts.num_rows), drafts, requests)
    return str(error.value).partition(", ")[0]
