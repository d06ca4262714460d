"""Faults of what the adapter to SGLang replaces: SGLang goes on with its sampling, and a line of the log says why.

From logits that are edited once, where seeds give other tokens or none. Beside other ranks a fault raises.
"""

import logging
import pkgutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import sglang_engine
import tokendraw
import tokendraw_sglang
from call_tables import agree, pairs
from sglang_drafts import batch_of, chains, speculation, verify
from sglang_engine import Request, draw, info_of
from tokendraw_sglang import _engine
from tokendraw_sglang._requests import _CHOICE

pytestmark = pytest.mark.usefixtures("sglang")
V, WIDTH = 100, 4
BEST = [11, 22, 33]
GOES_ON = (
    "SGLang goes on with its own sampling backend 'pytorch', where seeds give other tokens or none; restart it to draw "
    "through tokendraw again"
)
OWN_BACKEND = "It samples with its backend 'pytorch'"
OWN_SCORES = "SGLang computes log-probabilities from now on"


@pytest.fixture(autouse=True)
def given_backend():
    with sglang_engine.backend("tokendraw"):
        yield


@pytest.fixture
def logged(caplog):
    """The lines of the adapter's log so far, without its name."""
    caplog.set_level(logging.INFO, logger="tokendraw.sglang")
    return lambda: [
        record.getMessage().removeprefix("tokendraw: ")
        for record in caplog.records
        if record.name == "tokendraw.sglang"
    ]


def rows():
    """Logits with a certain token in each row, and the parameters of a batch."""
    logits = torch.full((3, V), -1e4)
    logits[[0, 1, 2], BEST] = 0.0
    seeded = Request(temperature=0.9, top_k=1000, top_p=0.9, sampling_seed=3)
    return logits, info_of(seeded, Request(min_p=0.1), Request(temperature=0.0), vocab_size=V)


def assert_certain(sampler, **wanted):
    """Each row draws its certain token, with the log-probability 0."""
    tokens, output = draw(sampler, *rows(), top=[1, 1, 1], **wanted)
    assert tokens.tolist() == BEST
    torch.testing.assert_close(output.next_token_logprobs.float(), torch.zeros(3))
    return output


def assert_verifies_and_scores():
    """A chain of certain drafts, of which one is wrong, is verified; what is emitted has the log-probability 0."""
    from sglang.srt.layers import logprob_processor
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.speculative import eagle_utils

    logits = torch.full((WIDTH, V), -1e4)
    logits[torch.arange(WIDTH), torch.tensor([3, 4, 5, 6])] = 0.0
    info, drafts = info_of(Request(sampling_seed=3), vocab_size=V), chains([[1, 3, 4, 9]], [7])
    column = info.sampling_seed
    info.logit_bias = torch.zeros(1, V).index_fill_(1, torch.tensor([8]), 6e3)  # twice it would be the best
    assert verify(drafts, info, logits, [7])[0] == [[3, 4, 5]]
    assert info.sampling_seed is column
    assert info.logit_bias is not None
    batch, output = batch_of(info, [7]), LogitsProcessorOutput(next_token_logits=logits)
    predict, counts, accept_index = eagle_utils.eagle_sample(drafts, batch, output)
    logprob_processor.compute_spec_logprobs(batch, output, predict, accept_index=accept_index)
    emitted = output.next_token_logprobs[0, : int(counts)].float()
    torch.testing.assert_close(emitted, torch.zeros(3))


def made():
    """SGLang's sampler."""
    return tokendraw_sglang.make_sampler(tokendraw_sglang.state())


def test_without_a_fault_tokendraw_draws_and_a_line_says_so(logged):
    sampler = made()
    assert type(sampler).__name__ == "TokendrawSampler"
    assert_certain(sampler)
    assert logged() == ["sampler replaced (native 0.1.0, SGLang 0.5.23)"]
    view = SimpleNamespace(sampling_backend="tokendraw", rl_on_policy_target=None)
    assert pkgutil.resolve_name(_CHOICE)(view) == {}  # also in deterministic inference


# An SGLang that does not fit, or no plugin.


def replaced(place, name, function):
    """Change the parameters of SGLang's function."""

    def fault(patch):
        owner = pkgutil.resolve_name(f"sglang.srt.{place}")
        function.__qualname__ = name if ":" not in place else f"{owner.__name__}.{name}"
        patch.setattr(owner, name, function)

    return fault


