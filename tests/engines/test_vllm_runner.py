"""vLLM's runners themselves on a CPU, the kernels of V2 in Triton's interpreter, with the adapter and without it.

``make test-engines`` runs it. The batches are those of ``vllm_v2_cases``; the adapter draws by native.
"""

import functools
import itertools

import numpy as np
import pytest
import torch

from checkout import ROOT
from engine_process import run_script
from exact_model import text
from special_rows import FALSE_ALARM
from tokendraw import SamplingParams
from tokendraw.resolution import installed_version
from tokendraw_testing.expectation import expect
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_vllm._engine import DISTRIBUTIONS
from vllm_v2_cases import (
    CASES,
    DRAWS,
    EXACT,
    FILTERS,
    HIDDEN_SIZE,
    LONG,
    MODEL,
    SCORED,
    STOPS,
    V1_CASES,
    VERIFIED,
    VLLM,
    WITHOUT_ADAPTER,
    V,
)

if not any(map(installed_version, DISTRIBUTIONS)):
    pytest.skip("needs vLLM", allow_module_level=True)
pytest.importorskip("triton", reason="needs Triton, whose interpreter runs vLLM's kernels")

SCRIPT = ROOT / "tests/fakes/vllm_process.py"
TOKENS, LOGPROBS, STOP_REASON = range(3)
AS_VLLM = [name for name, case in CASES.items() if case.as_vllm]
BESIDE_PLACES = {"preempted", SCORED}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """``run(runner, **variables)``: the results of the cases, and the lines of the log about tokendraw."""
    model = tmp_path_factory.mktemp("vllm") / "model"

    @functools.cache
    def running(runner="V2", **variables):
        of_v2 = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1", "TOKENDRAW_SAMPLER": "native"}
        return run_script(SCRIPT, model, runner, **(of_v2 if runner == "V2" else {}), **variables)

    return running


@pytest.fixture
def ours(run):
    return run()[0]


@pytest.fixture
def vllms(run):
    return run(TOKENDRAW_VLLM="0")[0]


@pytest.fixture(params=["V1", "V2"])
def both(request, run):
    """The results of a runner with the adapter, and without it."""
    return run(request.param)[0], run(request.param, TOKENDRAW_VLLM="0")[0]


def tokens(results, name):
    """Tokens of the first output of each request."""
    return [request[0][TOKENS] for request in results[name]["outputs"]]


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_each_engine_says_that_tokendraw_draws_and_a_failed_call_that_vllm_does(run, runner):
    _, log_lines = run(runner)
    version = next(filter(None, map(installed_version, DISTRIBUTIONS)))
    assert log_lines == [
        f"{runner} sampler replaced (native 0.1.0, vLLM {version})",
        f"{runner} sampler is vLLM's own again: 'native' raised RuntimeError: injected",
    ]
    assert run(runner, TOKENDRAW_VLLM="0")[1] == []  # INFO, which vLLM does not show yet


@pytest.mark.parametrize("name", CASES)
def test_steps_are_drawn_where_the_readme_says(ours, vllms, name):
    case = CASES[name]
    assert set(ours[name]["places"]) - BESIDE_PLACES == case.places
    if case.is_run_alone:
        places = {WITHOUT_ADAPTER.get(place, place) for place in case.places}
        assert set(vllms[name]["places"]) - BESIDE_PLACES == places


@pytest.mark.parametrize(
    ("runner", "name"),
    [("V2", name) for name in AS_VLLM] + [("V1", name) for name in AS_VLLM if name in V1_CASES],
)
def test_results_equal_vllms_where_a_row_has_one_token_to_draw(run, runner, name):
    results = run(runner)[0], run(runner, TOKENDRAW_VLLM="0")[0]
    (mine, values), (theirs, their_values) = (without_values(each[name]) for each in results)
    assert mine == theirs
    assert values == pytest.approx(their_values, rel=1e-5, abs=1e-5)


def without_values(result):
    """Outputs of a case without the values of the log-probabilities, and these."""
    outputs, values = [], []
    for request in result["outputs"]:
        for ids, steps, reason in request:
            entries = [entry for step in steps for entry in step]
            outputs.append(
                (ids, [(token, rank) for token, _, rank in entries], list(map(len, steps)), reason)
            )
            values += [value for _, value, _ in entries]
    return outputs, values


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_are_scored_where_the_readme_says(ours, vllms, name):
    asked = ("logprobs", "logprob_token_ids", "prompt_logprobs")
    is_asked = any(key in each for each in CASES[name].requests for key in asked)
    scored = ours[name]["places"].get(SCORED, 0)
    assert bool(scored) == is_asked
    if name == "prompts":  # and the tokens of the second request
        assert scored > len(tokens(ours, name)[1])
    assert not CASES[name].is_run_alone or SCORED not in vllms[name]["places"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.equals])
def test_tokens_are_those_of_another_case(ours, name):
    assert tokens(ours, name) == tokens(ours, CASES[name].equals)


