"""``tokendraw generate --samplers`` and ``--show-chain``: llama.cpp's words, and what each stage leaves of a row."""

import json
import math

import pytest
import torch

import tokendraw
from command_line import NATIVE_ON_CPU, call
from tokendraw import InvalidParameterError, Need, SamplingMetadata, SamplingParams
from tokendraw.cli import demo_model
from tokendraw.cli.chain_table import chain
from tokendraw.cli.llama_chain import chain_fields

STORY = ["The cat sat on the mat, and the dog slept.", "The cat sat on the mat, and the bird sang."]
LLAMA = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
FIRST = "penalties;dry;temperature;top_n_sigma;min_p;top_k;typ_p;top_p;xtc"
VALUES = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "filters": {"top_n_sigma": 1.0, "p_less": 1},
}
OFF = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "filters": None,
    "filter_order": "top_k_first",
}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (FIRST, {**VALUES, "filters": {"top_n_sigma": 1.0}}),
        ("temperature;p_less;top_n_sigma;top_k;min_p;top_p", VALUES),
        ("temp; top-k; nucleus", {"temperature": 0.8, "top_k": 40, "top_p": 0.95}),
        ("top_k;temperature;min_p", {"temperature": 0.8, "top_k": 40, "min_p": 0.05}),
        ("top_k;top_p", {"top_k": 40, "top_p": 0.95}),
        ("dry;xtc", {}),
        ("", {}),
    ],
)
def test_stages_in_an_order_of_ours_are_taken_and_all_others_are_off(words, values):
    found = chain_fields(words, {**VALUES, "seed": 3})
    needed = {**OFF, **values, "seed": 3}
    assert {name: found[name] for name in needed} == needed
    SamplingParams(**found).check()


@pytest.mark.parametrize("words", [LLAMA, "top_k;top_p;min_p", "min_p;temperature", "top_p;temp"])
def test_llama_cpp_s_default_order_is_temperature_last(words):
    assert chain_fields(words, VALUES)["filter_order"] == "temperature_last"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("top_k;tpo_p", "needs stages of a chain, found 'tpo_p', the nearest is 'typ_p'. Correct it."),
        ("top_k;temp;top_k", "needs each stage once, found 'top_k' twice. Leave out one."),
        (
            "temperature;top_p;top_k",
            f"needs an order that a filter order means, found 'top_p' before 'top_k'. Put the stages in the order "
            f"{FIRST}, or {LLAMA}; any may be left out.",
        ),
        (
            "top_p;top_n_sigma;temperature",
            "needs an order that a filter order means, found 'top_p' before 'top_n_sigma'. Put the stages in the order "
            f"{FIRST}, or {LLAMA}; any may be left out.",
        ),
    ],
)
def test_anything_else_is_refused_in_words(words, message):
    with pytest.raises(InvalidParameterError) as caught:
        chain_fields(words, VALUES)
    assert str(caught.value) == f"'samplers' {message}"


CHAINS = [
    {},
    {"top_k": 20, "top_p": 0.8},
    {"top_p": 0.8, "top_k": 20, "filter_order": "joint"},
    {"filters": {"top_n_sigma": 1.2, "epsilon_cutoff": 0.004}, "top_p": 0.9},
    {"filters": {"eta_cutoff": 0.02}, "min_p": 0.02, "top_k": 9},
    {"filters": {"p_less": 1}},
    {"min_p": 0.05},
    {"temperature": 0.0},
]
CHAINS += [{"typical_p": 0.6}, {"top_k": 30, "typical_p": 0.5, "top_p": 0.9}]
CHAINS += [{"xtc_probability": 0.5, "xtc_threshold": 0.02}, {"xtc_probability": 1.0, "top_k": 5}]
EVERY = {"top_k": 40, "top_p": 0.9, "min_p": 0.02, "filters": {"top_n_sigma": 1.5}}
CHAINS += [{**each, "filter_order": "temperature_last"} for each in (*CHAINS[3:5], *CHAINS[8:], EVERY)]


@pytest.mark.parametrize("fields", CHAINS, ids=str)
@pytest.mark.parametrize("ties", [False, True], ids=["bell", "ties"])
def test_the_last_stage_leaves_what_native_draws_from(fields, ties):
    logits = 2 * torch.randn(12, 300, generator=torch.Generator().manual_seed(4))
    logits = logits.round() if ties else logits
    logits[0, 5], logits[1, 7] = -math.inf, math.nan
    params = SamplingParams(**{"temperature": 1.3, "seed": 9, "logprobs": -1, **fields})
    sampler = tokendraw.load_sampler(
        "native",
        device="cpu",
        need=Need(filter_orders=(params.filter_order,), logprobs_mode="processed_logprobs"),
    )
    metadata = SamplingMetadata.from_params([params] * 12, positions=range(12))
    out = sampler.sample(logits, metadata)
    kept = (out.logprobs.logprobs[:, 1:] > -math.inf).sum(-1).tolist()
    for position, row in enumerate(logits):
        stages = chain(row, params, position)
        counts = [stage.tokens for stage in stages]
        assert counts[-1] == kept[position], stages
        assert counts == sorted(counts, reverse=True)
        assert [stage.mass for stage in stages[:-1]] == sorted((s.mass for s in stages[:-1]), reverse=True)


@pytest.fixture
def story(monkeypatch):
    monkeypatch.setattr(demo_model, "documentation", lambda: STORY)


@pytest.mark.usefixtures("story")
class TestTheCommand:
    OPTIONS = ("The cat", "--samplers", "temperature;top_n_sigma;top_k;top_p", "--filter", "top_n_sigma=3")
    OPTIONS += ("--top-k", "2", "--min-p", "0.5", "--seed", "1", "-n", "3", "--show-chain")

    def test_a_row_for_each_token_follows_the_text(self):
        result = call("generate", *NATIVE_ON_CPU, *self.OPTIONS, "--quiet")
        assert result.stdout == (
            "The cat sat on the\n"
            "\n"
            "step  drawn   vocabulary  top_n_sigma  top_k\n"
            "1     ' sat'  14 (1.000)  1 (0.951)    1 (0.951)\n"
            "2     ' on'   14 (1.000)  1 (0.951)    1 (0.951)\n"
            "3     ' the'  14 (1.000)  1 (0.955)    1 (0.955)\n"
        )
        assert (result.stderr, result.exit_code) == ("", 0)

    def test_json_has_the_stages_of_each_token(self):
        found = json.loads(call("generate", *NATIVE_ON_CPU, *self.OPTIONS, "--json").stdout)
        assert [step["piece"] for step in found["chain"]] == [" sat", " on", " the"]
        assert [step["token_id"] for step in found["chain"]] == found["texts"][0]["token_ids"]
        first = found["chain"][0]["stages"]
        assert [(stage["name"], stage["tokens"]) for stage in first] == [
            ("vocabulary", 14),
            ("top_n_sigma", 1),
            ("top_k", 1),
        ]
        params = found["texts"][0]["params"]
        assert (params["min_p"], params["top_k"], params["filters"]) == (0.0, 2, {"top_n_sigma": 3.0})
