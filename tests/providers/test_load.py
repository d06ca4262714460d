"""Loading: built and wrapped samplers, by arguments and settings."""

import sys

import pytest
import torch

from fake_dists import EVERYTHING, place, plugin
from tokendraw import (
    InvalidParameterError,
    Need,
    SamplerFallbackWarning,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
    SettingsError,
    load,
    load_sampler,
)
from tokendraw.engines import choose_once


def built(module):
    """How often the plugin's build hook ran."""
    return len(sys.modules[module].BUILT)


def draw(sampler):
    logits = torch.tensor([[0.0, 9.0, 1.0], [5.0, 0.0, 0.0]])
    metadata = SamplingMetadata.from_params([SamplingParams(temperature=0.0)] * 2)
    return sampler.sample(logits, metadata).token_ids.tolist()


# What is loaded


def test_native_is_loaded_on_the_cpu_and_draws(dists):
    sampler = load_sampler(device="cpu")
    assert (sampler.name, sampler.device) == ("native", torch.device("cpu"))
    assert sampler.resolution.chosen == "native"
    assert sampler.resolution.companion is None
    assert draw(sampler) == [1, 0]


def test_the_best_plugin_is_loaded_and_built_once(dists):
    module = dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
    sampler = load_sampler(device=torch.device("cpu"))
    assert sampler.name == "acme"
    assert built(module) == 1
    assert draw(sampler) == [1, 0]


def test_the_companion_is_built_too_and_serves_what_the_chosen_one_cannot(dists):
    capabilities = EVERYTHING.replace("greedy=True", "greedy=False")
    module = dists.add_plugin("acme", plugin("acme", capabilities=capabilities))
    sampler = load_sampler(device="cpu")
    assert (sampler.name, sampler.resolution.companion) == ("acme", "native")

    def no_rows_please(self, logits, metadata):
        raise RuntimeError("a row came to acme")

    sys.modules[module].ArgmaxSampler.sample = no_rows_please
    assert draw(sampler) == [1, 0]
    with pytest.warns(SamplerFallbackWarning, match="a row came to acme"):
        sampler.sample(torch.zeros(1, 3), SamplingMetadata.from_params([SamplingParams()]))


def test_a_companion_that_fails_its_proof_makes_room_for_the_next(dists):
    dists.add_plugin("acme", plugin("acme", capabilities="dtypes=('float32',)"))
    beta = plugin("beta", priority=40, capabilities=EVERYTHING, build="raise OSError('no driver')")
    dists.add_plugin("beta", beta)
    sampler = load_sampler(device="cpu")
    assert (sampler.name, sampler.resolution.companion) == ("acme", "native")
    reasons = {d.name: d.reason for d in sampler.resolution.decisions}
    assert reasons["beta"] == f"tokendraw_build raised OSError: no driver {place(beta, 'driver', 'beta')}"


def test_the_need_reaches_the_build_hook(dists):
    source = plugin("acme", capabilities=EVERYTHING, build="BUILT[-1] = need; return ArgmaxSampler()")
    module = dists.add_plugin("acme", source)
    load_sampler(device="cpu", need=Need(valid_flag=True))
    load_sampler(device="cpu", logprobs_mode="processed_logprobs", need=Need(valid_flag=True))
    load_sampler(device="cpu", need=Need(logprobs_mode="processed_logprobs"))
    assert [
        Need(valid_flag=True),
        Need(valid_flag=True, logprobs_mode="processed_logprobs"),
        Need(logprobs_mode="processed_logprobs"),
    ] == sys.modules[module].BUILT


def test_the_processed_logprobs_that_were_asked_for_decide_the_default_choice(dists):
    dists.add_plugin("acme", plugin("acme", capabilities="logprobs_modes=('raw_logprobs',)"))
    with pytest.warns(SamplerFallbackWarning, match="needs processed_logits, found raw_logprobs"):
        sampler = load_sampler(device="cpu", logprobs_mode="processed_logits")
    assert sampler.name == "native"


@pytest.mark.gpu
def test_the_accelerator_is_the_default_device():
    sampler = load_sampler("native")
    assert sampler.device == torch.device("cuda", torch.cuda.current_device())


