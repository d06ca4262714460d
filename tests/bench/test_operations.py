"""``tokendraw bench --op``: what the commands of all operations share."""

import itertools
import json
from dataclasses import replace

import pytest

from command_line import call, documented_keys
from tokendraw_bench import operations

TINY = {
    "sample": ("--batch", 2, "--vocab-size", 1000, "--dtype", "bfloat16", "--sampler", "torch-sort"),
    "verify": ("--batch", 2, "--vocab-size", 256, "--dtype", "bfloat16", "--filters", "both"),
}


def bench(operation, *arguments):
    return call("bench", *(("--op", operation) if operation else ()), "--device", "cpu", *arguments)


@pytest.mark.parametrize(
    ("operation", "option", "said"),
    [
        (None, "--edits=all", "edits of logits. Add --op process_logits"),
        (None, "--verify-mode=coupled", "drafts to verify. Add --op verify"),
        ("process_logits", "--unseeded", "draws. Add --op sample or verify"),
        ("process_logits", "--gumbel-dtype=fp64", "draws. Add --op sample or verify"),
        ("process_logits", "--drafts=4", "drafts to verify. Add --op verify"),
    ],
)
def test_an_axis_of_another_operation_is_a_usage_error(operation, option, said):
    result = bench(operation, option)
    assert (result.stdout, result.exit_code) == ("", 2)
    assert result.stderr.endswith(f"'{option.partition('=')[0]}' is about {said}, or leave it out.\n")


@pytest.mark.parametrize(
    ("operation", "option"),
    [
        *(
            ("verify", option)
            for option in ("--op=draft", "--drafts=0", "--verify-mode=typical", "--batch=0")
        ),
        *(
            ("sample", option)
            for option in (
                *("--batch=0", "--vocab-size=127", "--dtype=float64", "--filters=top-q", "--family=round"),
                *("--repeats=2", "--preset=huge", "--gumbel-dtype=fp16", "--logprobs=-1", "--top-p=0"),
            )
        ),
    ],
)
def test_a_value_out_of_range_is_a_usage_error_with_the_option(operation, option):
    result = bench(operation, option)
    assert (result.stdout, result.exit_code) == ("", 2)
    assert f"Invalid value for '{option.partition('=')[0]}'" in result.stderr


@pytest.mark.parametrize("operation", ["sample", "verify"])
def test_cells_of_equal_logits_are_neighbours(operation):
    logits = [replace(cell, filters="") for cell in operations.get(operation).grid("design")]
    assert sum(here != there for here, there in itertools.pairwise(logits)) + 1 == len(set(logits))


@pytest.mark.parametrize(
    ("operation", "options", "axes"),
    [
        (
            "verify",
            (*TINY["verify"][:4], "--filters", "none", "--drafts", 3, "--verify-mode", "rejection"),
            {"batch": 2, "drafts": 3, "mode": "rejection", "nbytes": 2 * (4 + 3) * 256 * 4},
        ),
    ],
)  # fmt: skip
def test_json_has_the_axes_of_the_operation_under_documented_keys(operation, options, axes, fixed):
    found = json.loads(bench(operation, *options, "--sampler", "native", "--json").stdout)
    assert found["operation"] == operation
    assert found["command"].startswith(
        " ".join(["tokendraw bench --op", operation, *map(str, options), "--sampler native"])
    )
    assert "temperature" in found
    (cell,) = found["cells"]
    assert {name: cell[name] for name in axes} == axes
    assert {*found, *cell} <= documented_keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "more"),
    [
        ("sample", ()),
        ("verify", ("--seeded",)),
        ("verify", ("--unseeded",)),
    ],
)
def test_a_short_run_by_the_clock_on_the_wall(operation, more):
    result = bench(operation, *TINY[operation], "--sampler", "native", "--repeats", 3, *more, "--json")
    found, floor = json.loads(result.stdout), operations.get(operation).floor
    assert found["method"] == "wall clock over buffers of 128 MiB in rotation"
    assert (result.stderr, result.exit_code) == (found["busy"] and f"{found['busy']}\n", 0)
    for cell in found["cells"]:
        for entry in (cell[floor], *cell["entries"].values()):
            assert 0 < entry["q1_us"] <= entry["us"] <= entry["q3_us"]
            assert entry["reason"] == ""
