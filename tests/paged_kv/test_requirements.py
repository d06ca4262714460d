"""The requirements of a step on the host: the whole table, and refusals."""

import itertools

import pytest

import tokendraw
from tokendraw.paged_kv import Requirements, requirements

FIELDS = (
    "num_prefills",
    "num_decodes",
    "prefill_on_device",
    "decode_on_device",
    "dcp",
    "causal",
    "num_speculative",
)
"""Axes of the table, with ``upper_bound_known`` as the last one."""
EVERY = list(
    itertools.product(
        (0, 3), (0, 5), (False, True), (False, True), (False, True), (False, True), (0, 2), (False, True)
    )
)
ON_HOST = {
    # (prefills, decodes): kernels whose indptr the host builds, of (prefill_on_device, decode_on_device)
    (False, False): frozenset(),
    (True, False): frozenset({(False, False), (False, True)}),
    (False, True): frozenset({(False, False), (True, False)}),
    (True, True): frozenset({(False, False), (False, True), (True, False)}),
}
"""Which kinds of kernels make a batch need pages from the host, for each kind of batch."""
WAYS = {
    # (num_speculative > 0, upper_bound_known): what is left where lengths are needed on the host
    (False, False): "sync",
    (False, True): "upper_bound",
    (True, False): "sync",
    (True, True): "sync",
}


def expected(row):
    """The entry of a row, looked up."""
    prefills, decodes, prefill_on_device, decode_on_device, dcp, causal, speculative, bound = row
    pages = (prefill_on_device, decode_on_device) in ON_HOST[prefills > 0, decodes > 0]
    needs_lengths = {pages, dcp, not causal} != {False}
    return ("none", WAYS[speculative > 0, bound])[needs_lengths], pages


@pytest.mark.parametrize("row", EVERY, ids=lambda row: "".join(str(int(value)) for value in row))
def test_the_table(row):
    inputs = dict(zip((*FIELDS, "upper_bound_known"), row, strict=True))
    expected_needs, pages = expected(row)
    assert requirements(**inputs) == Requirements(host_seq_lens=expected_needs, page_indices=pages)


def test_the_table_is_complete():
    """The number of rows with each requirement, of 256, counted by hand from the three rules."""
    found = [requirements(**dict(zip((*FIELDS, "upper_bound_known"), row, strict=True))) for row in EVERY]
    # Pages: 0 of 4 kinds of kernels without requests, 2 with one kind of them, 3 with both, times 16 others.
    assert sum(entry.page_indices for entry in found) == 16 * (0 + 2 + 2 + 3)
    # No lengths: one quarter (no dcp, causal) of the rest; of what is left, one in four has a bound.
    assert sum(entry.host_seq_lens == "none" for entry in found) == (256 - 112) // 4
    assert sum(entry.host_seq_lens == "upper_bound" for entry in found) == (256 - 36) // 4
    assert sum(entry.host_seq_lens == "sync" for entry in found) == 165


@pytest.mark.parametrize(
    ("inputs", "expected_needs"),
    [
        # A mixed batch of a backend that takes tensors: nothing, also with drafts.
        ({"prefill_on_device": True, "decode_on_device": True, "num_speculative": 3}, ("none", False)),
        # Prefills by a native plan: the pages, and the lengths, which the host counts where nothing is rejected.
        ({"prefill_on_device": False, "decode_on_device": True}, ("sync", True)),
        (
            {"prefill_on_device": False, "decode_on_device": True, "upper_bound_known": True},
            ("upper_bound", True),
        ),
        (
            {
                "prefill_on_device": False,
                "decode_on_device": True,
                "upper_bound_known": True,
                "num_speculative": 1,
            },
            ("sync", True),
        ),
        # Pages divided between ranks are counted by the host.
        ({"prefill_on_device": True, "decode_on_device": True, "dcp": True}, ("sync", False)),
        ({"prefill_on_device": True, "decode_on_device": True, "causal": False}, ("sync", False)),
    ],
)
def test_requirements_of_engines(inputs, expected_needs):
    found = requirements(num_prefills=2, num_decodes=30, **inputs)
    assert (found.host_seq_lens, found.page_indices) == expected_needs


def test_flags_have_defaults():
    plain = {"num_prefills": 0, "num_decodes": 1, "prefill_on_device": False, "decode_on_device": True}
    assert requirements(**plain) == requirements(
        **plain, dcp=False, causal=True, num_speculative=0, upper_bound_known=False
    )


@pytest.mark.parametrize("name", ["num_prefills", "num_decodes", "num_speculative"])
@pytest.mark.parametrize("found", [-1, True, 1.0, "2", None])
def test_a_count_that_cannot_be_is_refused(name, found):
    inputs = {"num_prefills": 1, "num_decodes": 1, "prefill_on_device": True, "decode_on_device": True}
    with pytest.raises(tokendraw.InvalidParameterError) as error:
        requirements(**inputs | {name: found})
    assert str(error.value) == f"'{name}' needs an integer in [0, 2147483647], found {found!r}."
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    "name", ["prefill_on_device", "decode_on_device", "dcp", "causal", "upper_bound_known"]
)
@pytest.mark.parametrize("found", [1, "no", None])
def test_a_flag_that_is_no_bool_is_refused(name, found):
    inputs = {"num_prefills": 1, "num_decodes": 1, "prefill_on_device": True, "decode_on_device": True}
    with pytest.raises(tokendraw.InvalidParameterError) as error:
        requirements(**inputs | {name: found})
    assert str(error.value) == f"'{name}' needs True or False, found {found!r}."