@pytest.mark.gpu
def test_the_proof_draw_leaves_the_random_state_of_the_gpu_alone():
    torch.cuda.manual_seed(7)
    before = torch.cuda.get_rng_state()
    load_sampler("native", device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
def test_the_cpu_is_the_default_device_where_there_is_no_accelerator(dists):
    assert load_sampler().device == torch.device("cpu")


# Arguments that are refused


def test_a_sampler_that_is_no_name_is_a_type_error():
    with pytest.raises(TypeError) as error:
        load_sampler(3)
    assert str(error.value) == "'sampler' needs a plugin's name or None, found int. Pass a str."


def test_an_unknown_logprobs_mode_lists_the_five():
    with pytest.raises(ValueError, match="logprobs_mode") as error:
        load_sampler(logprobs_mode="raw")
    assert isinstance(error.value, InvalidParameterError)
    assert str(error.value) == (
        "'logprobs_mode' needs raw_logprobs, raw_logits, processed_logprobs, processed_logits or "
        "temperature_logprobs, found 'raw'. Pass one of these."
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_any_plugin_is_loaded(dists):
    module = dists.add_plugin("acme", plugin("acme"))
    with pytest.raises(SamplerUnavailableError, match="'cuda' needs a CUDA or ROCm device"):
        load_sampler(device="cuda")
    assert module not in sys.modules


def test_malformed_settings_are_refused(dists, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_STRICT", "yes")
    with pytest.raises(SettingsError):
        load_sampler(device="cpu")


# Settings that choose


def test_the_argument_goes_before_the_variable_and_the_variable_before_the_file(dists, tmp_path, monkeypatch):
    for name in ("acme", "beta"):
        dists.add_plugin(name, plugin(name, priority=-5, capabilities=EVERYTHING))
    path = tmp_path / "config.toml"
    path.write_text('sampler = "acme"', encoding="utf-8")
    assert load_sampler(device="cpu").name == "native"
    monkeypatch.setenv("TOKENDRAW_CONFIG", str(path))
    assert load_sampler(device="cpu").resolution.choice.source == str(path)
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "beta")
    assert load_sampler(device="cpu").name == "beta"
    assert load_sampler("native", device="cpu").name == "native"


def test_the_users_order_decides_the_default(dists, monkeypatch):
    dists.add_plugin("acme", plugin("acme", priority=-5, capabilities=EVERYTHING))
    monkeypatch.setenv("TOKENDRAW_PRIORITY", "acme,native")
    assert load_sampler(device="cpu").name == "acme"


# Choices of another rank


def test_choices_are_loaded_with_their_companions_whatever_would_be_chosen_here(dists, monkeypatch):
    for name in ("acme", "beta"):
        capabilities = EVERYTHING.replace("greedy=True", f"greedy={name == 'beta'}")
        dists.add_plugin(name, plugin(name, capabilities=capabilities))
    monkeypatch.setenv("TOKENDRAW_DISABLE", "beta")
    choices = load_sampler(device="cpu").choices
    assert choices == {"sample": ("acme", "native")}
    monkeypatch.setenv("TOKENDRAW_DISABLE", "")
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    sampler = load_sampler(choices, device="cpu")
    assert (sampler.name, sampler.resolution.companion, sampler.choices) == ("acme", "native", choices)
    assert load("sample", choices, device="cpu").choices == choices
    alone = load_sampler(choices, device="cpu", companion=False)
    assert (alone.name, alone.resolution.companion) == ("acme", None)


def test_a_companion_that_ranks_before_the_chosen_one_is_among_the_choices(dists, monkeypatch):
    unseeded = EVERYTHING.replace("seeding='counter'", "seeding='none'")
    dists.add_plugin("acme", plugin("acme", priority=90, capabilities=unseeded))
    few = unseeded.replace("greedy=True", "greedy=False")
    dists.add_plugin("beta", plugin("beta", priority=80, capabilities=few))
    choices = load_sampler("beta", device="cpu").choices
    assert choices == {"sample": ("beta", "acme", "native")}
    monkeypatch.setenv("TOKENDRAW_PRIORITY", "native")
    resolution = load_sampler(choices, device="cpu").resolution
    assert (resolution.partial_companion, resolution.companion) == ("acme", "native")


@pytest.mark.parametrize(("missing", "role"), [("acme", "the chosen one"), ("native", "its companion")])
def test_choices_that_cannot_be_loaded_are_refused(dists, monkeypatch, missing, role):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING.replace("greedy=True", "greedy=False")))
    choices = load_sampler(device="cpu").choices
    monkeypatch.setenv("TOKENDRAW_DISABLE", missing)
    with pytest.raises(SamplerUnavailableError) as error:
        load_sampler(choices, device="cpu")
    assert str(error.value).startswith(
        f"'{missing}', asked for by the argument sampler=, cannot serve the operation 'sample' on cpu: switched off by "
        "TOKENDRAW_DISABLE. "
    ), role
    assert str(error.value).endswith("Choose another one, on every rank.")


def test_choices_hold_the_operations_that_were_negotiated_and_no_other_one_is_served():
    sampler = load_sampler(device="cpu", operations=("sample", "score"))
    assert set(sampler.choices) == {"sample", "score"}
    again = load_sampler(sampler.choices, device="cpu")
    again.prepare("score")
    with pytest.raises(SamplerUnavailableError) as error:
        again.prepare("verify")
    assert str(error.value) == (
        "The names that were passed for the argument sampler= hold none for the operation 'verify'. Load 'verify' too "
        "where the names come from."
    )


@pytest.mark.parametrize("names", ["native", (), ("native",) * 4, (1,)])
def test_malformed_choices_are_refused(names):
    with pytest.raises(
        InvalidParameterError, match="'sampler' needs one to three names for 'sample', found "
    ):
        load_sampler({"sample": names}, device="cpu")


def test_a_process_alone_chooses_for_itself():
    assert choose_once(lambda: 7, None) == 7


def test_logits_that_lie_on_several_ranks_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        ImportError, match=r"'tokendraw\.VocabShard' was removed: gather the logits of all ranks"
    ):
        from tokendraw import VocabShard  # noqa: F401
    with pytest.raises(TypeError, match="takes no shard any more: gather the logits"):
        load_sampler(device="cpu").sample(torch.zeros(1, 2), None, shard=object())