def missing_field(patch):
    patch.setattr(_engine, "BATCH_FIELDS", (*_engine.BATCH_FIELDS, "temperature_of_rows"))


def untested(patch):
    patch.setattr("tokendraw.engines.installed_version", lambda name: "0.6.1")


@pytest.mark.parametrize("has_hooks", [False, True])
@pytest.mark.parametrize(("fault", "reason"), pairs(Path(__file__).with_name("sglang_left_alone.txt")))
def test_an_sglang_that_does_not_fit_draws_verifies_and_scores_itself(
    logged, monkeypatch, caplog, fault, reason, has_hooks
):
    """Also where an earlier sampler of the process has hooked its functions."""
    from sglang.srt.layers.sampler import Sampler
    from sglang.srt.runtime_context import get_exec

    if has_hooks:
        with speculation():
            made()
        caplog.clear()
    for name in ("sample", "verify", "score"):
        monkeypatch.setattr(tokendraw.Sampler, name, lambda *_, **__: pytest.fail("tokendraw was called"))
    with speculation(), monkeypatch.context() as patch:
        with monkeypatch.context() as fault_patch:
            eval(fault, globals())(fault_patch)
            sampler = made()
        assert type(sampler) is Sampler
        assert get_exec().kernel.sampling_backend == "pytorch"
        assert_certain(sampler)
        if has_hooks:
            assert_verifies_and_scores()
        patch.undo()
    (line,) = logged()
    assert agree(f"SGLang left alone: {reason}{OWN_BACKEND}", line)
    assert tokendraw_sglang.state().applies


def test_draws_that_match_a_trainer_are_sglangs(logged):
    from sglang.srt.layers.sampler import Sampler
    from sglang.srt.runtime_context import get_exec

    with get_exec().deterministic.override(rl_on_policy_target="fsdp"):
        sampler = made()
    assert type(sampler) is Sampler
    assert_certain(sampler)
    reason = "rl_on_policy_target asks for draws that match a trainer bit for bit"
    assert logged() == [f"SGLang left alone: {reason}. {OWN_BACKEND}"]


def no_sglang(patch):
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        patch.setitem(sys.modules, name, None)


class TestRegistration:
    @pytest.fixture(autouse=True)
    def anew(self):
        tokendraw_sglang._register_once.cache_clear()
        yield
        tokendraw_sglang._register_once.cache_clear()

    @pytest.fixture
    def calls(self, monkeypatch):
        """Registered backends and hooks."""
        from sglang.srt.layers import sampler
        from sglang.srt.plugins.hook_registry import HookRegistry

        calls = []
        monkeypatch.setattr(
            sampler, "register_sampler_backend", lambda backend, factory: calls.append(backend)
        )
        monkeypatch.setattr(HookRegistry, "register", lambda target, hook, hook_type: calls.append(target))
        return calls

    @pytest.mark.parametrize(("fault", "line"), pairs(Path(__file__).with_name("sglang_registration.txt")))
    def test_raises_nothing_and_says_what_is_left_to_sglang(self, logged, calls, monkeypatch, fault, line):
        eval(fault, globals())(monkeypatch)
        tokendraw_sglang.register()
        assert agree(line, logged()[0])
        assert _CHOICE not in calls

    def test_twice_is_once(self, logged, calls):
        for _ in range(3):
            tokendraw_sglang.register()
        batch = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
        of_rules = ("from_schedule_batch", "filter_batch", "merge_batch", "copy_for_forward")
        assert calls == [
            "tokendraw",
            "sglang.srt.sampling.sampling_params.SamplingParams.verify",
            *(f"{batch}.{name}" for name in of_rules),
            _CHOICE,
        ]
        assert logged() == []

    def test_leaves_the_batches_of_an_untested_sglang_alone(self, calls, monkeypatch):
        untested(monkeypatch)
        tokendraw_sglang.register()
        assert calls == ["tokendraw"]


# Drafts that SGLang verifies.


