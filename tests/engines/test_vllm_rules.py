"""vLLM's requests with rules of tokendraw: ``extra_args={"tokendraw": {...}}``."""

import re
from types import SimpleNamespace

import pytest
import torch

import tokendraw
import tokendraw_vllm
from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_vllm import _v2
from vllm_stand_in import DraftingEngine, V2Engine, request

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


ORDERED = {
    "llama.cpp's chain": {"temperature": 2.0, "top_k": 12, "top_p": 0.95, "min_p": 0.2},
    "temperature below 1": {"temperature": 0.5, "top_p": 0.7, "min_p": 0.1},
}


@pytest.mark.parametrize("biased", [None, 3], ids=["raw logits", "processed logits"])
@pytest.mark.parametrize("invariant", [False, True], ids=["", "batch-invariant"])
@pytest.mark.parametrize("fields", ORDERED.values(), ids=ORDERED)
def test_requests_draw_in_their_filter_order_beside_others(vllm, monkeypatch, fields, biased, invariant):
    """Filters behind the temperature, and a min-p that vLLM applied before top-p, would draw other tokens."""
    import vllm.envs

    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", invariant)
    tokendraw_vllm.register()
    engine, orders = V2Engine(V), ("temperature_last", "joint", "top_k_first")
    for slot, order in enumerate(orders):
        engine.add(slot, asking({"filter_order": order}, **fields, seed=11))
    engine.add(3, request(**fields, seed=11))
    engine.add(7, request(biased=biased, temperature=0.7, seed=14))
    slots, positions = [2, 0, 7, 1, 3] * 100, list(range(500))
    params = {f"slot{i}": SamplingParams(**fields, seed=11, filter_order=o) for i, o in enumerate(orders)}
    params |= {"slot3": params["slot2"], "slot7": SamplingParams(temperature=0.7, seed=14)}
    every = needed(slots, positions, **params)
    found = engine.draw(LOGITS.repeat(500, 1), slots, positions)
    rows = [i for i, slot in enumerate(slots) if slot != 7]
    assert [found[i] for i in rows] == [every[i] for i in rows]
    assert len({str(needed([slot] * 500, positions, **params)) for slot in range(3)}) == 3


def test_what_a_filter_order_withholds_from_vllm_is_applied_where_vllm_draws_after_all(engine, monkeypatch):
    """vLLM's draw gets logits divided and cut by min-p, also in the step in which tokendraw fails."""
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    given, original = [], Sampler._sample_random.__wrapped__

    def noted(self, logits, *others):
        given.append(logits)
        return original(self, logits, *others)

    monkeypatch.setattr(Sampler, "_sample_random", _v2._wrap_sample_random(noted))
    engine.add(0, asking({"filter_order": "temperature_last"}, temperature=2.0, min_p=0.2, seed=1))
    engine.add(1, request(temperature=0.5, biased=3))
    engine.draw(LOGITS.repeat(2, 1), [0, 1], [5, 5])
    assert given == []

    def broken(self, logits, metadata):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(tokendraw.Sampler, "sample", broken)
    for _ in range(2):
        engine.draw(LOGITS.repeat(2, 1), [0, 1], [5, 5])
    scaled = LOGITS.float() / 2.0
    kept = scaled.masked_fill(scaled < scaled.max() + torch.tensor(0.2).log(), -float("inf"))
    for logits in given:
        assert torch.equal(logits[0], kept)
        assert logits[1, 3] == (LOGITS[3].float() + 1000.0) / 0.5
    assert len(given) == 2


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
    "a filter order there is none of": (
        {"filter_order": "temperature_first"},
        {},
        f"{SOURCE}: 'filter_order' needs one of top_k_first, joint, temperature_last, found 'temperature_first'.",
    ),
    "a filter order of another type": (
        {"filter_order": 3},
        {},
        f"{SOURCE}: 'filter_order' needs one of top_k_first, joint, temperature_last, found 3.",
    ),
    "a misspelled parameter": (
        {"filterorder": "joint"},
        {},
        f"{SOURCE} needs names of filters or parameters, found 'filterorder', the nearest is 'filter_order'. "
        "Correct it.",
    ),
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


