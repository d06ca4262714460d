"""vLLM itself on a CPU, with the adapter and without: ``make test-engines``."""

import functools
import runpy
from pathlib import Path

import numpy as np
import pytest

from engine_process import run_script
from goodness_of_fit import FALSE_ALARM, chi_square
from tokendraw.resolution import installed_version
from tokendraw_vllm._engine import DISTRIBUTIONS

if not any(map(installed_version, DISTRIBUTIONS)):
    pytest.skip("needs vLLM", allow_module_level=True)

SCRIPT = Path(__file__).with_name("vllm_process.py")
V, DRAWS = (runpy.run_path(str(SCRIPT))[name] for name in ("V", "DRAWS"))
FILTERS = 12, 0.9
REPLACED = "V1 sampler replaced (native 0.1.0, vLLM "


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """``run(drill, **variables)``: the output of a process of vLLM, and its lines about tokendraw."""
    model = tmp_path_factory.mktemp("vllm") / "model"

    @functools.cache
    def running(drill="none", **variables):
        return run_script(SCRIPT, model, drill, **variables)

    return running


@pytest.fixture
def ours(run):
    result, log_lines = run()
    assert len(log_lines) == 1
    assert log_lines[0].startswith(REPLACED)
    return result


@pytest.fixture
def vllms(run):
    result, log_lines = run(TOKENDRAW_VLLM="0")
    assert log_lines == []  # at INFO, which vLLM does not show yet
    return result


def test_greedy_tokens_and_their_logprobs_are_vllms(ours, vllms):
    assert ours["greedy"] == vllms["greedy"]
    assert ours["greedy in a mixed batch"] == vllms["greedy"][0][0]


def test_the_adapter_draws(ours, vllms):
    assert ours["seeded alone"] != vllms["seeded alone"]
    assert ours["draws"] != vllms["draws"]


def test_logprobs_of_a_drawn_token_equal_vllms(ours, vllms):
    """The first step has equal logits: entries of tokens in both results are equal, the best five included."""
    ((_, (mine, *_)),), ((_, (theirs, *_)),) = ours["seeded with logprobs"], vllms["seeded with logprobs"]
    known = {token: (logprob, rank) for token, logprob, rank in theirs}
    shared = [entry for entry in mine if entry[0] in known]
    assert len(shared) >= 5
    assert all(known[token] == (logprob, rank) for token, logprob, rank in shared)


def test_a_seed_draws_the_same_tokens_alone_and_beside_requests_that_come_and_go(ours):
    assert ours["seeded in a batch"] == ours["seeded alone"]
    assert len(set(ours["seeded alone"])) > 1


def test_a_seeded_request_without_filters_is_vllms_own(ours, vllms):
    assert ours["unfiltered alone"] == ours["unfiltered in a batch"] == vllms["unfiltered alone"]


def test_vllms_edits_come_first(ours):
    assert ours["biased"] == [[77] * 4] * 6
    assert {token for ids in ours["allowed"] for token in ids} <= {3, 4, 5}


@pytest.mark.parametrize("who", ["ours", "vllms"])
def test_tokens_are_drawn_from_the_filtered_distribution(who, request):
    result = request.getfixturevalue(who)
    ((_, (step,)),) = result["all logprobs"]
    row = np.zeros(V)
    for token, logprob, _ in step:
        row[token] = np.exp(logprob)
    top_k, top_p = FILTERS
    order = np.argsort(-row)
    chosen = row[order][:top_k] / row[order][:top_k].sum()
    number = int((np.cumsum(chosen) < top_p).sum()) + 1
    expected = np.zeros(V)
    expected[order[:number]] = chosen[:number]
    drawn = np.array(result["draws"]).ravel()
    assert len(drawn) == DRAWS
    assert chi_square(drawn, expected) > FALSE_ALARM


@pytest.mark.parametrize(
    ("drill", "sampler", "sentence"),
    [
        ("untested version", "", "left alone: vLLM {} is untested, tested are 0.1.0"),
        (
            "changed signature",
            "",
            "left alone: 'TopKTopPSampler.forward_native' needs the parameters self, scores, found self, logits, "
            "generators, k, p",
        ),
        (
            "no plugin",
            "nativ",
            "V1 sampler left alone: SamplerUnavailableError: 'nativ', asked for by TOKENDRAW_SAMPLER, cannot serve",
        ),
    ],
)
def test_an_unsupported_vllm_generates_as_without_the_adapter(run, vllms, drill, sampler, sentence):
    (before, after), log_lines = run(drill, TOKENDRAW_SAMPLER=sampler)
    assert before == after
    assert before[2] == vllms["seeded alone"]
    (line,) = log_lines
    version = next(filter(None, map(installed_version, DISTRIBUTIONS)))
    assert line.startswith(sentence.format(version))


def test_a_sampler_that_raises_in_the_middle_of_a_run_hands_back_to_vllm(run, ours, vllms):
    (before, after), log_lines = run("sampler raises")
    assert before[2] == ours["seeded alone"]
    assert after[2] == vllms["seeded alone"]
    assert log_lines[1:] == ["V1 sampler is vLLM's own again: 'native' raised RuntimeError: injected"]
