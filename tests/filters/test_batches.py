"""Filters from moments in requests, ready tensors and slots; routing, and faults in a call."""

import math
from dataclasses import replace

import pytest
import torch

import tokendraw
from calling import refused
from fake_dists import EVERYTHING, plugin
from tokendraw import (
    BatchFacts,
    InvalidInputError,
    InvalidParameterError,
    Need,
    PluginError,
    RequestSlots,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
)
from tokendraw.filters import FilterError
from tokendraw.row_parameters import RowParameters

V = 60
LOGITS = 2 * torch.randn(4, V, generator=torch.Generator().manual_seed(0))
SIGMA, CUTOFF, PLAIN = (
    SamplingParams(filters=f) for f in ({"top_n_sigma": 1.0}, {"epsilon_cutoff": 0.02}, None)
)
NAMES = ("epsilon_cutoff", "top_n_sigma")


@pytest.fixture(scope="module")
def native():
    return tokendraw.load_sampler("native", device="cpu", need=Need(threshold=True))


def batch(*requests, **options):
    return SamplingMetadata.from_params(requests, **options)


class TestAtTheDoor:
    @pytest.mark.parametrize(
        ("filters", "message"),
        [
            (
                {"top_n_sigma": -1},
                "'filters'{}: 'top_n_sigma' needs a finite number >= 0 (0: off), found -1.",
            ),
            (
                {"top_n_sigma": math.inf},
                "'filters'{}: 'top_n_sigma' needs a finite number >= 0 (0: off), found inf.",
            ),
            (
                {"top_n_sigma": True},
                "'filters'{}: 'top_n_sigma' needs a finite number >= 0 (0: off), found True.",
            ),
            (
                {"epsilon_cutoff": 1.5},
                "'filters'{}: 'epsilon_cutoff' needs a number in [0, 1] (0: off), found 1.5.",
            ),
            (
                {"eta_cutoff": math.nan},
                "'filters'{}: 'eta_cutoff' needs a number in [0, 1] (0: off), found nan.",
            ),
            ({"p_less": 0.5}, "'filters'{}: 'p_less' needs 0 (off) or 1 (on), found 0.5."),
            ({"top_n_sigma": 1e39}, "'top_n_sigma'{} needs a finite float32, found 1e+39."),
            ([("p_less", 1)], "'filters'{} needs {{name: value}}, found list. Pass a dict."),
            ([], "'filters'{} needs {{name: value}}, found list. Pass a dict."),
            (0, "'filters'{} needs {{name: value}}, found int. Pass a dict."),
        ],
    )
    def test_a_bad_value_is_refused_by_name_and_row(self, filters, message):
        bad = SamplingParams(filters=filters)
        refused(message.format(""), InvalidParameterError, bad.check)
        refused(message.format(" of row 1"), InvalidParameterError, lambda: batch(PLAIN, bad))
        refused(
            message.format(" of slot 2"), InvalidParameterError, lambda: RequestSlots(3, 8, V).add(2, bad)
        )

    def test_an_unknown_name_names_the_row(self):
        words = "needs names of installed filters, found 'p_les', the nearest is 'p_less'. Correct it."
        refused(
            f"'filters' of row 1 {words}",
            InvalidParameterError,
            lambda: batch(PLAIN, SamplingParams(filters={"p_les": 1})),
        )
        refused(
            f"'filters' {words}",
            InvalidParameterError,
            lambda: SamplingMetadata(filters={"p_les": torch.ones(1)}),
        )

    @pytest.mark.parametrize(
        ("filters", "message"),
        [
            (
                {"p_less": torch.ones(1, 2)},
                "'filters.p_less' needs one dimension, found shape [1, 2].",
            ),
            (
                {"p_less": torch.ones(2, dtype=torch.int64)},
                "'filters.p_less' needs a floating-point dtype, found torch.int64.",
            ),
            (
                {"p_less": torch.ones(3)},
                "the tensors need one length, found temperature 2, filters.p_less 3.",
            ),
            ([1.0], "'filters' needs {name: tensor [slots]}, found list. Pass a dict."),
        ],
    )
    def test_a_tensor_that_does_not_fit_is_refused(self, filters, message):
        refused(
            message, InvalidInputError, lambda: SamplingMetadata(temperature=torch.ones(2), filters=filters)
        )

    def test_a_check_that_raises_is_the_filter_s_fault(self, dists):
        dists.add_filter("return -value", head="def check(self, value): return {}[value]")
        with pytest.raises(
            FilterError, match=r"^The check of the filter 'acme' failed: it raised KeyError: 1 \(filter_acme"
        ):
            batch(SamplingParams(filters={"acme": 1}))


