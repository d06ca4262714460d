"""Every check, with the whole text of its reason."""

from dataclasses import fields, replace

import pytest

from fake_candidates import (
    A100,
    EVERYTHING,
    GFX1250,
    H100,
    LAPTOP,
    MI300X,
    ORIN_NANO,
    RTX5090,
    T4,
    V100,
    candidate,
)
from tokendraw import Need, SamplerUnavailableError, resolve
from tokendraw.plugin import Capabilities, Host
from tokendraw.resolution import Choice

NEED = Need()


def resolved(capabilities, host=LAPTOP, need=NEED, **options):
    return resolve([candidate("acme", 0, capabilities)], host, need, Choice(), **options)


def reason(*arguments, **options):
    """Return the reason against a sampler with these capabilities; None if it is chosen."""
    try:
        resolved(*arguments, **options)
    except SamplerUnavailableError as refusal:
        return refusal.decisions[0].reason
    return None


@pytest.mark.parametrize("host", [LAPTOP, T4, H100, MI300X, GFX1250], ids=str)
def test_a_sampler_that_can_do_everything_has_no_reason_against_it(host):
    greatest = Need(
        filter_orders=("top_k_first", "joint"),
        gumbel_dtype="fp64",
        dtype="float16",
        vocab_size=262145,
        valid_flag=True,
        threshold=True,
        graph_safe=True,
        sync_free=True,
        batch_invariant=True,
        seeding="counter",
        tie_rule="value",
    )
    assert reason(EVERYTHING, host, greatest) is None


@pytest.mark.parametrize("offered", ["value", "exact_k"])
@pytest.mark.parametrize("needed", ["either", None])
def test_a_caller_who_does_not_mind_ties_is_served_by_either_rule(offered, needed):
    assert reason(Capabilities(tie_rule=offered), need=Need(tie_rule=needed)) is None


@pytest.mark.parametrize(
    ("offered", "host", "expected"),
    [
        ({"device_types": ("cuda",)}, LAPTOP, "needs a cuda device, found cpu"),
        ({"device_types": ("cuda", "rocm")}, LAPTOP, "needs a cuda or rocm device, found cpu"),
        ({"device_types": ("cuda",)}, MI300X, "needs a cuda device, found rocm"),
        ({"compute_capability": ((8, 0), None)}, T4, "needs compute capability 8.0 or later, found 7.5"),
        ({"compute_capability": ((7, 5), (9, 0))}, V100, "needs compute capability 7.5 to 9.0, found 7.0"),
        (
            {"compute_capability": ((7, 5), (9, 0))},
            RTX5090,
            "needs compute capability 7.5 to 9.0, found 12.0",
        ),
        (
            {"compute_capability": ((8, 0), None)},
            Host(device_type="cuda"),
            "needs compute capability 8.0 or later, found none reported",
        ),
        ({"rocm_archs": ("gfx90a", "gfx942")}, GFX1250, "needs gfx90a or gfx942, found gfx1250"),
        (
            {"rocm_archs": ("gfx942",)},
            Host(device_type="rocm"),
            "needs gfx942, found no architecture reported",
        ),
        ({"min_sm_count": 17}, ORIN_NANO, "needs 17 SMs or more, found 10"),
    ],
)
def test_what_the_machine_lacks_is_said_as_needed_against_found(offered, host, expected):
    assert reason(replace(EVERYTHING, **offered), host) == expected


@pytest.mark.parametrize(
    ("offered", "host"),
    [
        ({"compute_capability": ((8, 0), (9, 0))}, A100),
        ({"compute_capability": ((8, 0), (9, 0))}, H100),
        ({"compute_capability": ((8, 0), None)}, LAPTOP),
        ({"rocm_archs": ("gfx942",)}, MI300X),
        ({"rocm_archs": ("gfx942",)}, H100),
        ({"min_sm_count": 132}, H100),
        ({"min_sm_count": 17}, Host(device_type="cuda", compute_capability=(9, 0))),
    ],
)
def test_bounds_are_included_and_what_is_of_another_kind_of_device_is_not_asked(offered, host):
    assert reason(replace(EVERYTHING, **offered), host) is None


