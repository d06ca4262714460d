"""The kit asks for advertised capabilities alone: samplers with few capabilities are green in every line."""

from dataclasses import replace

import pytest
import torch

from numpy_sampler import modest
from tokendraw_testing import Effort, Subject, run
from tokendraw_testing.kit.report import Status

LEAST = replace(
    Effort.tiny(),
    fewer=32,
    draws=16,
    tiled_draws=12,
    most_draws=12,
    tail_vocab_size=2049,
    crossed_sizes=(33, 1025),
    crossed_rows=8,
)
"""Enough to ask for everything: a call that asks for too much raises."""
NOTHING = {
    "dtypes": ("float32",),
    "logprobs_modes": (),
    "filters": (),
    "seeding": "none",
    "greedy": False,
    "gumbel_dtypes": ("fp32",),
    "valid_flag": False,
    "batch_invariant": False,
}
UNSEEDED = {"seeding": "launch", "batch_invariant": False}
SCALAR = {"filters": (("top_k", "scalar"), ("top_p", "scalar"), ("min_p", "per_row"))}
EXACTLY_K = {
    "tie_rule": "exact_k",
    "filter_orders": ("top_k_first",),
    "logprobs_modes": (),
    "threshold": False,  # no value divides tokens that tie with the k-th
}
PROMISES = {
    "nothing at all": NOTHING,
    "one value of a filter for all rows, no seeds": SCALAR | UNSEEDED,
    "one seed a call": UNSEEDED,
    "exactly k, no logprobs, float64 noise alone": EXACTLY_K | {"gumbel_dtypes": ("fp64",)},
    "k up to 50, V up to 3000, no float16, one order": {
        "max_top_k": 50,
        "max_vocab_size": 3000,
        "dtypes": ("float32", "bfloat16"),
        "filter_orders": ("joint",),
    },
}
DENSE = {
    "verify_modes": ("rejection",),
    "draft_kinds": ("probs",),
    "ragged_drafts": False,
    "placeholder_drafts": False,
}
NARROW = (
    "crossed requests",
    "crossed logprobs",
    "crossed distributions",
    "noise of distant rows",
    "last ids",
    "far NaN and infinities",
    "near ties",
    "verify crossing",
    "verify near distributions",
    "verify shared noise",
    "verify unseeded acceptance",
)


def assert_green(promises, verify, only=None):
    report = run(modest(LEAST, verify=verify, **promises), only=only)
    assert [(line.name, line.detail) for line in report.failed] == []
    return [line.name for line in report.lines if line.status is Status.PASSED]


@pytest.mark.slow
@pytest.mark.parametrize("promises", PROMISES)
def test_a_sampler_and_a_verifier_get_advertised_calls_alone(promises):
    passed = assert_green(PROMISES[promises], DENSE)
    assert {"crossed requests", "last ids", "verify crossing"} <= set(passed)


@pytest.mark.parametrize("size", [1, 20])
@pytest.mark.slow
def test_crossed_lines_stay_within_the_smallest_vocabularies(size):
    assert_green({"max_vocab_size": size}, DENSE, NARROW)


def test_a_sampler_that_draws_while_it_is_built_may_be_built_by_any_line():
    subject = modest(Effort.tiny())

    def rehearsed(operation, need):
        torch.rand(3)
        return subject.built(operation, need)

    result = Subject(
        "rehearsed", capabilities=subject.capabilities, device="cpu", build=rehearsed, effort=subject.effort
    )
    (line,) = run(result, only="torch.manual_seed").lines
    assert line.status is Status.PASSED, line