class TestOfABatch:
    def test_the_facts_name_the_filters_that_rows_ask_for(self):
        off = SamplingParams(filters={"top_n_sigma": 0.0, "p_less": 0})
        assert batch(SIGMA, PLAIN, CUTOFF).facts.filters == NAMES
        assert batch(SIGMA, PLAIN, CUTOFF).filters.keys() == {*NAMES}
        for plain in (batch(PLAIN), batch(off, PLAIN)):
            assert (plain.facts.filters, plain.filters, plain.facts.any_filters) == ((), None, False)

    def test_rows_without_the_filter_hold_its_value_off(self):
        values = batch(SIGMA, PLAIN, CUTOFF).filters
        assert values["top_n_sigma"].tolist() == [1.0, 0.0, 0.0]
        assert torch.equal(values["epsilon_cutoff"], torch.tensor([0.0, 0.0, 0.02]))
        assert {tensor.dtype for tensor in values.values()} == {torch.float32}

    def test_a_batch_that_does_not_ask_costs_no_operation(self):
        params = RowParameters.of(batch(PLAIN, SamplingParams(top_k=3)), 2, torch.device("cpu"))
        assert (params.filters, params.filter_names) == (None, ())

    def test_facts_that_rule_out_a_filter_leave_it_out(self, native):
        metadata = SamplingMetadata(
            filters={"top_n_sigma": torch.zeros(4), "p_less": torch.ones(4)},
            facts=BatchFacts(filters=("top_n_sigma",)),
        )
        assert metadata.facts.filters == ("top_n_sigma",)
        assert native.sample(LOGITS, metadata).threshold.tolist() == [-math.inf] * 4

    def test_a_floor_beside_top_p_makes_the_order_matter(self):
        assert batch(SamplingParams(top_p=0.9, filters={"p_less": 1})).facts.any_top_k_first
        assert not batch(SamplingParams(top_p=0.9)).facts.any_top_k_first

    def test_ready_tensors_keep_the_sets_of_requests(self, native):
        requests = [SIGMA, PLAIN, CUTOFF, SamplingParams(filters={"top_n_sigma": 2.0, "epsilon_cutoff": 0.1})]
        ready = {
            "top_n_sigma": torch.tensor([1.0, math.nan, 0.0, 2.0]),
            "epsilon_cutoff": torch.tensor([math.nan, 0.0, 0.02, 0.1], dtype=torch.float64),
        }
        expected = native.sample(LOGITS, batch(*requests)).threshold
        assert torch.equal(native.sample(LOGITS, SamplingMetadata(filters=ready)).threshold, expected)
        assert expected[1] == -math.inf
        assert (expected[[0, 2, 3]] > -math.inf).all()

    def test_rows_of_one_slot_share_its_filter(self, native):
        metadata = batch(SIGMA, PLAIN, row_index=[1, 0, 1, 0])
        whole = native.sample(LOGITS, batch(PLAIN, SIGMA, PLAIN, SIGMA))
        assert torch.equal(native.sample(LOGITS, metadata).threshold, whole.threshold)

    def test_new_positions_keep_the_filter(self):
        moved = batch(SamplingParams(seed=1, filters={"p_less": 1}), positions=[3]).with_positions([4])
        assert (moved.filters["p_less"].tolist(), moved.positions.tolist()) == ([1.0], [4])

    def test_a_changed_filter_invalidates_row_kinds(self):
        metadata = batch(SIGMA, PLAIN)
        assert metadata.row_kinds is not None
        assert replace(metadata, filters={"top_n_sigma": torch.ones(2)}).row_kinds is None
        assert replace(metadata, filters=None).row_kinds is None


