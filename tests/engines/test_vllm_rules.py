"""vLLM's requests with rules of tokendraw: which are refused or lost; test_vllm_v2.py has what they draw."""

from types import SimpleNamespace

import pytest
import torch

import call_tables
import tokendraw
import tokendraw_vllm
from tokendraw import SamplingParams, engines
from tokendraw.filters import installed
from tokendraw_vllm import v2
from vllm_engine import DraftingEngine, Engine, Parameters
from vllm_v2_cases import asking

V = 40
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(2)).mul_(2.0).to(torch.bfloat16)


@pytest.fixture
def engine(vllm, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    return Engine(V)


def test_rules_of_a_request_are_read_without_a_look_at_what_is_installed(monkeypatch):
    engines.read_rules({"top_n_sigma": 1.0}, "rules")
    monkeypatch.setattr(installed, "_look", None)
    params = engines.read_rules({"top_n_sigma": 1.5, "typical_p": 0.9}, "rules")
    assert (params.filters, params.typical_p) == ({"top_n_sigma": 1.5}, 0.9)


V1 = SimpleNamespace(use_v2_model_runner=False, speculative_config=None)


def drafting(method="standard", *, v2=True, **config):
    """A configuration with speculative decoding."""
    drafts = SimpleNamespace(rejection_sample_method=method)
    return SimpleNamespace(use_v2_model_runner=v2, speculative_config=drafts, **config)


def validate(params, config=None):
    """Have vLLM's front end look at a request."""
    from vllm.v1.engine.input_processor import InputProcessor

    config = config or SimpleNamespace(use_v2_model_runner=True, speculative_config=None)
    return InputProcessor(config)._validate_params(Parameters(**params), ())


def test_bad_rules_are_refused_when_the_request_is_admitted(engine):
    def refused(rules, config=None, **params):
        return validate(asking(rules, **params), config)

    words = {"refused": refused, "answer": lambda config, **params: validate(params, config)}
    words |= {"V1": V1, "drafting": drafting}
    table = call_tables.Table(__file__, "vllm_rules.txt")
    assert table.found(lambda: words) == table.text


@pytest.mark.parametrize("rules", [None, {"top_n_sigma": 1.0}, '{"epsilon_cutoff": 0.05, "p_less": 1}'])
@pytest.mark.parametrize("config", [None, drafting(), drafting("block")], ids=["", "drafts", "block"])
def test_other_requests_are_admitted_with_what_vllms_own_check_returns(engine, rules, config):
    """vLLM 0.32.0 asserts that the check says whether the request is watermarked."""
    assert validate(asking(rules), config) is False


def test_rules_beside_drafts_are_refused_with_batch_invariance(engine, monkeypatch):
    monkeypatch.setattr("vllm.envs.VLLM_BATCH_INVARIANT", True)
    assert validate({}, drafting()) is False
    with pytest.raises(ValueError, match="found VLLM_BATCH_INVARIANT=1, by which vLLM verifies"):
        validate(asking({"p_less": 1}), drafting())


# Where vLLM draws.


def test_what_a_filter_order_withholds_from_vllm_is_applied_where_vllm_draws(engine, monkeypatch):
    """vLLM's draw gets logits divided and cut by min-p, also in the step in which tokendraw fails."""
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    given, original = [], Sampler._sample_random

    def noted(self, logits, *others):
        given.append(logits)
        return original(self, logits, *others)

    monkeypatch.setattr(Sampler, "_sample_random", noted)
    engine.start(0, **asking({"filter_order": "temperature_last"}, temperature=2.0, min_p=0.2, seed=1))
    engine.start(1, temperature=0.5, biased=3)
    engine.draw(LOGITS.repeat(2, 1), [0, 1], [5, 5])
    assert given == []
    monkeypatch.setattr(tokendraw.Sampler, "sample", None)
    for _ in range(2):
        engine.draw(LOGITS.repeat(2, 1), [0, 1], [5, 5])
    scaled = LOGITS.float() / 2.0
    kept = scaled.masked_fill(scaled < scaled.max() + torch.tensor(0.2).log(), -float("inf"))
    for logits in given:
        assert torch.equal(logits[0], kept)
        assert logits[1, 3] == (LOGITS[3].float() + 1000.0) / 0.5
    assert len(given) == 2


OWN, VERIFIES = "vLLM's own V2 sampler draws", "vLLM verifies"


@pytest.fixture
def losses(log_lines):
    """``losses()``: lines about lost rules."""

    def lines():
        return [line for _, line in log_lines() if "lose their rules" in line]

    return lines


def lost(rules, reason):
    return f"tokendraw: requests lose their rules {rules}: {reason}"


def test_rules_lost_after_a_failed_call_are_named_once(engine, losses, monkeypatch):
    engine.start(0, **asking({"typical_p": 0.5, "p_less": 1, "filter_order": "joint"}))
    engine.start(1, **asking({"xtc_probability": 0.5}))
    engine.start(2)
    engine.start(3, **asking({"p_less": 1}, temperature=0.0))
    engine.draw(LOGITS.repeat(2, 1), [0, 1], [3, 3])
    assert losses() == []
    monkeypatch.setattr(tokendraw.Sampler, "sample", None)
    for slot in (2, 3, 0, 1):
        engine.draw(LOGITS[None], [slot], [4])
    assert losses() == [lost("filter_order, p_less, typical_p", OWN)]


def test_rules_lost_to_a_watermark_are_named_and_those_of_other_batches_are_kept(engine, losses):
    engine, positions = Engine(V, kind="Watermarking"), list(range(60))
    engine.start(0, **asking({"p_less": 1}, temperature=2.0, seed=1))
    engine.sampler.watermarking.np[:] = False
    drawn = engine.draw(LOGITS.repeat(60, 1), [0] * 60, positions)
    params = [SamplingParams(temperature=2.0, seed=1, filters={"p_less": 1})] * 60
    metadata = tokendraw.SamplingMetadata.from_params(params, positions=positions)
    native = tokendraw.load_sampler("native", device="cpu")
    assert drawn == native.sample(LOGITS.repeat(60, 1), metadata).token_ids.tolist()
    assert losses() == []
    engine.sampler.watermarking.np[:] = True
    engine.draw(LOGITS[None], [0], [3])
    watermarked = lost("p_less", "Watermarking of vLLM draws")
    assert losses() == [watermarked]
    engine.start(1, **asking({"filter_order": "temperature_last", "p_less": 1}, temperature=2.0, seed=1))
    ordered = lost("filter_order", "a sampler of vLLM's own may draw the logits that it has divided")
    assert losses() == [watermarked, ordered]
    engine.sampler.watermarking.np[:] = False
    assert engine.draw(LOGITS.repeat(60, 1), [1] * 60, positions) == drawn


def test_rules_lost_where_no_sampler_is_replaced_are_named(engine, losses, monkeypatch):
    monkeypatch.setattr(v2, "_slots", None)
    engine = DraftingEngine(V, 2)
    engine.start(0, temperature=0.0)
    assert engine.verify(LOGITS.repeat(2, 1), [0], [[1]]) == [[0]], "not vLLM's own verification"
    assert losses() == []
    engine.start(0, **asking({"top_n_sigma": 1.0, "xtc_probability": 0.5}))
    assert losses() == [lost("top_n_sigma, xtc_probability", OWN)]


def test_a_filter_order_behind_vllms_edits_is_lost_where_it_reads_filtered_logits(engine, losses):
    """vLLM's own temperature and min-p are withheld there until the draw."""
    engine = Engine(V, return_sampling_mask=True)
    engine.start(0, **asking({"filter_order": "temperature_last"}, temperature=2.5, min_p=0.1))
    engine.start(7, biased=9)
    assert engine.draw(LOGITS.repeat(2, 1), [0, 7], [0, 0]) == [0, 0]
    divided = LOGITS.float() / 2.5
    dropped = divided < divided.max() + torch.tensor(0.1).log()
    torch.testing.assert_close(
        engine.sampler.processed[0], divided.masked_fill(dropped, -float("inf")), rtol=1e-6, atol=0
    )
    assert losses() == [lost("filter_order", "Sampler of vLLM draws")]


@pytest.mark.parametrize("beside_an_edit", [True, False])
def test_rules_lost_to_a_verification_of_vllm_s_are_named_once(engine, losses, monkeypatch, beside_an_edit):
    """Those beside an edit of vLLM's own, and those of a failed verification, have the same reason."""
    drafts = DraftingEngine(V, 2)
    drafts.start(0, **asking({"typical_p": 0.5}, seed=1))
    drafts.start(1, seed=1, biased=3)
    drafts.start(2, **asking({"p_less": 1}, temperature=0.0))
    drafts.start(3, **asking({"p_less": 0}))
    for slot in range(4):
        drafts.verify(LOGITS.repeat(2, 1), [slot], [[1]])
    assert losses() == []
    if beside_an_edit:
        drafts.verify(LOGITS.repeat(4, 1), [0, 1], [[1], [1]])
        assert losses() == [lost("typical_p", VERIFIES)]
    monkeypatch.setattr(tokendraw.Sampler, "verify", None)
    for _ in range(2):
        drafts.verify(LOGITS.repeat(2, 1), [0], [[1]])
    assert losses() == [lost("typical_p", VERIFIES)]
