"""Ranks that all hold the logits, in processes of their own: the first one chooses, and a rank that fails raises."""

import pytest

import rank_cases
from fake_dists import EVERYTHING, plugin
from gloo_world import world

pytestmark = pytest.mark.slow
ACME = plugin("acme", capabilities=EVERYTHING)
NO_GREEDY = plugin("acme", capabilities=EVERYTHING.replace("greedy=True", "greedy=False"))
BEST = rank_cases.LOGITS.argmax(1).tolist()
PREFERS = {"TOKENDRAW_PRIORITY": "acme", "plugins": {"acme": ACME}}
NATIVE = {"TOKENDRAW_SAMPLER": "native"}
FAULT = f"RuntimeError: {rank_cases.FAULT}"
OF_RANK = "tokendraw failed on rank 1: "
ABSENT = "no plugin of that name is installed"
WAYS = {
    "vLLM V1": (rank_cases.by_vllm, "v1"),
    "vLLM V2": (rank_cases.by_vllm, "v2"),
    "SGLang": (rank_cases.by_sglang,),
}
each_way = pytest.mark.parametrize("way", WAYS)


def outcomes(tmp_path, settings, way):
    """The outcomes of two ranks with different settings."""
    function, *arguments = way
    return world(2).run(function, str(tmp_path), settings, *arguments)


def test_every_rank_loads_what_the_first_one_chose_with_its_companion(tmp_path):
    settings = {rank: {**PREFERS, "plugins": {"acme": NO_GREEDY}} for rank in range(2)}
    assert outcomes(tmp_path, settings, (rank_cases.by_core,)) == [[{"sample": ("acme", "native")}, BEST]] * 2


def test_a_first_rank_that_cannot_choose_raises_on_all(tmp_path):
    settings = {0: {"TOKENDRAW_SAMPLER": "nativ"}}
    (_, first), (_, second) = outcomes(tmp_path, settings, (rank_cases.by_core,))
    assert first.startswith("SamplerUnavailableError: 'nativ', asked for by TOKENDRAW_SAMPLER, cannot serve")
    assert second.startswith(f"SamplerUnavailableError: The first of 2 ranks failed to choose: {first[:30]}")


@each_way
def test_under_an_engine_every_rank_loads_what_the_first_one_chose(tmp_path, way):
    assert outcomes(tmp_path, {0: NATIVE, 1: PREFERS}, WAYS[way]) == [["native", BEST, BEST]] * 2


@each_way
def test_under_an_engine_a_rank_without_the_chosen_plugin_raises(tmp_path, way):
    first, second = outcomes(tmp_path, {0: PREFERS}, WAYS[way])
    assert first == ["acme", BEST, BEST]
    assert f"{OF_RANK}SamplerUnavailableError: 'acme', asked for by " in second[1]
    assert ABSENT in second[1]


@each_way
def test_under_an_engine_a_rank_whose_call_raises_does_not_go_on(tmp_path, way):
    first, second = outcomes(tmp_path, {0: NATIVE, 1: {"fails": True}}, WAYS[way])
    assert first == ["native", BEST, BEST]
    kind = "SystemExit" if "vLLM" in way else "RuntimeError"  # that vLLM does not go on from
    assert second == ["native", BEST, f"{kind}: {OF_RANK}{FAULT}"]


@each_way
def test_what_the_first_rank_cannot_load_leaves_the_engine_alone_on_all(tmp_path, way):
    first, second = outcomes(tmp_path, {0: {"TOKENDRAW_SAMPLER": "nativ"}}, WAYS[way])
    assert first == second
    assert first[0] is None