class TestInSlots:
    def test_slots_draw_the_tokens_of_from_params(self, native):
        slots = RequestSlots(6, 8, V)
        requests = {
            4: SamplingParams(filters={"top_n_sigma": 1.5}, seed=3),
            1: SamplingParams(seed=4),
            0: SamplingParams(filters={"epsilon_cutoff": 0.05, "p_less": 1}, seed=5),
        }
        for slot, params in requests.items():
            slots.add(slot, params)
        metadata = slots.metadata([4, 1, 0, 4], [7, 8, 9, 10])
        assert metadata.facts.filters == ("epsilon_cutoff", "p_less", "top_n_sigma")
        needed = batch(*requests.values(), row_index=[0, 1, 2, 0], positions=[7, 8, 9, 10])
        one, other = native.sample(LOGITS, metadata), native.sample(LOGITS, needed)
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert torch.equal(one.threshold, other.threshold)

    def test_a_slot_forgets_the_filter_of_its_last_request(self, native):
        slots = RequestSlots(2, 8, V)
        slots.add(0, SIGMA)
        slots.add(1, SIGMA)
        memory = slots.num_bytes
        slots.remove(0)
        slots.add(0, PLAIN)
        found = native.sample(LOGITS[:2], slots.metadata([0, 1]))
        assert (found.threshold > -math.inf).tolist() == [False, True]
        slots.remove(1)
        assert slots.metadata([0]).filters is None
        assert slots.num_bytes == memory


class TestOfACall:
    def test_rows_of_a_sampler_without_the_moments_go_to_the_companion(self, dists):
        dists.add_plugin(
            "acme", plugin("acme", capabilities=EVERYTHING.replace("tokendraw.plugin.MOMENTS", "('std',)"))
        )
        sampler = tokendraw.load_sampler("acme", device="cpu")
        requests = [SIGMA, PLAIN, SamplingParams(filters={"p_less": 1}, seed=1), SIGMA]
        out = sampler.sample(LOGITS, batch(*requests, positions=range(4)))
        assert sampler.stats() == {"acme": 3, "native": 1}
        native = tokendraw.load_sampler("native", device="cpu")
        assert out.token_ids[2] == native.sample(LOGITS, batch(*requests, positions=range(4))).token_ids[2]
        assert out.token_ids[[0, 1, 3]].tolist() == LOGITS.argmax(-1)[[0, 1, 3]].tolist()

    def test_a_sampler_that_knows_nothing_of_filters_never_drops_one(self, dists, monkeypatch):
        dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING.partition(", row_moments")[0]))
        monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
        sampler = tokendraw.load_sampler("acme", device="cpu")
        assert sampler.sample(LOGITS, batch(*[PLAIN] * 4)).token_ids.tolist() == LOGITS.argmax(-1).tolist()
        with pytest.raises(
            SamplerUnavailableError, match=r"^'acme' cannot serve filters from moments, which this batch"
        ):
            sampler.sample(LOGITS, batch(SIGMA, PLAIN, PLAIN, PLAIN))

    def test_a_filter_without_moments_still_needs_a_sampler_that_applies_floors(self, dists):
        dists.add_filter("return -value", name="band")
        dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING.partition(", row_moments")[0]))
        sampler = tokendraw.load_sampler("acme", device="cpu", need=Need())
        sampler.sample(LOGITS, batch(SamplingParams(filters={"band": 2.0}), PLAIN, PLAIN, PLAIN))
        assert sampler.stats() == {"acme": 3, "native": 1}

    def test_a_filter_that_fails_raises_and_no_sampler_is_to_blame(self, dists):
        dists.add_filter("return moments.std[:1]", moments="'std',")
        dists.add_plugin("beta", plugin("beta", priority=-5, capabilities=EVERYTHING))
        sampler = tokendraw.load_sampler(device="cpu")
        bad = batch(SamplingParams(filters={"acme": 1.0}), PLAIN, PLAIN, PLAIN)
        for _ in range(2):
            with pytest.raises(
                PluginError, match=r"^The filter 'acme' failed, so nothing was drawn: its floor needs"
            ):
                sampler.sample(LOGITS, bad)
        assert sampler.name == "native"
        assert sampler.sample(LOGITS, batch(*[SIGMA] * 4)).token_ids.shape == (4,)