@pytest.mark.parametrize(
    ("offered", "need", "expected"),
    [
        (
            {"dtypes": ("float32", "bfloat16")},
            Need(dtype="float16"),
            "the request needs logits in float16, found float32 and bfloat16",
        ),
        (
            {"max_vocab_size": 65536},
            Need(vocab_size=128256),
            "the request needs a vocabulary of 128256, found a limit of 65536",
        ),
        ({"filter_orders": ("joint",)}, Need(), "the request needs filter order top_k_first, found joint"),
        ({"gumbel_dtypes": ("fp32",)}, Need(gumbel_dtype="fp64"), "the request needs fp64 noise, found fp32"),
        ({"seeding": "launch"}, Need(seeding="counter"), "the request needs counter seeding, found launch"),
        ({"seeding": "none"}, Need(seeding="launch"), "the request needs launch seeding, found none"),
        ({"tie_rule": "exact_k"}, Need(tie_rule="value"), "the request needs tie rule value, found exact_k"),
        (
            {"graph_safe": False, "sync_free": False},
            Need(graph_safe=True, sync_free=True),
            "the request needs graph-safe calls and sync-free calls, found no such promise",
        ),
        (
            {"valid_flag": False},
            Need(valid_flag=True),
            "the request needs a valid flag, found no such promise",
        ),
        (
            {"threshold": False},
            Need(threshold=True),
            "the request needs thresholds, found no such promise",
        ),
        (
            {"batch_invariant": False},
            Need(batch_invariant=True),
            "the request needs batch-invariant draws, found no such promise",
        ),
    ],
)
def test_what_the_request_lacks_is_said_as_needed_against_found(offered, need, expected):
    assert reason(replace(EVERYTHING, **offered), need=need) == expected


def test_a_limit_that_no_request_names_is_no_reason():
    assert reason(replace(EVERYTHING, max_vocab_size=10, max_top_k=5, dtypes=("float16",))) is None


def test_one_of_two_filter_orders_is_enough_since_a_companion_serves_the_other():
    need = Need(filter_orders=("top_k_first", "joint"))
    assert reason(replace(EVERYTHING, filter_orders=("joint",)), need=need) is None


def test_an_operation_that_is_not_offered_is_the_first_reason():
    offered = replace(EVERYTHING, device_types=("cuda",))
    assert reason(offered, need=None, operation="verify") == "needs the operation verify, found sample"


def test_the_machine_is_looked_at_before_the_request():
    offered = replace(EVERYTHING, device_types=("cuda",), gumbel_dtypes=("fp32",))
    assert reason(offered, LAPTOP, Need(gumbel_dtype="fp64")) == "needs a cuda device, found cpu"


def test_processed_logprobs_are_the_business_of_the_sampler_that_filters():
    bare = replace(EVERYTHING, logprobs_modes=("raw_logprobs", "raw_logits"))
    expected = "the request needs processed_logits, found raw_logprobs and raw_logits"
    assert reason(bare, need=Need(logprobs_mode="processed_logits")) == expected
    for mode in ("raw_logprobs", "raw_logits", "temperature_logprobs"):
        assert reason(replace(EVERYTHING, logprobs_modes=()), need=Need(logprobs_mode=mode)) is None


def test_every_field_of_a_need_is_looked_at_by_some_check():
    """A need without a check would be granted in silence."""
    demanding = {
        "logprobs_mode": "processed_logprobs",
        "filter_orders": ("joint",),
        "gumbel_dtype": "fp64",
        "dtype": "float16",
        "vocab_size": 2**20,
        "valid_flag": True,
        "threshold": True,
        "graph_safe": True,
        "sync_free": True,
        "batch_invariant": True,
        "seeding": "counter",
        "tie_rule": "exact_k",
    }
    # One bounds what callers ask for, the other spares work, whoever serves them.
    of_batches = {"max_logprobs", "logprob_ranks"}
    assert set(demanding) == {field.name for field in fields(Need)} - of_batches
    poor = Capabilities(max_vocab_size=1000)
    assert reason(poor) is None
    for field, value in demanding.items():
        assert reason(poor, need=replace(NEED, **{field: value})), field


def test_the_kinds_of_rows_beyond_a_sampler_are_named():
    poor = Capabilities(max_top_k=1024, max_vocab_size=65536, filters=(("top_k", "scalar"),))
    assert resolved(poor).beyond == (
        "greedy rows",
        "seeded rows",
        "top_k per row",
        "top_p per row",
        "min_p per row",
        "typical_p per row",
        "xtc per row",
        "filters from moments",
        "a top_k above its limit",
        "rows of a vocabulary above its limit",
        "filter order joint",
        "filter order temperature_last",
        "rows that ask for raw_logprobs",
    )


def test_nothing_is_beyond_a_sampler_that_can_do_everything_nor_a_known_vocabulary_within_its_limit():
    assert resolved(EVERYTHING).beyond == ()
    assert resolved(replace(EVERYTHING, max_vocab_size=65536), need=Need(vocab_size=50257)).beyond == ()
