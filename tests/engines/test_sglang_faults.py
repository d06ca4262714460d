"""Fault drill: after any failure SGLang goes on with its sampling, and a line of the log says why."""

import dataclasses
import logging
import pkgutil
import sys

import pytest
import torch

import sglang_engine
import tokendraw
import tokendraw_sglang
from sglang_engine import Request, draw, info_of
from tokendraw_sglang import _engine, _registration

pytestmark = pytest.mark.usefixtures("sglang")
V = 100
REQUESTS = {"temperature": 0.9, "top_k": 1000, "top_p": 0.9, "sampling_seed": 3}
AGAIN = "without seeds per request; restart it to draw through tokendraw again"


@pytest.fixture(autouse=True)
def given_backend():
    with sglang_engine.backend("tokendraw"):
        yield


@pytest.fixture
def logged(caplog):
    """The lines of the adapter's log so far."""
    caplog.set_level(logging.INFO, logger="tokendraw.sglang")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "tokendraw.sglang"]


def rows():
    """Logits with a certain token in each row, and the parameters of a batch."""
    logits = torch.full((3, V), -1e4)
    logits[[0, 1, 2], [11, 22, 33]] = 0.0
    return logits, info_of(Request(**REQUESTS), Request(min_p=0.1), Request(temperature=0.0))


def chosen_backend():
    from sglang.srt.runtime_context import get_exec

    return get_exec().kernel.sampling_backend


def assert_sglang_draws(sampler):
    """SGLang's sampler draws with its default backend, and computes log-probabilities."""
    from sglang.srt.layers.sampler import Sampler

    assert type(sampler) is Sampler
    assert chosen_backend() == "pytorch"
    tokens, output = draw(sampler, *rows(), top=[1, 1, 1])
    assert tokens.tolist() == [11, 22, 33]
    torch.testing.assert_close(output.next_token_logprobs.float(), torch.zeros(3))


def test_a_line_names_the_sampler_after_a_successful_load(logged):
    sampler = _registration.make_sampler(tokendraw_sglang.state())
    assert type(sampler).__name__ == "TokendrawSampler"
    assert draw(sampler, *rows())[0].tolist() == [11, 22, 33]
    assert logged() == ["tokendraw: sampler replaced (native 0.1.0, SGLang 0.5.23)"]


def test_an_untested_version_is_left_alone(logged, monkeypatch):
    monkeypatch.setattr("tokendraw.engines.installed_version", lambda name: "0.6.1")
    result = tokendraw_sglang.state()
    assert (result.installed, result.tested, result.applies) == ("0.6.1", ("0.5.23",), False)
    assert_sglang_draws(_registration.make_sampler(result))
    assert logged() == [
        "tokendraw: SGLang left alone: SGLang 0.6.1 is untested, tested are 0.5.23. It samples with its backend "
        "'pytorch'"
    ]


@pytest.mark.parametrize(
    ("place", "name", "changed", "reason"),
    [
        (
            "layers.sampler:Sampler",
            "forward",
            lambda self, logits, batch: None,
            "needs the parameters self, logits_output, sampling_info, return_logprob, top_logprobs_nums, "
            "token_ids_logprobs, positions, found self, logits, batch",
        ),
        (
            "sampling.sampling_batch_info:SamplingBatchInfo",
            "merge_batch",
            lambda self, *others: None,
            "needs the parameters self, other, found self, others",
        ),
        (
            "layers.logprob_processor:OutputLogprobProcessor",
            "compute_logprobs",
            lambda self, logprobs, token_ids: None,
            "needs the parameters self, logprobs, top_logprobs_nums, token_ids_logprobs, batch_next_token_ids, found "
            "self, logprobs, token_ids",
        ),
    ],
)
def test_a_changed_signature_is_left_alone(logged, monkeypatch, place, name, changed, reason):
    owner = pkgutil.resolve_name(f"sglang.srt.{place}")
    changed.__qualname__ = f"{owner.__name__}.{name}"
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, changed)
        result = tokendraw_sglang.state()
    assert (result.applies, result.reason) == (False, f"'{owner.__name__}.{name}' {reason}")
    assert_sglang_draws(_registration.make_sampler(result))
    assert logged() == [
        f"tokendraw: SGLang left alone: {result.reason}. It samples with its backend 'pytorch'"
    ]


