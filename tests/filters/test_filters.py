"""Filters from moments: floors and their faults, requests, ready tensors and slots, routing, and what follows."""

import math
from dataclasses import replace

import pytest
import torch

import call_tables
import tokendraw
from fake_dists import EVERYTHING, plugin
from tokendraw import (
    BatchFacts,
    Need,
    PluginError,
    RequestSlots,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
)
from tokendraw.filters import FilterError, RowMoments, combined_floor
from tokendraw.row_parameters import RowParameters

INF, NAN = math.inf, math.nan
V = 60
LOGITS = 2 * torch.randn(4, V, generator=torch.Generator().manual_seed(0))
SIGMA, CUTOFF, PLAIN = (
    SamplingParams(filters=f) for f in ({"top_n_sigma": 1.0}, {"epsilon_cutoff": 0.02}, None)
)
NAMES = ("epsilon_cutoff", "top_n_sigma")
MEAN = torch.tensor([-2.0, -3.0, NAN, -INF, 5.0])


@pytest.fixture(scope="module")
def native():
    need = Need(threshold=True, logprobs_mode="processed_logprobs")
    return tokendraw.load_sampler("native", device="cpu", need=need)


@pytest.fixture
def acme(dists):
    """Install the filter ``acme`` with a body of its floor."""
    return lambda body: dists.add_filter(body, moments="'mean',", head="off = -1.0")


def batch(*requests, **options):
    return SamplingMetadata.from_params(requests, **options)


# Floors, and faults of a filter


def floors(values, names=("acme",), **moments):
    return combined_floor(
        names, torch.tensor(values).view(-1, len(names)), RowMoments(mean=MEAN.clone(), **moments)
    )


def test_a_floor_is_clamped_and_rows_with_the_value_off_or_nan_do_not_ask(acme):
    acme("return moments.mean")
    assert floors([1.0] * 5).tolist() == [-2.0, -3.0, -INF, -INF, 0.0]
    assert floors([-1.0, NAN, 1.0, 1.0, -1.0]).tolist() == [-INF] * 5
    std = torch.tensor([1.0, 7.0, 4.0, 1.0, 1.0])
    values = [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [-1.0, 0.0]]
    found = floors(values, ("acme", "top_n_sigma"), std=std)  # the highest counts
    assert found.tolist() == [-1.0, -3.0, -4.0, -INF, -INF]


