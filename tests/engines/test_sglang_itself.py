"""SGLang's modules load the adapter as its server would: see `make test-engines`."""

import argparse
from importlib.metadata import version

import pytest

from sglang_drafts import speculation
from sglang_engine import IS_REAL
from tokendraw_sglang import state
from tokendraw_sglang._requests import _CHOICE
from tokendraw_sglang._verification import _TARGETS

pytestmark = pytest.mark.usefixtures("sglang")
if not IS_REAL:
    pytest.skip("needs SGLang", allow_module_level=True)


def test_its_plugin_loader_registers_the_adapter_and_applies_the_hooks():
    from sglang.srt.layers.sampler import _CUSTOM_SAMPLER_FACTORIES
    from sglang.srt.plugins.hook_registry import HookRegistry

    assert set(_CUSTOM_SAMPLER_FACTORIES) == {"tokendraw"}
    batch = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
    methods = ("filter_batch", "merge_batch", "from_schedule_batch", "copy_for_forward")
    assert HookRegistry._patched - {*_TARGETS} == {
        *(f"{batch}.{name}" for name in methods),
        "sglang.srt.sampling.sampling_params.SamplingParams.verify",
        _CHOICE,
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


def test_the_factory_makes_tokendraws_sampler_for_the_backend_alone():
    from sglang.srt.layers.sampler import Sampler, create_sampler

    assert type(create_sampler()).__module__ == "tokendraw_sglang._sampler"
    assert type(create_sampler("pytorch")) is Sampler


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("tokendraw", "tokendraw"),
        ("tokendraw --rl-on-policy-target fsdp", "pytorch"),
        ("flashinfer", "pytorch"),
    ],
)
def test_the_command_line_takes_the_backend_and_deterministic_inference_leaves_it(tmp_path, given, left):
    from sglang.srt.arg_groups.attention_hook import handle_deterministic_inference
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    line = f"--model-path {tmp_path} --attention-backend triton --enable-deterministic-inference --sampling-backend"
    settings = ServerArgs.from_cli_args(parser.parse_args([*line.split(), *given.split()]))
    assert settings.sampling_backend == given.split()[0]
    handle_deterministic_inference(settings)
    assert resolved_view(settings).sampling_backend == left
    with pytest.raises(argparse.ArgumentError):
        parser.parse_args([*line.split(), "nosuch"])


def test_the_adapter_applies():
    assert vars(state()) == {
        "engine": "SGLang",
        "installed": version("sglang"),
        "tested": ("0.5.23",),
        "applies": True,
        "reason": "would replace its sampler, with --sampling-backend tokendraw",
    }