def test_a_missing_field_and_a_missing_name_are_reasons(monkeypatch):
    monkeypatch.setattr(_engine, "BATCH_FIELDS", (*_engine.BATCH_FIELDS, "temperature_of_rows"))
    assert tokendraw_sglang.state().reason == (
        "'SamplingBatchInfo' needs the field temperature_of_rows, found none"
    )
    from sglang.srt.layers.sampler import Sampler

    monkeypatch.delattr(Sampler, "_sync_token_ids_across_tp")
    assert tokendraw_sglang.state().reason == (
        "importing SGLang 0.5.23 raised AttributeError: type object 'Sampler' has no attribute "
        "'_sync_token_ids_across_tp'"
    )


@pytest.mark.parametrize("settings", [{"TOKENDRAW_DISABLE": "native"}, {"TOKENDRAW_SAMPLER": "nosuch"}])
def test_without_a_plugin_sglang_draws(logged, monkeypatch, settings):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(tokendraw.SamplerUnavailableError) as error:
        tokendraw.load_sampler(need=tokendraw.Need(filter_orders=("joint",)))
    assert_sglang_draws(_registration.make_sampler(tokendraw_sglang.state()))
    (line,) = logged()
    sentence = " ".join(str(error.value).split())
    reason, _, goes_on = line.partition(". It samples")
    assert goes_on == " with its backend 'pytorch'"
    assert f"tokendraw: SGLang left alone: SamplerUnavailableError: {sentence}".startswith(
        reason.removesuffix(" ...")
    )
    assert len(reason) > 150


def test_draws_matching_a_trainer_are_sglangs(logged):
    from sglang.srt.runtime_context import get_exec

    with get_exec().deterministic.override(rl_on_policy_target="fsdp"):
        sampler = _registration.make_sampler(tokendraw_sglang.state())
    assert_sglang_draws(sampler)
    assert logged() == [
        "tokendraw: SGLang left alone: rl_on_policy_target asks for draws that match a trainer bit for bit. It samples "
        "with its backend 'pytorch'"
    ]


class Broken:
    """Fails on a later call, as a kernel on an unexpected batch."""

    name = "acme"

    def __init__(self, sampler, calls):
        self._sampler, self.calls = sampler, calls

    def sample(self, logits, metadata):
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("illegal\nshape")
        return self._sampler.sample(logits, metadata)

    def score(self, *arguments):
        return self._sampler.score(*arguments)

    def warmup(self, *args, **options):
        return 0.0


def broken(calls=0):
    from tokendraw_sglang._sampler import TokendrawSampler

    loaded = tokendraw.load_sampler("native", device="cpu", logprobs_mode="temperature_logprobs")
    return TokendrawSampler(Broken(loaded, calls))


def test_a_sampler_that_raises_in_the_middle_of_a_run_is_replaced_by_sglangs(logged):
    sampler = broken(calls=2)
    for _ in range(5):
        tokens, output = draw(sampler, *rows(), top=[1, 1, 1])
        assert tokens.tolist() == [11, 22, 33]
        torch.testing.assert_close(output.next_token_logprobs.float(), torch.zeros(3))
    assert sampler._draws is None
    assert logged() == [
        "tokendraw: 'acme' raised RuntimeError: illegal shape. SGLang goes on with its own sampling backend 'pytorch', "
        f"{AGAIN}"
    ]


def test_a_score_that_raises_leaves_log_probabilities_to_sglang_and_draws_nothing_again(logged, monkeypatch):
    sampler, scores = broken(calls=4), []

    def refuse(*_):
        scores.append(1)
        raise ValueError("no scorer.")

    monkeypatch.setattr(Broken, "score", refuse)
    for _ in range(3):
        tokens, output = draw(sampler, *rows(), top=[1, 1, 1], ids=[[5], None, None])
        assert tokens.tolist() == [11, 22, 33]
        torch.testing.assert_close(output.next_token_logprobs.float(), torch.zeros(3))
        torch.testing.assert_close(output.next_token_token_ids_logprobs_val[0], torch.tensor([-1e4 / 0.9]))
    assert (len(scores), sampler._draws.calls) == (1, 1)
    assert logged() == [
        "tokendraw: a score raised ValueError: no scorer. SGLang computes log-probabilities from now on"
    ]


def test_sglangs_processors_of_logits_run_once_on_every_batch_even_after_a_failure(monkeypatch):
    from sglang.srt.layers.sampler import Sampler

    def biased(self, logits, sampling_info):
        logits[:, 5] += 1.0
        return logits

    monkeypatch.setattr(Sampler, "_preprocess_logits", biased)
    sampler = broken()
    buffer = torch.zeros(1, V)  # SGLang's graphs write the logits of every step here
    for _ in range(3):
        _, output = draw(sampler, buffer.zero_(), info_of(Request(top_k=V)), ids=[[5]], copy=False)
        expected = torch.zeros(V)
        expected[5] = 1.0
        (result,) = output.next_token_token_ids_logprobs_val[0]
        torch.testing.assert_close(result, expected.log_softmax(-1)[5])


