"""The decision as a pure function: other hosts, ranking and companions."""

from dataclasses import replace

import pytest

from fake_candidates import (
    ALL,
    EVERYTHING,
    FLASHINFER,
    H100,
    LAPTOP,
    MI300X,
    NATIVE,
    TRITON_GUMBEL,
    candidate,
)
from tokendraw import Need, SamplerUnavailableError, operations, resolve
from tokendraw.backends.resolution.decide import decide
from tokendraw.plugin import VerifyCapabilities
from tokendraw.resolution import Choice

NEED = Need()
DEFAULT = Choice()
UNSUPPORTED = (
    "greedy rows, seeded rows, typical_p per row, xtc per row, filters from moments, filter order temperature_last, "
    "rows that ask for raw_logprobs"
)


def asked(name, source="TOKENDRAW_SAMPLER"):
    return Choice(sampler=name, source=source)


def test_both_filter_orders_on_an_mi300x_make_aiter_the_best_beside_its_companion():
    both = Need(filter_orders=("top_k_first", "joint"))
    resolution = resolve(ALL, MI300X, both, DEFAULT)
    assert (resolution.chosen, resolution.companion) == ("aiter", "triton-gumbel")


# Ranking


def test_priority_goes_before_the_name_and_the_name_decides_between_equals():
    equals = [candidate(name, 5, EVERYTHING) for name in ("b", "c", "a")]
    resolution = resolve([*equals, candidate("z", 6, EVERYTHING)], LAPTOP, NEED, DEFAULT)
    assert [d.name for d in resolution.decisions] == ["z", "a", "b", "c"]


def test_the_users_order_goes_before_every_priority():
    choice = Choice(priority=("native", "triton-gumbel"))
    resolution = resolve(ALL, H100, NEED, choice)
    assert [(d.name, d.reason) for d in resolution.decisions] == [
        ("native", "best available, place 1 in the user's order"),
        ("triton-gumbel", "available, place 2 in the user's order"),
        ("flashinfer", "available, priority 80"),
        ("aiter", "needs a rocm device, found cuda"),
    ]
    assert resolution.warnings == ()


# Processed logprobs


def test_an_explicit_choice_without_processed_logprobs_and_without_a_companion_is_refused():
    need = Need(logprobs_mode="processed_logprobs")
    with pytest.raises(SamplerUnavailableError) as refusal:
        resolve([FLASHINFER], H100, need, asked("flashinfer", "the argument sampler="))
    assert str(refusal.value) == (
        "'flashinfer', asked for by the argument sampler=, cannot serve the operation 'sample' on "
        "cuda (H100), compute capability 9.0, 132 SMs: "
        "the request needs processed_logprobs, found nothing. "
        "Nothing else is available here; run `pip install ./plugins/native` in tokendraw's checkout. "
        "Leave out sampler= to let tokendraw choose."
    )


# Companions


def test_a_sampler_that_serves_every_row_has_no_companion():
    resolution = resolve([NATIVE, TRITON_GUMBEL], H100, NEED, DEFAULT)
    assert (resolution.chosen, resolution.companion, resolution.beyond) == ("triton-gumbel", None, ())


def test_a_better_ranked_candidate_that_lacks_the_same_rows_is_no_companion():
    unseeded = candidate("unseeded", 70, replace(EVERYTHING, seeding="launch"))
    resolution = resolve([FLASHINFER, unseeded, NATIVE], H100, NEED, DEFAULT)
    assert (resolution.chosen, resolution.companion) == ("flashinfer", "native")


def test_a_companion_has_to_meet_the_need_as_well():
    half = candidate("half", 60, replace(EVERYTHING, gumbel_dtypes=("fp32",)))
    main = candidate("main", 70, replace(EVERYTHING, greedy=False))
    need = Need(gumbel_dtype="fp64")
    assert resolve([main, half, NATIVE], LAPTOP, need, DEFAULT).companion == "native"
    assert resolve([main, half, NATIVE], LAPTOP, NEED, DEFAULT).companion == "half"


def test_whoever_serves_a_vocabulary_above_the_limit_serves_every_kind_of_row_in_it():
    main = candidate("main", 9, replace(EVERYTHING, max_vocab_size=100))
    half = candidate("half", 5, replace(EVERYTHING, seeding="none"))
    assert resolve([main, half, NATIVE], LAPTOP, NEED, DEFAULT).companion == "native"


def test_without_companions_the_kinds_beyond_the_chosen_one_are_served_by_nobody():
    sample = operations.find_operation("sample")
    resolution = decide(ALL, H100, NEED, DEFAULT, operation=sample, companions=False)
    assert (resolution.chosen, resolution.companion) == ("flashinfer", None)
    assert resolution.beyond == decide(ALL, H100, NEED, DEFAULT, operation=sample).beyond
    assert resolution.explain().splitlines()[1] == (
        f"  beyond flashinfer ({UNSUPPORTED}): are served by no plugin here"
    )


def test_a_sampler_alone_that_lacks_processed_logprobs_cannot_be_had_for_them():
    processed, flashinfer = Need(logprobs_mode="processed_logprobs"), asked("flashinfer")
    sample = operations.find_operation("sample")
    assert decide(ALL, H100, processed, flashinfer, operation=sample).companion == "triton-gumbel"
    with pytest.raises(SamplerUnavailableError, match="the request needs processed_logprobs, found nothing"):
        decide(ALL, H100, processed, flashinfer, operation=sample, companions=False)


def test_each_operation_decides_by_its_own_capabilities():
    native = NATIVE.info.operations["sample"]
    verifies = replace(
        FLASHINFER, info=replace(FLASHINFER.info, operations={"verify": VerifyCapabilities.of(native)})
    )
    everything = VerifyCapabilities.of(
        native,
        verify_modes=("rejection", "coupled", "block"),
        draft_kinds=("probs", "logits", "chosen"),
        ragged_drafts=True,
        placeholder_drafts=True,
    )
    reference = replace(
        NATIVE, info=replace(NATIVE.info, operations={"sample": native, "verify": everything})
    )
    assert resolve([reference, verifies], H100, NEED, DEFAULT).explain() == (
        "sample on cuda (H100), compute capability 9.0, 132 SMs: native\n"
        "  + native: best available, priority 0\n"
        "  - flashinfer: needs the operation sample, found verify"
    )
    assert resolve([reference, verifies], H100, NEED, DEFAULT, operation="verify").explain() == (
        "verify on cuda (H100), compute capability 9.0, 132 SMs: flashinfer\n"
        "  beyond flashinfer (the mode rejection, the mode coupled, the mode block, drafts with probabilities, "
        "drafts with logits, drafts that were not drawn, requests with different numbers of drafts, "
        "placeholders among drafts): "
        "go to native\n"
        "  + flashinfer: best available, priority 80\n"
        "  + native: available, priority 0; serves the rows that flashinfer cannot"
    )