SHAPE = "its floor needs shape [5], torch.float32 on cpu, found"
FAULTS = {
    "its floor raised ZeroDivisionError: by 0 (filter_acme_0.py:12)": "raise ZeroDivisionError('by 0')",
    "its floor raised SystemExit: 3 (filter_acme_0.py:12)": "raise SystemExit(3)",
    "its floor changed 'mean' in place": "return moments.mean.mul_(-1)",
    "its floor changed 'value' in place": "return value.neg_()",
    "its floor needs to be a tensor, found None": "return None",
    "its floor needs to be a tensor, found float": "return 0.5",
    f"{SHAPE} [1], torch.float32 on cpu": "return moments.mean[:1]",
    f"{SHAPE} [5], torch.float64 on cpu": "return moments.mean.double()",
    f"{SHAPE} [5], torch.float32 on meta": "return moments.mean.to('meta')",
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_fault_of_a_filter_is_told_with_its_name(acme, reason):
    acme(FAULTS[reason])
    with pytest.raises(FilterError) as caught:
        floors([1.0] * 5)
    assert str(caught.value) == (
        f"The filter 'acme' failed, so nothing was drawn: {reason}. Report it to the author of the filter, or leave "
        "it out of SamplingParams.filters."
    )


def test_in_inference_mode_a_filter_that_changes_its_arguments_changes_copies(acme):
    """Inference tensors count no changes."""
    acme("return value.neg_().mul_(moments.mean.abs_())")
    with torch.inference_mode():
        values, moments = torch.ones(5, 1), RowMoments(mean=MEAN.clone())
        found = combined_floor(("acme",), values, moments)
    assert found.tolist() == [-2.0, -3.0, -INF, -INF, -5.0]
    assert (values == 1).all()
    assert moments.mean.tolist()[:2] == [-2.0, -3.0]


def test_a_filter_that_fails_or_whose_check_does_raises_and_no_sampler_is_to_blame(dists):
    dists.add_filter("return moments.std[:1]", moments="'std',")
    dists.add_filter(
        "return -value",
        name="beta",
        head="def check(self, value): return {}[value]",
        distribution="beta-filters",
    )
    dists.add_plugin("beta", plugin("beta", priority=-5, capabilities=EVERYTHING))
    sampler = tokendraw.load_sampler(device="cpu")
    for _ in range(2):
        with pytest.raises(
            PluginError, match=r"^The filter 'acme' failed, so nothing was drawn: its floor needs"
        ):
            sampler.sample(LOGITS, batch(SamplingParams(filters={"acme": 1.0}), PLAIN, PLAIN, PLAIN))
    assert sampler.name == "native"
    assert sampler.sample(LOGITS, batch(*[SIGMA] * 4)).token_ids.shape == (4,)
    with pytest.raises(
        FilterError, match=r"^The check of the filter 'beta' failed: it raised KeyError: 1 \(filter_beta"
    ):
        batch(SamplingParams(filters={"beta": 1}))


# Requests, and ready tensors


def request(**filters):
    """Check the filters of a request, which are refused in a batch and in a slot too; a single value may be no dict."""
    bad = SamplingParams(filters=filters.pop("value", filters))
    texts = []
    for where, door in (
        ("", bad.check),
        (" of row 1", lambda: batch(PLAIN, bad)),
        (" of slot 2", lambda: RequestSlots(3, 8, V).add(2, bad)),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared)
            door()
        texts.append(str(caught.value).replace(f"'{where}", "'", 1))
        assert where in str(caught.value)
    assert len(set(texts)) == 1
    bad.check()


def ready(filters):
    return SamplingMetadata(temperature=torch.ones(2), filters=filters)


def test_what_is_refused_with_which_words():
    table = call_tables.Table(__file__, "refusals.txt")
    names = {"request": request, "ready": ready, "INF": INF, "NAN": NAN, "torch": torch}
    assert table.found(lambda: dict(names)) == table.text


def test_the_facts_and_the_columns_of_a_batch_name_the_filters_that_rows_ask_for():
    metadata = batch(SIGMA, PLAIN, CUTOFF)
    assert (metadata.facts.filters, metadata.filters.keys()) == (NAMES, {*NAMES})
    assert metadata.filters["top_n_sigma"].tolist() == [
        1.0,
        0.0,
        0.0,
    ]  # a row that does not ask holds its value off
    assert torch.equal(metadata.filters["epsilon_cutoff"], torch.tensor([0.0, 0.0, 0.02]))
    off = SamplingParams(filters={"top_n_sigma": 0.0, "p_less": 0})
    for plain in (batch(PLAIN), batch(off, PLAIN)):
        assert (plain.facts.filters, plain.filters, plain.facts.any_filters) == ((), None, False)
        params = RowParameters.of(plain, plain.num_rows, torch.device("cpu"))
        assert (params.filters, params.filter_names) == (None, ())
    moved = batch(SamplingParams(seed=1, filters={"p_less": 1}), positions=[3]).with_positions([4])
    assert (moved.filters["p_less"].tolist(), moved.positions.tolist()) == ([1.0], [4])
    assert metadata.row_kinds is not None
    for other in ({"top_n_sigma": torch.ones(3)}, None):
        assert replace(metadata, filters=other).row_kinds is None


def test_ready_tensors_rows_of_slots_and_an_empty_batch_keep_the_sets_of_requests(native):
    requests = [SIGMA, PLAIN, CUTOFF, SamplingParams(filters={"top_n_sigma": 2.0, "epsilon_cutoff": 0.1})]
    tensors = {
        "top_n_sigma": torch.tensor([1.0, NAN, 0.0, 2.0]),
        "epsilon_cutoff": torch.tensor([NAN, 0.0, 0.02, 0.1], dtype=torch.float64),
    }
    expected = native.sample(LOGITS, batch(*requests)).threshold
    assert (expected > -INF).tolist() == [True, False, True, True]
    assert torch.equal(native.sample(LOGITS, SamplingMetadata(filters=tensors)).threshold, expected)
    ruled_out = SamplingMetadata(filters=tensors, facts=BatchFacts(filters=("p_less",)))
    assert native.sample(LOGITS, ruled_out).threshold.tolist() == [-INF] * 4
    whole = native.sample(LOGITS, batch(PLAIN, SIGMA, PLAIN, SIGMA)).threshold
    assert torch.equal(native.sample(LOGITS, batch(SIGMA, PLAIN, row_index=[1, 0, 1, 0])).threshold, whole)
    out = native.sample(LOGITS[:0], SamplingMetadata(filters=dict.fromkeys(NAMES, torch.empty(0))))
    assert out.token_ids.shape == out.threshold.shape == (0,)


def test_slots_draw_as_from_params_and_forget_the_filter_of_their_last_request(native):
    slots, own = (
        RequestSlots(6, 8, V),
        {4: {"top_n_sigma": 1.5}, 1: None, 0: {"epsilon_cutoff": 0.05, "p_less": 1}},
    )
    requests = {slot: SamplingParams(filters=filters, seed=slot) for slot, filters in own.items()}
    for slot, params in requests.items():
        slots.add(slot, params)
    metadata, memory = slots.metadata([4, 1, 0, 4], [7, 8, 9, 10]), slots.num_bytes
    assert metadata.facts.filters == ("epsilon_cutoff", "p_less", "top_n_sigma")
    needed = batch(*requests.values(), row_index=[0, 1, 2, 0], positions=[7, 8, 9, 10])
    one, other = native.sample(LOGITS, metadata), native.sample(LOGITS, needed)
    assert one.token_ids.tolist() == other.token_ids.tolist()
    assert torch.equal(one.threshold, other.threshold)
    slots.remove(4)
    slots.add(4, PLAIN)
    found = native.sample(LOGITS[:2], slots.metadata([4, 0], [1, 2]))
    assert (found.threshold > -INF).tolist() == [False, True]
    slots.remove(0)
    slots.remove(1)
    assert (slots.metadata([4]).filters, slots.num_bytes) == (None, memory)


# Routing


def test_rows_of_a_sampler_without_the_moments_go_to_the_companion(dists):
    capabilities = EVERYTHING.replace("tokendraw.plugin.MOMENTS", "('std',)")
    dists.add_plugin("acme", plugin("acme", capabilities=capabilities))
    sampler = tokendraw.load_sampler("acme", device="cpu")
    metadata = batch(SIGMA, PLAIN, SamplingParams(filters={"p_less": 1}, seed=1), SIGMA, positions=range(4))
    out = sampler.sample(LOGITS, metadata)
    assert sampler.stats() == {"acme": 3, "native": 1}
    native = tokendraw.load_sampler("native", device="cpu")
    assert out.token_ids[2] == native.sample(LOGITS, metadata).token_ids[2]
    assert out.token_ids[[0, 1, 3]].tolist() == LOGITS.argmax(-1)[[0, 1, 3]].tolist()


def test_a_sampler_that_knows_nothing_of_filters_never_drops_one(dists, monkeypatch):
    dists.add_filter("return -value", name="band")  # without moments, it needs a sampler that applies floors
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING.partition(", row_moments")[0]))
    sampler = tokendraw.load_sampler("acme", device="cpu", need=Need())
    sampler.sample(LOGITS, batch(SamplingParams(filters={"band": 2.0}), PLAIN, PLAIN, PLAIN))
    assert sampler.stats() == {"acme": 3, "native": 1}
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
    alone = tokendraw.load_sampler("acme", device="cpu")
    assert alone.sample(LOGITS, batch(*[PLAIN] * 4)).token_ids.tolist() == LOGITS.argmax(-1).tolist()
    with pytest.raises(
        SamplerUnavailableError, match=r"^'acme' cannot serve filters from moments, which this batch"
    ):
        alone.sample(LOGITS, batch(SIGMA, PLAIN, PLAIN, PLAIN))


# Moments, and what follows from a floor
