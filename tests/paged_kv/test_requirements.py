"""Refusals of the requirements of a step; ``test_page.py`` has the whole table."""

import pytest

import tokendraw
from tokendraw.paged_kv import requirements


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