@pytest.mark.parametrize("name", ["logit bias", "allowed ids", "least length", "all edits"])
def test_every_edit_changes_tokens(ours, name):
    """Otherwise equal results would say nothing of the edit."""
    assert all(mine != plain for mine, plain in zip(tokens(ours, name), tokens(ours, "greedy"), strict=False))


def test_requests_end_at_a_stop_token_or_string(ours):
    """Otherwise equal results would say nothing of it."""
    reasons = [request[0][STOP_REASON] for request in ours["stop ids"]["outputs"]]
    assert {None} < set(reasons) <= {None, *STOPS}
    assert {request[0][STOP_REASON] for request in ours["stop strings"]["outputs"]} == {None, "t25", "t37"}
    assert {len(ids) for ids in tokens(ours, "least length")} - {12}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.engine.startswith(EXACT)])
def test_each_token_is_that_of_float64(ours, name):
    case = CASES[name]
    asked = zip(case.requests, itertools.cycle(case.prompts), strict=False)
    assert tokens(ours, name) == [text(one, prompt, V, HIDDEN_SIZE) for one, prompt in asked]
    assert case.prompts is not LONG or ours[name]["places"]["preempted"]


# Seeds.


@pytest.mark.parametrize(
    ("name", "number", "alone"),
    [("seed in a batch", 2, "seed alone"), ("unfiltered, seed in a batch", 1, "unfiltered, seed alone")],
)
def test_a_seed_of_v1_draws_the_same_tokens_beside_requests_that_come_and_go(run, name, number, alone):
    results = run("V1")[0]
    (expected,) = tokens(results, alone)
    assert tokens(results, name)[number] == expected
    assert len(set(expected)) > 1


def test_the_adapter_draws_other_tokens_than_v1_for_a_seed(run):
    of_v1, without = run("V1")[0], run("V1", TOKENDRAW_VLLM="0")[0]
    assert tokens(of_v1, "seed alone") != tokens(without, "seed alone")
    assert tokens(of_v1, "draws") != tokens(without, "draws")
    # V1 draws seeded rows without filters by itself
    assert tokens(of_v1, "unfiltered, seed alone") == tokens(without, "unfiltered, seed alone")


def test_the_outputs_of_n_are_those_of_the_next_seeds(ours):
    (outputs,) = ours["n"]["outputs"]
    assert [output[TOKENS] for output in outputs] == tokens(ours, "next seeds")
    assert len({tuple(output[TOKENS]) for output in outputs}) == 3


@pytest.mark.parametrize("name", ["long, preempted", "long, one token", "drafts, preempted"])
def test_requests_are_preempted(ours, name):
    """Otherwise equal tokens would say nothing of requests that start again."""
    assert ours[name]["places"]["preempted"] > 0


def test_drafts_are_accepted(ours):
    places, outputs = ours["drafts, one token"]["places"], tokens(ours, "drafts, one token")
    assert places[MODEL] + places[VERIFIED] < len(outputs[0])


def test_after_a_failed_call_vllm_draws_as_alone(both, ours):
    mine, theirs = both
    assert tokens(mine, "after a failure")[2] == tokens(theirs, "seed alone")[0]
    assert set(ours["after a failure"]["places"]) == {VLLM}


# Distributions, log-probabilities, rules: test_vllm_v2_itself.py compares with tokendraw alone.


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_tokens_are_drawn_from_the_filtered_distribution(run, runner):
    results = run(runner)[0]
    drawn = np.array(tokens(results, "draws")).ravel()
    assert len(drawn) == DRAWS
    (((_, (step,), _),),) = results["first tokens"]["outputs"]
    row = torch.full((V,), -torch.inf)
    for token, logprob, _ in step:
        row[token] = logprob
    assert fit(drawn, expect(row.numpy(), SamplingParams(**FILTERS)).probabilities).p_value > FALSE_ALARM


def test_logprobs_of_a_drawn_token_equal_vllms(both):
    """The first step has equal logits: the best five are equal, and so is what both drew among the best."""
    mine, theirs = (results["seed with logprobs"]["outputs"][0][0][LOGPROBS][0] for results in both)
    known = {token: (logprob, rank) for token, logprob, rank in theirs}
    shared = [entry for entry in mine if entry[0] in known]
    assert len(shared) >= 5
    assert all(known[token] == (logprob, rank) for token, logprob, rank in shared)


def test_filtered_logprobs_and_masks_of_drafts_are_vllms(ours, vllms):
    """Five tokens of each step are kept."""
    name = "drafts, filtered logprobs"
    assert ours[name]["masks"] == vllms[name]["masks"]
    assert {len(kept) for mask in ours[name]["masks"] for kept in mask} == {5}
    assert {len(step) for ((_, steps, _),) in ours[name]["outputs"] for step in steps} == {5}


def test_a_misspelt_rule_is_refused_and_the_engine_goes_on(ours, vllms):
    assert "found 'top_nsigma', the nearest is 'top_n_sigma'" in ours["refusal"]
    assert vllms["refusal"] is None
