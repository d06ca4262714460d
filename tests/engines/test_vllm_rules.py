"""vLLM's requests with rules of tokendraw: ``extra_args={"tokendraw": {...}}``."""

from types import SimpleNamespace

import pytest
import torch

import tokendraw
import tokendraw_vllm
from tokendraw import SamplingMetadata, SamplingParams
from vllm_stand_in import V2Engine, request

V = 40
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(2)).mul_(2.0).to(torch.bfloat16)


@pytest.fixture
def engine(vllm, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    return V2Engine(V)


def asking(rules, **params):
    return request(extra_args={"tokendraw": rules}, **params)


def needed(slots, positions, **params_by_slot):
    sampler = tokendraw.load_sampler("native", device="cpu")
    params = [params_by_slot[f"slot{slot}"] for slot in slots]
    metadata = SamplingMetadata.from_params(params, positions=positions)
    return sampler.sample(LOGITS.repeat(len(slots), 1), metadata).token_ids.tolist()


@pytest.mark.parametrize("biased", [None, 3], ids=["raw logits", "processed logits"])
def test_requests_with_filters_draw_the_tokens_that_tokendraw_draws(engine, biased):
    """A further request in slot 7 may edit its logits: then vLLM divides by the temperature."""
    engine.add(0, asking({"top_n_sigma": 0.5}, temperature=1.5, seed=11))
    engine.add(1, asking('{"epsilon_cutoff": 0.05, "p_less": 1}', seed=12))
    engine.add(2, request(temperature=1.5, top_p=0.9, seed=13))
    engine.add(7, request(biased=biased, seed=14))
    slots, positions = [2, 0, 1, 7] * 40, list(range(160))
    params = {
        "slot0": SamplingParams(temperature=1.5, seed=11, filters={"top_n_sigma": 0.5}),
        "slot1": SamplingParams(seed=12, filters={"epsilon_cutoff": 0.05, "p_less": 1}),
        "slot2": SamplingParams(temperature=1.5, top_p=0.9, seed=13),
        "slot7": SamplingParams(seed=14),
    }
    found = engine.draw(LOGITS.repeat(160, 1), slots, positions)
    rows = [i for i, slot in enumerate(slots) if slot != 7]
    every = needed(slots, positions, **params)
    assert [found[i] for i in rows] == [every[i] for i in rows]
    plain = needed(slots, positions, **{name: SamplingParams(seed=p.seed) for name, p in params.items()})
    assert [found[i] for i in rows] != [plain[i] for i in rows]


def test_a_slot_forgets_the_rules_of_its_last_request(engine):
    positions = list(range(60))
    engine.add(0, asking({"p_less": 1}, temperature=2.0, seed=1))
    narrow = engine.draw(LOGITS.repeat(60, 1), [0] * 60, positions)
    engine.add(0, request(temperature=2.0, seed=1))
    wide = engine.draw(LOGITS.repeat(60, 1), [0] * 60, positions)
    assert wide == needed([0] * 60, positions, slot0=SamplingParams(temperature=2.0, seed=1)) != narrow


SOURCE = "extra_args['tokendraw']"
KNOWN = "epsilon_cutoff, eta_cutoff, p_less and top_n_sigma"
BAD = {
    "a misspelled filter": (
        {"top_nsigma": 1.0},
        {},
        f"{SOURCE} needs names of filters or parameters, found 'top_nsigma', the nearest is 'top_n_sigma'. Correct it.",
    ),
    "a bad value": ({"p_less": 2}, {}, f"{SOURCE}: 'p_less' needs 0 (off) or 1 (on), found 2."),
    "no JSON": (
        "{top_n_sigma}",
        {},
        f"{SOURCE} needs {{name: value}} or its JSON text, found '{{top_n_sigma}}'. Correct it.",
    ),
    "no dict": ([1], {}, f"{SOURCE} needs {{name: value}}, found list. Pass a dict."),
    "min_p beside a filter": (
        {"p_less": 1},
        {"min_p": 0.1},
        f"{SOURCE} needs min_p=0 beside filters, whose floors are those of the whole row, found 0.1. Leave out min_p "
        "or the filters.",
    ),
}


@pytest.mark.parametrize(("rules", "params", "message"), BAD.values(), ids=BAD)
def test_bad_rules_are_refused_when_the_request_is_admitted(engine, rules, params, message):
    from vllm.v1.engine.input_processor import InputProcessor

    processor = InputProcessor(SimpleNamespace(use_v2_model_runner=True, speculative_config=None))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - what vLLM answers with
        processor._validate_params(asking(rules, **params), ())
    assert str(caught.value) == message
    processor._validate_params(asking({"top_n_sigma": 1.0}), ())
    processor._validate_params(request(), ())


def test_a_parameter_of_the_engine_is_refused_with_the_rules_there_are(engine):
    from vllm.v1.engine.input_processor import InputProcessor

    with pytest.raises(ValueError) as caught:  # noqa: PT011
        InputProcessor(SimpleNamespace())._validate_params(asking({"top_p": 0.9}), ())
    assert str(caught.value).startswith(
        f"{SOURCE} needs rules that the engine has no parameter for, {KNOWN[:30]}"
    )
    assert str(caught.value).endswith("found 'top_p'. Pass the engine's own parameter, or leave it out.")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"use_v2_model_runner": False}, "needs vLLM's V2 runner, whose sampler knows requests, found V1."),
        (
            {"speculative_config": object()},
            "needs every token drawn by tokendraw, found speculative decoding,",
        ),
    ],
)
def test_rules_are_refused_where_vllm_draws(engine, config, words):
    from vllm.v1.engine.input_processor import InputProcessor

    processor = InputProcessor(SimpleNamespace(**config))
    with pytest.raises(ValueError, match=words):
        processor._validate_params(asking({"p_less": 1}), ())
    processor._validate_params(request(), ())


def test_vllm_s_own_refusals_stay(engine):
    from vllm.v1.engine.input_processor import InputProcessor

    with pytest.raises(ValueError, match="temperature must be non-negative"):
        InputProcessor(SimpleNamespace())._validate_params(asking({"p_les": 1}, temperature=-1), ())
