"""Drafting is routed as sampling is: rows not served by the verifier go to its companion alone."""

import logging
from dataclasses import dataclass, field, replace

import pytest
import torch

from calling import CPU, Recorded, assert_same_rows, drafting
from fake_candidates import EVERYTHING, PER_ROW
from selections import select, substitute
from tokendraw import Need, SamplerOutput, SamplerUnavailableError, SamplingMetadata, SamplingParams
from tokendraw.plugin import Capabilities
from tokendraw_native.sampler import NativeSampler

FILTERS_ONLY = Capabilities(filters=PER_ROW, filter_orders=("top_k_first", "joint"))
PLAIN = SamplingParams(temperature=0.7, top_k=3, top_p=0.9)
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(seed=5, temperature=0.5)
ROWS, V = 20, 50


@dataclass
class Drafter:
    """Draws the same token for all drafts, and counts its rows. It samples nothing."""

    token: int
    rows: list[int] = field(default_factory=list)

    def sample(self, logits, metadata, *, draft):
        assert draft is True
        self.rows.append(len(logits))
        rows = len(logits)
        return SamplerOutput(torch.full((rows,), self.token), torch.ones(rows, dtype=torch.bool))


def logits_of(rows=ROWS):
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(rows)).mul_(3)


def batch(others, rows=ROWS):
    params = [others.get(row, PLAIN) for row in range(rows)]
    return SamplingMetadata.from_params(params, positions=range(rows))


def two(**options):
    return drafting(FILTERS_ONLY, Drafter(1), Drafter(2), **options)


def test_only_the_rows_that_are_beyond_the_chosen_one_go_to_its_companion():
    sampler = two()
    tokens = sampler.draft(logits_of(), batch({3: GREEDY, 11: SEEDED})).token_ids
    assert tokens.tolist() == [2 if row in (3, 11) else 1 for row in range(ROWS)]
    assert sampler.stats() == {"acme": ROWS - 2, "native": 2}


def test_drafts_are_counted_beside_what_is_sampled():
    sampler = two()
    sampler.draft(logits_of(), batch({3: GREEDY}))
    sampler.sample(logits_of(), batch({3: GREEDY}))
    assert sampler.stats() == {"acme": 2 * ROWS - 1, "native": 1}


def test_a_batch_of_which_most_rows_leave_takes_no_second_sampler():
    sampler = two()
    drafts = sampler.draft(logits_of(3), batch({0: GREEDY, 1: GREEDY}, 3))
    assert drafts.token_ids.tolist() == [2, 2, 2]
    assert sampler.stats() == {"native": 3}


def test_what_is_routed_away_is_logged_once(caplog):
    sampler = two()
    with caplog.at_level(logging.INFO, logger="tokendraw"):
        for others in ({3: SEEDED}, {4: SEEDED}):
            sampler.draft(logits_of(), batch(others))
        sampler.draft(logits_of(3), batch({0: SEEDED, 1: SEEDED}, 3))
    assert caplog.messages == [
        "'acme' cannot serve seeded rows: they go to 'native'",
        "'acme' cannot serve seeded rows: they go to 'native', and with them the whole batch, since 1 of 3 rows would "
        "stay",
    ]


@pytest.mark.parametrize("wanted", [None, 2])
def test_the_drafts_of_two_are_those_of_one(wanted):
    """Both backends are native, and every row is seeded, so that only routing could make a difference."""
    requests = [
        SamplingParams(seed=row, temperature=0.0 if row % 5 == 3 else 0.8, top_k=row % 3, logprobs=wanted)
        for row in range(30)
    ]
    metadata = SamplingMetadata.from_params(requests, positions=range(30))
    logits, native = logits_of(30), NativeSampler(CPU, Need())
    sampler = drafting(replace(EVERYTHING, greedy=False))
    drafted = sampler.draft(logits, metadata)
    assert sampler.stats() == {"acme": 24, "native": 6}
    assert_same_rows(native.sample(logits, metadata, draft=True), drafted)
    assert drafted.token_ids.tolist() != native.sample(logits, metadata).token_ids.tolist()


def test_rows_that_neither_serves_are_refused_before_anything_is_drawn():
    chosen, companion = Drafter(1), Drafter(2)
    limited = replace(EVERYTHING, filter_orders=("top_k_first",))
    sampler = drafting(FILTERS_ONLY, chosen, companion, companion_capabilities=limited)
    with pytest.raises(
        SamplerUnavailableError, match="its companion 'native' cannot serve filter order joint"
    ):
        sampler.draft(logits_of(), batch({3: replace(PLAIN, seed=3, filter_order="joint")}))
    assert (chosen.rows, companion.rows) == ([], [])


class Failing:
    def sample(self, logits, metadata, *, draft=False):
        raise RuntimeError("no kernel image")


@pytest.mark.parametrize("who", ["chosen", "companion"])
def test_the_error_of_either_is_the_callers_and_counts_nothing(who):
    sampler = drafting(FILTERS_ONLY, **{"chosen": Drafter(1), "companion": Drafter(2), who: Failing()})
    with pytest.raises(RuntimeError, match="no kernel image") as raised:
        sampler.draft(logits_of(), batch({3: GREEDY}))
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)
    assert sampler.stats() == {}


def test_who_samples_has_no_part_in_it():
    """The sampler serves the batch, and the verifier does not."""
    sampler = drafting(FILTERS_ONLY, Drafter(1), companion_capabilities=None)
    substitute(sampler._dispatcher, Recorded(7))
    assert sampler.sample(logits_of(2), batch({0: GREEDY}, 2)).token_ids.tolist() == [7, 7]
    assert sampler.draft(logits_of(2), batch({}, 2)).token_ids.tolist() == [1, 1]
    with pytest.raises(SamplerUnavailableError, match="'acme' cannot serve greedy rows"):
        sampler.draft(logits_of(2), batch({0: GREEDY}, 2))


def test_the_first_drafts_of_a_kind_are_drawn_from_a_copy_as_samples_are():
    class Looking(Drafter):
        def sample(self, logits, metadata, *, draft):
            self.rows.append(logits.data_ptr())
            return super().sample(logits, metadata, draft=draft)

    chosen, logits = Looking(1), logits_of()
    sampler = drafting(FILTERS_ONLY, chosen, Drafter(2))
    select(sampler._verifier, can_fall_back=True)
    for _ in range(2):
        sampler.draft(logits, batch({}))
    assert [at == logits.data_ptr() for at in chosen.rows[::2]] == [False, True]
