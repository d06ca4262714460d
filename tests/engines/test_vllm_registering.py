"""The adapter in vLLM's processes: replaced samplers, unsupported versions and settings, and the line in the log."""

import subprocess
import sys
import tomllib

import pytest
import torch

import tokendraw_vllm
import vllm_stand_in
from checkout import ROOT
from tokendraw.engines import EngineState
from vllm_stand_in import MODULES, V2Engine, v1_sampler

TESTED = ("0.32.0", "0.33.0")
LOGITS = torch.tensor([[-50.0, -50.0, 5.0]])
TOP_K = torch.tensor([2], dtype=torch.int32)
BY_NATIVE = "native 0.1.0, vLLM 0.33.0"


def v1_token(**options):
    ids, processed = v1_sampler(**options)(LOGITS.clone(), {}, TOP_K, None)
    assert processed is None
    return ids.tolist()


OURS, VLLMS = [2], [0]


def test_the_v1_sampler_is_replaced_with_one_line(vllm, log_lines):
    tokendraw_vllm.register()
    assert v1_token() == OURS
    assert log_lines() == [("INFO", f"tokendraw: V1 sampler replaced ({BY_NATIVE})")]


def test_registering_again_changes_nothing(vllm, log_lines):
    for _ in range(3):
        tokendraw_vllm.register()
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    assert TopKTopPSampler.__call__.__wrapped__ is torch.nn.Module.__call__
    assert (v1_token(), v1_token()) == (OURS, OURS)
    assert len(log_lines()) == 1


def test_the_v2_sampler_is_replaced_by_the_reference_only_if_asked_for(vllm, log_lines, monkeypatch):
    tokendraw_vllm.register()
    engine = V2Engine(3)
    engine.add(0, vllm_stand_in.request())
    assert engine.draw(LOGITS, [0], [4]) == VLLMS
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    engine = V2Engine(3)
    engine.add(0, vllm_stand_in.request())
    assert engine.draw(LOGITS, [0], [4]) == OURS
    assert log_lines() == [
        (
            "WARNING",
            "tokendraw: V2 sampler left alone: 'native' is the best sampler for cpu here, and no quicker than "
            "vLLM's own. Install tokendraw-cpu, or set TOKENDRAW_SAMPLER=native to use it nevertheless",
        ),
        ("INFO", f"tokendraw: V2 sampler replaced ({BY_NATIVE})"),
    ]


@pytest.mark.parametrize("mode", ["processed_logits", "processed_logprobs"])
def test_the_v1_sampler_s_filtered_logits_are_vllms_own(vllm, log_lines, monkeypatch, mode):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    assert v1_token(logprobs_mode=mode) == VLLMS
    reason = f"logprobs_mode={mode!r} returns the filtered logits, which vLLM's own writes"
    assert log_lines() == [("WARNING", f"tokendraw: V1 sampler left alone: {reason}")]


def assert_vllm_draws(log_lines, reason, level="WARNING"):
    """Register and draw: vLLM draws, and the log has a single line."""
    tokendraw_vllm.register()
    tokendraw_vllm.register()
    assert v1_token() == VLLMS
    assert log_lines() == [(level, f"tokendraw: left alone: {reason}")]
    result = tokendraw_vllm.state()
    assert (result.applies, result.reason) == (False, reason)


