"""SGLang's modules load the adapter as its server would: see `make test-engines`."""

import argparse
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from goodness_of_fit import FALSE_ALARM, chi_square
from sglang_drafts import speculation
from sglang_engine import IS_REAL, Request, backend, draw, info_of
from tokendraw_sglang import state
from tokendraw_sglang._verification import _TARGETS

pytestmark = pytest.mark.usefixtures("sglang")
if not IS_REAL:
    pytest.skip("needs SGLang", allow_module_level=True)


def test_its_plugin_loader_registers_the_adapter_and_applies_the_hooks():
    from sglang.srt.layers.sampler import _CUSTOM_SAMPLER_FACTORIES
    from sglang.srt.plugins.hook_registry import HookRegistry

    assert set(_CUSTOM_SAMPLER_FACTORIES) == {"tokendraw"}
    batch, methods = (
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo",
        ("filter_batch", "merge_batch"),
    )
    assert HookRegistry._patched - {*_TARGETS} == {
        *(f"{batch}.{name}" for name in (*methods, "from_schedule_batch", "copy_for_forward")),
        "sglang.srt.sampling.sampling_params.SamplingParams.verify",
    }


def test_its_workers_call_the_hooks_of_the_verification():
    from sglang.srt.layers import logprob_processor
    from sglang.srt.layers.sampler import create_sampler
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.speculative import eagle_utils, eagle_worker_common

    with speculation():
        create_sampler()
    assert HookRegistry._patched.issuperset(_TARGETS)
    assert eagle_worker_common.eagle_sample is eagle_utils.eagle_sample
    assert eagle_worker_common.compute_spec_logprobs is logprob_processor.compute_spec_logprobs
    assert eagle_utils.eagle_sample.__wrapped__.__module__ == eagle_utils.__name__


def test_the_command_line_takes_the_backend():
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    line = ["--model-path", "none", "--sampling-backend"]
    assert ServerArgs.from_cli_args(parser.parse_args([*line, "tokendraw"])).sampling_backend == "tokendraw"
    with pytest.raises(argparse.ArgumentError):
        parser.parse_args([*line, "nosuch"])


def test_the_factory_makes_tokendraws_sampler_for_the_backend_alone():
    from sglang.srt.layers.sampler import Sampler, create_sampler

    assert type(create_sampler()).__module__ == "tokendraw_sglang._sampler"
    assert type(create_sampler("pytorch")) is Sampler


@pytest.mark.parametrize(
    ("fields", "backend"),
    [
        ({"enable_deterministic_inference": True, "sampling_backend": "tokendraw"}, "pytorch"),
        ({"enable_deterministic_inference": False, "sampling_backend": "tokendraw"}, None),
    ],
)
def test_deterministic_inference_takes_the_backend_away(fields, backend):
    from sglang.srt.arg_groups.overrides import _deterministic_sampling_backend

    assert _deterministic_sampling_backend(SimpleNamespace(**fields)).get("sampling_backend") == backend


def test_the_adapter_applies():
    assert vars(state()) == {
        "engine": "SGLang",
        "installed": version("sglang"),
        "tested": ("0.5.23",),
        "applies": True,
        "reason": "would replace its sampler, with --sampling-backend tokendraw",
    }


V, DRAWS = 60, 10_000
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(3)) * 2
SETTINGS = {
    "no filter": {"temperature": 1.7},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.6},
    "min-p": {"min_p": 0.1},
    "top-k and top-p": {"temperature": 1.5, "top_k": 12, "top_p": 0.8},
    "top-p and min-p": {"temperature": 2.0, "top_p": 0.8, "min_p": 0.08},
    "all": {"temperature": 2.0, "top_k": 20, "top_p": 0.8, "min_p": 0.06},
}


def joint(temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
    """Probabilities by SGLang's order: each filter looks at the mass of the whole row."""
    probs = (LOGITS.double() / temperature).softmax(0).numpy()
    order, kept = np.argsort(-probs), np.zeros(V, dtype=bool)
    mass_before = np.cumsum(probs[order]) - probs[order]
    kept[order] = (mass_before < top_p) & (np.arange(V) < (top_k or V))
    return np.where(kept & (probs >= min_p * probs.max()), probs, 0.0)


@pytest.mark.parametrize("name", ["pytorch", "tokendraw"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_draws_have_the_distribution_of_joint_filters_with_either_backend(name, setting):
    from sglang.srt.layers.sampler import create_sampler

    torch.manual_seed(5)
    requests, logits = [Request(**SETTINGS[setting])] * DRAWS, LOGITS.expand(DRAWS, -1)
    with backend(name):
        tokens, _ = draw(create_sampler(), logits, info_of(*requests, vocab_size=V))
    assert chi_square(tokens.numpy(), joint(**SETTINGS[setting])) > FALSE_ALARM


@pytest.mark.parametrize("beside", [[], [Request]])
def test_greedy_rows_are_the_first_of_the_largest_logits_with_either_backend(beside):
    from sglang.srt.layers.sampler import create_sampler

    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    logits[:32, [300, 700]] = 9.0  # tied
    greedy = [Request(temperature=0.0)] * 32 + [Request(top_k=1, temperature=0.7)] * 32
    info = info_of(*greedy, *(make() for make in beside))
    tokens, _ = draw(create_sampler(), torch.cat([logits, torch.randn(len(beside), 1000)]), info)
    assert tokens[:64].tolist() == logits.argmax(-1).tolist()
    with backend("pytorch"):
        assert tokens[:64].tolist() == draw(create_sampler(), logits, info_of(*greedy))[0].tolist()
