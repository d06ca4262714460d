"""Ranks that all hold the logits, in processes of their own: the first one chooses, and a rank that fails raises."""

import pytest

import rank_cases
from fake_dists import EVERYTHING, faulty, plugin
from gloo_world import world

pytestmark = pytest.mark.slow
ACME = plugin("acme", capabilities=EVERYTHING)
NO_GREEDY = plugin("acme", capabilities=EVERYTHING.replace("greedy=True", "greedy=False"))
BEST = rank_cases.LOGITS.argmax(1).tolist()
PREFERS = {"TOKENDRAW_PRIORITY": "acme", "plugins": {"acme": ACME}}
NATIVE = {"TOKENDRAW_SAMPLER": "native"}
FAULT = f"RuntimeError: {rank_cases.FAULT}"
ABSENT = "no plugin of that name is installed"
WAYS = {
    "vLLM V1": (rank_cases.by_vllm, "v1"),
    "vLLM V2": (rank_cases.by_vllm, "v2"),
    "SGLang": (rank_cases.by_sglang,),
}
each_way = pytest.mark.parametrize("way", WAYS)


def outcomes(tmp_path, settings, way):
    """The outcomes of both ranks, of which each has settings of its own."""
    function, *arguments = way
    return world(2).run(function, str(tmp_path), settings, *arguments)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({1: PREFERS}, [[{"sample": ("native",)}, BEST]] * 2),
        (
            {rank: {**PREFERS, "plugins": {"acme": NO_GREEDY}} for rank in range(2)},
            [[{"sample": ("acme", "native")}, BEST]] * 2,
        ),
        (
            {0: PREFERS},
            [
                [{"sample": ("acme",)}, BEST],
                [
                    None,
                    "SamplerUnavailableError: 'acme', asked for by the argument sampler=, cannot serve the operation "
                    f"'sample' on cpu: {ABSENT}",
                ],
            ],
        ),
        (
            {
                0: PREFERS,
                1: {**PREFERS, "plugins": {"acme": faulty("acme", "raise RuntimeError('no kernel image')")}},
            },
            [[{"sample": ("acme",)}, BEST], [{"sample": ("acme",)}, FAULT]],
        ),
    ],
    ids=["another order", "a companion", "not installed", "a first call that raises"],
)
def test_every_rank_loads_what_the_first_one_chose(tmp_path, settings, expected):
    assert outcomes(tmp_path, settings, (rank_cases.by_core,)) == expected


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
    assert second[1].startswith("SamplerUnavailableError: 'acme', asked for by ")
    assert ABSENT in second[1]


@each_way
def test_under_an_engine_a_rank_whose_call_raises_does_not_go_on(tmp_path, way):
    first, second = outcomes(tmp_path, {0: NATIVE, 1: {"fails": True}}, WAYS[way])
    assert first == ["native", BEST, BEST]
    assert second == ["native", BEST, FAULT]


@each_way
def test_what_the_first_rank_cannot_load_leaves_the_engine_alone_on_all(tmp_path, way):
    first, second = outcomes(tmp_path, {0: {"TOKENDRAW_SAMPLER": "nativ"}}, WAYS[way])
    assert first == second
    assert first[0] is None