def test_a_warmup_that_raises_leaves_the_draws_to_sglang(logged, monkeypatch):
    sampler = broken(calls=9)

    def refuse(*_args, **_options):
        raise ValueError("no compiler.")

    monkeypatch.setattr(Broken, "warmup", refuse)
    assert draw(sampler, *rows())[0].tolist() == [11, 22, 33]
    assert logged() == [
        "tokendraw: 'acme' raised ValueError: no compiler. SGLang goes on with its own sampling backend 'pytorch', "
        f"{AGAIN}"
    ]


@pytest.mark.parametrize("method", ["sample", "score", "warmup"])
def test_beside_other_ranks_a_call_that_raises_raises_on_its_rank(logged, monkeypatch, method):
    def refuse(*_args, **_options):
        raise ValueError("no kernel")

    sampler = broken(calls=9)
    sampler.names = {"sample": ("acme",), "score": ("acme",)}
    monkeypatch.setattr(Broken, method, refuse)
    with pytest.raises(ValueError, match="no kernel"):
        draw(sampler, *rows(), top=[1, 1, 1])
    assert logged() == []


def test_without_a_scorer_on_the_first_rank_sglang_computes_log_probabilities_on_all():
    from tokendraw_sglang._sampler import TokendrawSampler

    loaded = tokendraw.load_sampler("native", device="cpu", logprobs_mode="temperature_logprobs")
    tokens, output = draw(TokendrawSampler(loaded, {"sample": ("native",)}), *rows(), top=[1, 1, 1])
    assert tokens.tolist() == [11, 22, 33]
    torch.testing.assert_close(output.next_token_logprobs.float(), torch.zeros(3))


class TestRegistration:
    @pytest.fixture(autouse=True)
    def anew(self):
        _registration._register_once.cache_clear()
        yield
        _registration._register_once.cache_clear()

    def test_raises_nothing(self, logged, monkeypatch):
        from sglang.srt.layers import sampler

        monkeypatch.delattr(sampler, "register_sampler_backend")
        tokendraw_sglang.register()
        (line,) = logged()
        assert line.startswith(
            "tokendraw: SGLang left alone: registration raised ImportError: cannot import name "
            "'register_sampler_backend' from 'sglang.srt.layers.sampler' ("
        )

    def test_without_sglang_says_so(self, logged, monkeypatch):
        for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
            monkeypatch.setitem(sys.modules, name, None)
        tokendraw_sglang.register()
        (line,) = logged()
        assert line.startswith("tokendraw: SGLang left alone: registration raised ModuleNotFoundError: ")

    def test_twice_is_once(self, logged, monkeypatch):
        from sglang.srt.layers import sampler
        from sglang.srt.plugins.hook_registry import HookRegistry

        calls = []
        monkeypatch.setattr(
            sampler, "register_sampler_backend", lambda backend, factory: calls.append(backend)
        )
        monkeypatch.setattr(_registration, "state", lambda: result)
        result = dataclasses.replace(tokendraw_sglang.state(), applies=True)
        monkeypatch.setattr(HookRegistry, "register", lambda target, *_: calls.append(target))
        for _ in range(3):
            tokendraw_sglang.register()
        batch = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
        of_rules = ("from_schedule_batch", "filter_batch", "merge_batch", "copy_for_forward")
        assert calls == [
            "tokendraw",
            f"{batch}.from_schedule_batch",
            f"{batch}.merge_batch",
            "sglang.srt.sampling.sampling_params.SamplingParams.verify",
            *(f"{batch}.{name}" for name in of_rules),
        ]
        assert logged() == []

    def test_leaves_the_batches_of_an_untested_sglang_alone(self, monkeypatch):
        from sglang.srt.layers import sampler
        from sglang.srt.plugins.hook_registry import HookRegistry

        calls = []
        monkeypatch.setattr(
            sampler, "register_sampler_backend", lambda backend, factory: calls.append(backend)
        )
        monkeypatch.setattr("tokendraw.engines.installed_version", lambda name: "0.6.1")
        monkeypatch.setattr(HookRegistry, "register", lambda *_: pytest.fail("hooked"))
        tokendraw_sglang.register()
        assert calls == ["tokendraw"]
