"""Calls are compared with the contract: the output's form always, the rest with ``TOKENDRAW_DEBUG=1``.

With the switch a fault is never hidden by a fallback; without it a wrong form counts as a call that raised.
"""

import pytest
import torch

from fake_dists import EVERYTHING, fake_dists, faulty
from tokendraw import PluginError, SamplerFallbackWarning, SamplingMetadata, SamplingParams, load_sampler
from tokendraw.parameters.batch_facts import BatchFacts

METADATA = SamplingMetadata(facts=BatchFacts(any_greedy=False, any_seeded=False))
NAN = float("nan")


@pytest.fixture
def dists(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_DEBUG", "1")
    with fake_dists(tmp_path, monkeypatch) as found:
        yield found


def batch(dtype=torch.float32):
    """Rows in wider storage, with NaN and a negative zero."""
    wide = torch.zeros(2, 5, dtype=dtype)
    wide[0, :4] = torch.tensor([-0.0, 9.0, NAN, 1.0])
    return wide[:, :4]


def out(token_ids="logits.argmax(-1)", valid="torch.ones(2, dtype=torch.bool)"):
    return f"return tokendraw.SamplerOutput({token_ids}, {valid})"


FORMS = {
    "int32 tokens": (
        out("logits.argmax(-1).int()"),
        "return token_ids [2] torch.int64 on cpu, found [2] torch.int32 on cpu",
    ),
    "another shape": (
        out("logits.argmax(-1)[:, None]"),
        "return token_ids [2] torch.int64 on cpu, found [2, 1] torch.int64 on cpu",
    ),
    "another device": (
        out("logits.argmax(-1).to('meta')"),
        "return token_ids [2] torch.int64 on cpu, found [2] torch.int64 on meta",
    ),
    "a list": (out("[1, 2]"), "return token_ids [2] torch.int64 on cpu, found list"),
    "nothing": ("return None", "return a SamplerOutput, found NoneType"),
    "a tuple": (
        "return logits.argmax(-1), torch.ones(2, dtype=torch.bool)",
        "return a SamplerOutput, found tuple",
    ),
    "floating-point tokens": (
        out("logits.argmax(-1).float()"),
        "return token_ids [2] torch.int64 on cpu, found [2] torch.float32 on cpu",
    ),
    "integers for valid": (
        out(valid="torch.ones(2, dtype=torch.int64)"),
        "return valid [2] torch.bool on cpu, found [2] torch.int64 on cpu",
    ),
}
"""Wrong at a glance."""
FAULTS = {
    **FORMS,
    "an id of V": (
        out("torch.tensor([0, 4])"),
        "return token_ids in [0, 4), found 4 in row 1 of 2",
    ),
    "an id below 0": (
        out("torch.tensor([-1, 4])"),
        "return token_ids in [0, 4), found -1 in row 0 of 2",
    ),
    "changed logits": (
        "logits[1, 0] = 1.0",
        "leave logits unmodified, found 1 of 2 rows changed",
    ),
    "a zero of the other sign": (
        "logits[0, 0] = 0.0",
        "leave logits unmodified, found 1 of 2 rows changed",
    ),
    "changed logits and an error": (
        "logits[:, 0] = 1.0; raise tokendraw.InvalidInputError('no')",
        "leave logits unmodified, found 2 of 2 rows changed",
    ),
}


@pytest.mark.parametrize("choice", [None, "acme"])
@pytest.mark.parametrize(("fault", "found"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_an_error_that_names_the_sampler(dists, fault, found, choice):
    dists.add_plugin("acme", faulty("acme", fault, after=1))
    sampler = load_sampler(choice, device="cpu")
    sampler.sample(batch(), METADATA)
    with pytest.raises(PluginError) as error:
        sampler.sample(batch(), METADATA)
    assert str(error.value) == (f"'acme' needs to {found}. Mend the plugin, or set TOKENDRAW_DISABLE=acme.")
    assert sampler.name == "acme"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sound_calls_pass_and_nan_is_no_change(dists, dtype):
    sampler = load_sampler("native", device="cpu")
    for logits in (batch(dtype), batch(dtype)[:0]):
        assert sampler.sample(logits, METADATA).token_ids.shape == (len(logits),)


def test_an_error_of_a_call_that_kept_its_logits_is_dealt_with_as_ever(dists):
    dists.add_plugin("acme", faulty("acme", "raise RuntimeError('no kernel image')"))
    sampler = load_sampler(device="cpu")
    with pytest.warns(UserWarning, match="'acme' failed"):
        sampler.sample(batch(), METADATA)
    assert sampler.name == "native"


def test_a_call_that_is_captured_is_not_looked_at(dists, monkeypatch):
    dists.add_plugin("acme", faulty("acme", "logits.zero_()"))
    sampler = load_sampler(device="cpu")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    logits = batch()
    sampler.sample(logits, METADATA)
    assert logits.tolist() == [[0.0] * 4] * 2


@pytest.mark.gpu
def test_with_the_switch_a_graph_can_be_captured(dists):
    sampler, logits = load_sampler("native", device="cuda"), batch().cuda()
    metadata = SamplingMetadata(temperature=torch.zeros(2, device="cuda"))
    drawn = sampler.sample(logits, metadata).token_ids.tolist()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = sampler.sample(logits, metadata)
    graph.replay()
    assert output.token_ids.tolist() == drawn


@pytest.mark.parametrize("switch", ["", "0"])
def test_without_the_switch_no_value_is_looked_at(dists, monkeypatch, switch):
    monkeypatch.setenv("TOKENDRAW_DEBUG", switch)
    dists.add_plugin("acme", faulty("acme", out("torch.tensor([0, 4])")))
    assert load_sampler(device="cpu").sample(batch(), METADATA).token_ids.tolist() == [0, 4]


# The form, always


@pytest.mark.parametrize(("fault", "found"), FORMS.values(), ids=FORMS.keys())
def test_a_wrong_form_counts_as_a_call_that_raised(dists, monkeypatch, fault, found):
    monkeypatch.delenv("TOKENDRAW_DEBUG")
    dists.add_plugin("acme", faulty("acme", fault))
    explicit, default = load_sampler("acme", device="cpu"), load_sampler(device="cpu")
    with pytest.raises(PluginError) as error:
        explicit.sample(batch(), METADATA)
    assert str(error.value) == f"'acme' needs to {found}. Mend the plugin, or set TOKENDRAW_DISABLE=acme."
    assert error.value.__notes__ == [
        "'acme' was asked for by the argument sampler=, so no other one takes over. "
        "Leave out sampler= to let tokendraw choose."
    ]
    with pytest.warns(SamplerFallbackWarning) as told:
        assert default.sample(batch(), METADATA).token_ids.tolist()[0] == 1
    assert [str(warning.message) for warning in told] == [
        f"'acme' failed: its call needs to {found}. Using 'native' from here on. "
        "Set TOKENDRAW_DISABLE=acme to silence this."
    ]
    assert default.name == "native"


IDS, VALUES, RANKS = (
    "torch.zeros(2, 3, dtype=torch.int64)",
    "torch.zeros(2, 3)",
    "torch.ones(2, dtype=torch.int64)",
)
BEST = {
    "none": ("None", "torch.zeros(2)", "logprobs of the type LogprobsTensors, found NoneType"),
    "a tensor": (VALUES, "torch.zeros(2)", "logprobs of the type LogprobsTensors, found Tensor"),
    "a column too few": (
        f"tokendraw.LogprobsTensors({IDS}[:, 1:], {VALUES}, {RANKS})",
        "torch.zeros(2)",
        "logprobs.token_ids [2, 3] torch.int64 on cpu, found [2, 2] torch.int64 on cpu",
    ),
    "float64": (
        f"tokendraw.LogprobsTensors({IDS}, {VALUES}.double(), {RANKS})",
        "torch.zeros(2)",
        "logprobs.logprobs [2, 3] torch.float32 on cpu, found [2, 3] torch.float64 on cpu",
    ),
    "ranks of each token": (
        f"tokendraw.LogprobsTensors({IDS}, {VALUES}, {IDS})",
        "torch.zeros(2)",
        "logprobs.ranks [2] torch.int64 on cpu, found [2, 3] torch.int64 on cpu",
    ),
    "no ranks": (
        f"tokendraw.LogprobsTensors({IDS}, {VALUES}, None)",
        "torch.zeros(2)",
        "logprobs.ranks [2] torch.int64 on cpu, found NoneType",
    ),
    "no kept mass": (
        f"tokendraw.LogprobsTensors({IDS}, {VALUES}, {RANKS})",
        "None",
        "log_kept_mass [2] torch.float32 on cpu, found NoneType",
    ),
}


@pytest.mark.parametrize(("best", "mass", "found"), BEST.values(), ids=BEST.keys())
def test_so_does_a_wrong_form_of_logprobs_that_were_asked_for(dists, monkeypatch, best, mass, found):
    monkeypatch.delenv("TOKENDRAW_DEBUG")
    valid = "torch.ones(2, dtype=torch.bool)"
    fault = f"return tokendraw.SamplerOutput(logits.argmax(-1), {valid}, {best}, {mass})"
    dists.add_plugin("acme", faulty("acme", fault))
    sampler = load_sampler("acme", device="cpu")
    asking = SamplingMetadata.from_params([SamplingParams(logprobs=2)] * 2)
    with pytest.raises(PluginError) as error:
        sampler.sample(batch(), asking)
    assert str(error.value) == (
        f"'acme' needs to return {found}. Mend the plugin, or set TOKENDRAW_DISABLE=acme."
    )
    assert sampler.sample(batch(), METADATA).token_ids.tolist() == [2, 0]  # nobody asked


BEST_OF_BATCH = f"tokendraw.LogprobsTensors({IDS}, {{values}}, {RANKS})"
ABOVE = {
    "a log-probability": ("torch.tensor([[-1.0, -1.0, -1.0], [-1.0, 2e-8, -1.0]])", "torch.zeros(2)"),
    "a kept mass": ("torch.zeros(2, 3)", "torch.tensor([1e-7, 0.0])"),
}
FOUND_ABOVE = {
    "a log-probability": "logprobs.logprobs at most 0 in the mode {mode}, found 2e-08 at [1, 1] of [2, 3]",
    "a kept mass": "log_kept_mass at most 0 in the mode {mode}, found 1e-07 at [0] of [2]",
}


@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logprobs"])
@pytest.mark.parametrize("what", ABOVE)
def test_logprobs_above_their_bound_are_a_fault(dists, what, mode):
    values, mass = ABOVE[what]
    valid, best = "torch.ones(2, dtype=torch.bool)", BEST_OF_BATCH.format(values=values)
    fault = f"return tokendraw.SamplerOutput(logits.argmax(-1), {valid}, {best}, {mass})"
    dists.add_plugin("acme", faulty("acme", fault))
    asking = SamplingMetadata.from_params([SamplingParams(logprobs=2)] * 2)
    with pytest.raises(PluginError) as error:
        load_sampler("acme", device="cpu", logprobs_mode=mode).sample(batch(), asking)
    assert str(error.value) == (
        f"'acme' needs to return {FOUND_ABOVE[what].format(mode=mode)}. "
        "Mend the plugin, or set TOKENDRAW_DISABLE=acme."
    )


def test_raw_logits_may_lie_above_0(dists):
    valid, best = "torch.ones(2, dtype=torch.bool)", BEST_OF_BATCH.format(values="torch.ones(2, 3)")
    fault = f"return tokendraw.SamplerOutput(logits.argmax(-1), {valid}, {best}, torch.zeros(2))"
    raw = EVERYTHING.replace("'raw_logprobs'", "'raw_logits'")
    dists.add_plugin("acme", faulty("acme", fault, capabilities=raw))
    asking = SamplingMetadata.from_params([SamplingParams(logprobs=2)] * 2)
    output = load_sampler("acme", device="cpu", logprobs_mode="raw_logits").sample(batch(), asking)
    assert output.logprobs.logprobs.tolist() == [[1.0] * 3] * 2


def test_what_is_captured_is_looked_at_too(dists, monkeypatch):
    dists.add_plugin("acme", faulty("acme", "return None"))
    sampler = load_sampler(device="cpu")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(PluginError, match="found NoneType"):
        sampler.sample(batch(), METADATA)
    assert sampler.name == "acme"