@pytest.mark.parametrize(("case", "reason"), pairs(Path(__file__).with_name("sglang_verification.txt")))
def test_a_verification_that_does_not_fit_is_left_to_sglang_without_seeds(logged, monkeypatch, case, reason):
    leaves, fault = eval(case, globals())
    with speculation(**leaves), monkeypatch.context() as patch:
        if fault is not None:
            fault(patch)
        for _ in range(2):
            assert type(made()).__name__ == "TokendrawSampler"
        assert info_of(Request(sampling_seed=3)).sampling_seed is None
    found = [line for line in logged() if "replaced" not in line]
    assert agree(f"SGLang verifies drafts, where seeds give other tokens or none: {reason}", found[0])


# A call that raises in the middle of a run.


@pytest.fixture
def failing(monkeypatch):
    """``failing(name, after, error)``: a list that grows with the calls of a method; the later ones raise."""

    def fail(name, after, error):
        calls, original = [], getattr(tokendraw.Sampler, name)

        def method(self, *arguments, **named):
            calls.append(name)
            if len(calls) > after:
                raise error
            return original(self, *arguments, **named)

        monkeypatch.setattr(tokendraw.Sampler, name, method)
        return calls

    return fail


FAILURES = {
    "sample": (RuntimeError("illegal\nshape"), f"'native' raised RuntimeError: illegal shape. {GOES_ON}"),
    "warmup": (ValueError("no compiler."), f"'native' raised ValueError: no compiler. {GOES_ON}"),
    "score": (ValueError("no scorer."), f"a score raised ValueError: no scorer. {OWN_SCORES}"),
}


@pytest.mark.parametrize("verifies", [False, True])
@pytest.mark.parametrize("name", FAILURES)
def test_a_call_that_raises_is_the_last_and_sglang_goes_on(logged, failing, name, verifies):
    """A failed score draws nothing again, and leaves the draws to tokendraw."""
    error, line = FAILURES[name]
    with speculation():
        sampler = made()
        if verifies and name != "warmup":
            sampler.is_ready(torch.zeros(1, V))
        calls = failing(name, 0 if name == "warmup" else 2, error)
        draws = failing("sample", 100, error) if name == "score" else []
        for _ in range(5):
            if verifies:
                assert_verifies_and_scores()
            else:
                output = assert_certain(sampler, ids=[[5], None, None])
                (value,) = output.next_token_token_ids_logprobs_val[0]
                assert sampler._draws is None or float(value) == pytest.approx(-1e4 / 0.9)
    assert len(calls) == (1 if name == "warmup" else 3)
    assert name != "score" or len(draws) == (10 if verifies else 5)
    assert (sampler._draws is None) == (name != "score")
    assert logged()[1:] == [line]
    assert draw(sampler, *rows())[0].tolist() == BEST


@pytest.mark.parametrize("after", [0, 9])
def test_sglangs_processors_of_logits_run_once_on_every_batch_even_after_a_failure(
    monkeypatch, failing, after
):
    from sglang.srt.layers.sampler import Sampler

    def biased(self, logits, sampling_info):
        logits[:, 5] += 1.0
        return logits

    monkeypatch.setattr(Sampler, "_preprocess_logits", biased)
    sampler = made()
    failing("sample", after, RuntimeError("illegal shape"))
    expected = torch.zeros(V).index_fill_(0, torch.tensor([5]), 1.0).log_softmax(-1)[5]
    buffer = torch.zeros(1, V)  # SGLang's graphs write the logits of every step here
    for _ in range(3):
        _, output = draw(sampler, buffer.zero_(), info_of(Request(top_k=V)), ids=[[5]], copy=False)
        (value,) = output.next_token_token_ids_logprobs_val[0]
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("name", FAILURES)
def test_beside_other_ranks_a_call_that_raises_raises_on_its_rank(logged, failing, monkeypatch, name):
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 3)
    sampler = made()
    sampler.names = {"sample": ("native",), "score": ("native",)}
    failing(name, 0, ValueError("no kernel"))
    with pytest.raises(RuntimeError, match="tokendraw failed on rank 3: ValueError: no kernel"):
        draw(sampler, *rows(), top=[1, 1, 1])
    assert len(logged()) == 1


def test_without_a_scorer_on_the_first_rank_sglang_computes_log_probabilities_on_all():
    from tokendraw_sglang._sampler import TokendrawSampler

    loaded = tokendraw.load_sampler("native", device="cpu", logprobs_mode="temperature_logprobs")
    assert_certain(TokendrawSampler(loaded, {"sample": ("native",)}))