@pytest.mark.parametrize("rules", [None, {"top_n_sigma": 1.0}], ids=["no rules", "rules"])
def test_vllm_gets_what_its_own_check_returns(engine, rules):
    """vLLM 0.32.0 asserts that the check says whether the request is watermarked."""
    from vllm.v1.engine.input_processor import InputProcessor

    processor = InputProcessor(SimpleNamespace(use_v2_model_runner=True, speculative_config=None))
    assert processor._validate_params(asking(rules), ()) is False


def test_a_parameter_of_the_engine_is_refused_with_the_rules_there_are(engine):
    from vllm.v1.engine.input_processor import InputProcessor

    with pytest.raises(ValueError) as caught:  # noqa: PT011
        InputProcessor(SimpleNamespace())._validate_params(asking({"top_p": 0.9}), ())
    assert str(caught.value).startswith(
        f"{SOURCE} needs rules that the engine has no parameter for, {KNOWN[:30]}"
    )
    assert str(caught.value).endswith("found 'top_p'. Pass the engine's own parameter, or leave it out.")


def drafting(method="standard", **config):
    """A configuration with speculative decoding."""
    drafts = SimpleNamespace(rejection_sample_method=method)
    return SimpleNamespace(use_v2_model_runner=True, speculative_config=drafts, **config)


VERIFIED = f"{SOURCE} needs drafts that tokendraw verifies, found "


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            SimpleNamespace(use_v2_model_runner=False),
            "needs vLLM's V2 runner, whose sampler knows requests, found V1.",
        ),
        (drafting("synthetic"), f"{VERIFIED}rejection_sample_method='synthetic', by which vLLM verifies."),
        (drafting("fly"), f"{VERIFIED}rejection_sample_method='fly', by which vLLM verifies."),
        (drafting(watermark_config=object()), f"{VERIFIED}watermark_config, by which vLLM verifies."),
    ],
)
def test_rules_are_refused_where_vllm_draws(engine, config, words):
    from vllm.v1.engine.input_processor import InputProcessor

    processor = InputProcessor(config)
    with pytest.raises(ValueError, match=re.escape(words)):
        processor._validate_params(asking({"p_less": 1}), ())
    processor._validate_params(request(), ())


@pytest.mark.parametrize("method", ["standard", "block"])
def test_rules_are_admitted_beside_drafts_that_tokendraw_verifies(engine, monkeypatch, method):
    import vllm.envs
    from vllm.v1.engine.input_processor import InputProcessor

    processor = InputProcessor(drafting(method))
    assert processor._validate_params(asking({"p_less": 1}), ()) is False
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)
    with pytest.raises(ValueError, match="found VLLM_BATCH_INVARIANT=1, by which vLLM verifies"):
        processor._validate_params(asking({"p_less": 1}), ())


def test_vllm_s_own_refusals_stay(engine):
    from vllm.v1.engine.input_processor import InputProcessor

    with pytest.raises(ValueError, match="temperature must be non-negative"):
        InputProcessor(SimpleNamespace())._validate_params(asking({"p_les": 1}, temperature=-1), ())


# Rules that are lost where vLLM draws.

OWN = "vLLM's own V2 sampler draws"


def lost(rules, reason):
    return ("WARNING", f"tokendraw: requests lose their rules {rules}: {reason}")


def losses(log_lines):
    return [line for line in log_lines() if "lose their rules" in line[1]]