def test_a_variable_switches_the_adapter_off(vllm, log_lines, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_VLLM", "0")
    assert_vllm_draws(log_lines, "switched off by TOKENDRAW_VLLM", level="INFO")


def test_an_untested_version_is_left_alone(install, log_lines):
    install("0.33.1rc1")
    assert_vllm_draws(log_lines, "vLLM 0.33.1rc1 is untested, tested are 0.32.0 and 0.33.0")


@pytest.mark.parametrize(
    ("module", "old", "new", "reason"),
    [
        (
            "vllm.v1.sample.ops.topk_topp_sampler",
            "generators, k, p",
            "generators, top_k, p",
            "'TopKTopPSampler.forward_native' needs the parameters self, logits, generators, k, p, found self, logits, "
            "generators, top_k, p",
        ),
        (
            "vllm.v1.worker.gpu.sample.sampler",
            "def _sample_random(\n            self, processed_logits",
            "def _sample_random(\n            self, logits",
            "'Sampler._sample_random' needs the parameters self, processed_logits, expanded_idx_mapping, "
            "idx_mapping_np, pos, top_k, top_p, found self, logits, expanded_idx_mapping, idx_mapping_np, pos, top_k, "
            "top_p, has_topp_only_rows, use_fused_sampler",
        ),
        (
            "vllm.v1.worker.gpu.sample.states",
            "def add_request",
            "def add",
            "'SamplingStates.add_request' needs the parameters self, req_idx, sampling_params, found none",
        ),
        (
            "vllm.v1.worker.gpu.sample.penalties",
            "req_idx, sampling_params",
            "request, sampling_params",
            "'PenaltiesState.add_request' needs the parameters self, req_idx, sampling_params, found self, request, "
            "sampling_params",
        ),
        (
            "vllm.v1.worker.gpu.states",
            "prompt_len, all_token_ids",
            "all_token_ids, prompt_len",
            "'RequestState.add_request' needs the parameters self, req_id, prompt_len, all_token_ids, found self, "
            "req_id, all_token_ids, prompt_len, num_computed_tokens, max_tokens",
        ),
        (
            "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
            "idx_mapping, idx_mapping_np",
            "idx_mapping",
            "'RejectionSampler._verify' needs the parameters self, logits, draft_logits, draft_sampled, pos, "
            "cu_num_logits, idx_mapping, idx_mapping_np, expanded_idx_mapping, expanded_local_pos, "
            "seq_lens_upper_bound_np, verify_draft_sampled, found self, logits, draft_logits, draft_sampled, pos, "
            "cu_num_logits, idx_mapping, expanded_idx_mapping, expanded_local_pos, seq_lens_upper_bound_np, "
            "verify_draft_sampled",
        ),
    ],
    ids=["V1", "V2", "states", "edits", "requests", "drafts"],
)
def test_a_changed_signature_is_left_alone(install, log_lines, module, old, new, reason):
    source = MODULES[module].replace(old, new, 1)
    assert source != MODULES[module]
    install(modules={**MODULES, module: source})
    assert_vllm_draws(log_lines, reason)


def test_a_vllm_that_cannot_be_imported_is_no_error(install, log_lines):
    broken = {**MODULES, "vllm.v1.worker.gpu.sample.sampler": "raise OSError('libcuda.so.1: no such file')"}
    install(modules=broken)
    tokendraw_vllm.register()
    ((level, sentence),) = log_lines()
    assert (level, sentence.partition(" (")[0]) == (
        "WARNING",
        "tokendraw: left alone: importing vLLM 0.33.0 raised OSError: libcuda.so.1: no such file",
    )


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TOKENDRAW_DISABLE", "native,triton-gumbel,flashinfer,aiter", "No plugin can serve"),
        ("TOKENDRAW_SAMPLER", "nativ", "'nativ', asked for by TOKENDRAW_SAMPLER, cannot serve"),
    ],
)
def test_without_a_usable_plugin_vllm_goes_on(vllm, log_lines, monkeypatch, variable, value, words):
    monkeypatch.setenv(variable, value)
    tokendraw_vllm.register()
    assert v1_token() == VLLMS
    ((level, sentence),) = log_lines()
    assert level == "WARNING"
    assert sentence.startswith(f"tokendraw: V1 sampler left alone: SamplerUnavailableError: {words}")


def test_the_state_is_that_of_a_dry_run(vllm):
    assert tokendraw_vllm.state() == EngineState(
        engine="vLLM",
        installed="0.33.0",
        tested=TESTED,
        applies=True,
        reason="would replace the V1 and the V2 sampler",
    )
    assert v1_token() == VLLMS


def test_importing_the_package_imports_neither_torch_nor_vllm():
    code = "import sys, tokendraw_vllm; print([n for n in ('torch', 'vllm', 'numpy') if n in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "integrations/vllm/src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "[]\n"


def test_the_entry_points_name_existing_functions():
    project = tomllib.loads((ROOT / "integrations/vllm/pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {
        "vllm.general_plugins": {"tokendraw": "tokendraw_vllm:register"},
        "tokendraw.engines": {"vllm": "tokendraw_vllm:state"},
    }
    assert sorted(tokendraw_vllm.__all__) == ["register", "state"]