def test_rules_lost_after_a_failed_call_are_named_once(engine, log_lines, monkeypatch):
    def broken(self, logits, metadata):
        raise RuntimeError("no kernel image")

    engine.add(0, asking({"typical_p": 0.5, "p_less": 1, "filter_order": "joint"}))
    engine.add(1, asking({"xtc_probability": 0.5}))
    engine.add(2, request())
    engine.add(3, asking({"p_less": 1}, temperature=0.0))
    assert losses(log_lines) == []
    engine.draw(LOGITS.repeat(2, 1), [0, 1], [3, 3])
    assert losses(log_lines) == []
    monkeypatch.setattr(tokendraw.Sampler, "sample", broken)
    for slots in ([2], [3], [0], [1]):
        engine.draw(LOGITS.repeat(1, 1), slots, [4])
    assert losses(log_lines) == [lost("filter_order, p_less, typical_p", OWN)]


def test_rules_lost_to_a_watermark_are_named_and_those_of_other_batches_are_kept(
    vllm, log_lines, monkeypatch
):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    engine = V2Engine(V, kind="Watermarking")
    engine.add(0, asking({"p_less": 1}, temperature=2.0, seed=1))
    engine.sampler.watermarks = False
    positions = list(range(60))
    drawn = engine.draw(LOGITS.repeat(60, 1), [0] * 60, positions)
    params = SamplingParams(temperature=2.0, seed=1, filters={"p_less": 1})
    assert drawn == needed([0] * 60, positions, slot0=params)
    assert losses(log_lines) == []
    engine.sampler.watermarks = True
    engine.draw(LOGITS.repeat(1, 1), [0], [3])
    watermarked = lost("p_less", "Watermarking of vLLM draws")
    assert losses(log_lines) == [watermarked]
    engine.add(1, asking({"filter_order": "temperature_last", "p_less": 1}, temperature=2.0, seed=1))
    ordered = lost("filter_order", "a sampler of vLLM's own may draw the logits that it has divided")
    assert losses(log_lines) == [watermarked, ordered]
    engine.sampler.watermarks = False
    assert engine.draw(LOGITS.repeat(60, 1), [1] * 60, positions) == drawn


def test_rules_lost_where_no_sampler_is_replaced_are_named(vllm, log_lines, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()

    def broken(*given):
        raise RuntimeError("no configuration")

    monkeypatch.setattr(_v2, "_slots", broken)
    engine = V2Engine(V)
    assert log_lines() == [("WARNING", "tokendraw: V2 sampler left alone: RuntimeError: no configuration")]
    engine.add(0, request())
    assert losses(log_lines) == []
    engine.add(0, asking({"top_n_sigma": 1.0, "xtc_probability": 0.5}))
    assert losses(log_lines) == [lost("top_n_sigma, xtc_probability", OWN)]


def test_rules_lost_to_a_verification_of_vllm_s_are_named_once(engine, log_lines, monkeypatch):
    """Those of an edit of vLLM's own; then those of a failed verification, which have the same reason."""
    drafts = DraftingEngine(V, 2)
    drafts.add(0, asking({"p_less": 1}, seed=1))
    drafts.add(1, request(seed=1, biased=3))
    drafts.add(2, asking({"p_less": 1}, temperature=0.0))
    drafts.add(3, asking({"p_less": 0}))
    rows = LOGITS.repeat(2, 1)
    for slot in range(4):
        drafts.verify(rows, [slot], [[1]])
    assert losses(log_lines) == []
    drafts.verify(LOGITS.repeat(4, 1), [0, 1], [[1], [1]])
    assert losses(log_lines) == [lost("p_less", "vLLM verifies")]
    monkeypatch.setattr(tokendraw.Sampler, "verify", None)
    for _ in range(2):
        drafts.verify(rows, [0], [[1]])
    assert losses(log_lines) == [lost("p_less", "vLLM verifies")]


def test_rules_lost_to_a_failed_verification_are_named(engine, log_lines, monkeypatch):
    drafts = DraftingEngine(V, 2)
    drafts.add(0, asking({"typical_p": 0.5}, seed=1))
    monkeypatch.setattr(tokendraw.Sampler, "verify", None)
    drafts.verify(LOGITS.repeat(2, 1), [0], [[1]])
    assert losses(log_lines) == [lost("typical_p", "vLLM verifies")]
