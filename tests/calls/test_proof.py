"""Building is proving: a sampler with a wrong draw is rejected with a reason; nothing else changes."""

import sys

import pytest
import torch

import tokendraw
from fake_dists import EVERYTHING, place, plugin
from tokendraw import (
    Need,
    SamplerFallbackWarning,
    SamplerUnavailableError,
    load_sampler,
)

BAD_DRAWS = {
    "a build that raises": (
        "raise RuntimeError('nvcc not found')",
        "tokendraw_build raised RuntimeError: nvcc not found {here}",
    ),
    "a build that exits": ("import sys; sys.exit(0)", "tokendraw_build raised SystemExit: 0 {here}"),
    "nothing": (
        "return None",
        "tokendraw_build needs to return an object with a method sample, found NoneType",
    ),
    "an int": ("return 3", "tokendraw_build needs to return an object with a method sample, found int"),
    "a draw that raises": (
        "return Fake(lambda x: 1 / 0)",
        "the proof draw raised ZeroDivisionError: division by zero {here}",
    ),
    "a draw that exits": (
        "return Fake(lambda x: __import__('sys').exit(1))",
        "the proof draw raised SystemExit: 1 {here}",
    ),
    "no output": (
        "return Fake(lambda x: None)",
        "the proof draw needs a SamplerOutput, found NoneType",
    ),
    "a list": (
        "return Fake(lambda x: output([1, 2]))",
        "the proof draw needs token_ids [2] torch.int64 on cpu, found list",
    ),
    "int32": (
        "return Fake(lambda x: output(x.argmax(-1).int()))",
        "the proof draw needs token_ids [2] torch.int64 on cpu, found [2] torch.int32 on cpu",
    ),
    "another shape": (
        "return Fake(lambda x: output(x.argmax(-1, keepdim=True)))",
        "the proof draw needs token_ids [2] torch.int64 on cpu, found [2, 1] torch.int64 on cpu",
    ),
    "another device": (
        "return Fake(lambda x: output(x.argmax(-1).to('meta')))",
        "the proof draw needs token_ids [2] torch.int64 on cpu, found [2] torch.int64 on meta",
    ),
    "a wrong token": (
        "return Fake(lambda x: output(x.argmin(-1)))",
        "the proof draw needs token 1024 in row 0 of 2048 logits, found 0",
    ),
    "a token out of range": (
        "return Fake(lambda x: output(x.argmax(-1) + 1024))",
        "the proof draw needs token 1024 in row 0 of 2048 logits, found 2048",
    ),
    "one tile alone": (
        "return Fake(lambda x: output(torch.tensor([1024, 1024])))",
        "the proof draw needs token 0 or 2047 in row 1 of 2048 logits, found 1024",
    ),
    "integers for valid": (
        "return Fake(lambda x: output(x.argmax(-1), valid=torch.ones(2)))",
        "the proof draw needs valid [2] torch.bool on cpu, found [2] torch.float32 on cpu",
    ),
    "invalid rows": (
        "return Fake(lambda x: output(x.argmax(-1), valid=torch.tensor([True, False])))",
        "the proof draw needs two valid rows, found valid [True, False]",
    ),
    "changed logits": (
        "return Fake(lambda x: output(x.exp_().argmax(-1)))",
        "the proof draw needs its logits unmodified, found them changed",
    ),
}

FAKE = """
import torch


def output(token_ids, valid=None):
    valid = torch.ones(2, dtype=torch.bool) if valid is None else valid
    return tokendraw.SamplerOutput(token_ids=token_ids, valid=valid)


class Fake:
    def __init__(self, drawn):
        self.drawn = drawn

    def sample(self, logits, metadata):
        return self.drawn(logits)


plugin = Plugin()
"""


@pytest.mark.parametrize(("build", "reason"), BAD_DRAWS.values(), ids=BAD_DRAWS.keys())
def test_what_does_not_prove_itself_is_passed_over_with_its_reason(dists, build, reason):
    source = plugin("acme", capabilities=EVERYTHING, build=build).replace("\nplugin = Plugin()\n", FAKE)
    reason = reason.format(here=place(source, build) if "{here}" in reason else "")
    dists.add_plugin("acme", source)
    with pytest.warns(SamplerFallbackWarning) as caught:
        sampler = load_sampler(device="cpu")
    assert sampler.name == "native"
    assert [str(warning.message) for warning in caught] == [
        f"'acme' was passed over: {reason}. Using 'native'. Set TOKENDRAW_DISABLE=acme to silence this."
    ]


def test_an_explicit_choice_that_does_not_prove_itself_is_refused_with_its_cause(dists):
    source = plugin("acme", build="raise RuntimeError('nvcc not found')")
    dists.add_plugin("acme", source)
    with pytest.raises(SamplerUnavailableError) as refusal:
        load_sampler("acme", device="cpu")
    assert str(refusal.value) == (
        "'acme', asked for by the argument sampler=, cannot serve the operation 'sample' on cpu: "
        f"tokendraw_build raised RuntimeError: nvcc not found {place(source, 'nvcc')}. "
        "Available here: native. Leave out sampler= to let tokendraw choose."
    )
    cause = refusal.value.__cause__
    assert isinstance(cause, tokendraw.PluginError)
    assert isinstance(cause.__cause__, RuntimeError)


def test_an_interrupt_while_building_passes_through(dists):
    dists.add_plugin("acme", plugin("acme", build="raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        load_sampler(device="cpu")


def test_each_candidate_that_fails_is_tried_once(dists):
    modules = [
        dists.add_plugin(name, plugin(name, priority=90, build="raise OSError"))
        for name in ("acme", "beta", "gamma")
    ]
    with pytest.warns(SamplerFallbackWarning, match="'acme' .* 'beta' .* 'gamma'"):
        assert load_sampler(device="cpu").name == "native"
    assert [len(sys.modules[module].BUILT) for module in modules] == [1, 1, 1]


def test_when_every_candidate_fails_the_error_gives_all_reasons(dists, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
    source = plugin("acme", build="raise OSError('no driver')")
    dists.add_plugin("acme", source)
    with pytest.raises(SamplerUnavailableError) as refusal:
        load_sampler(device="cpu")
    assert str(refusal.value) == (
        "No plugin can serve the operation 'sample' on cpu. "
        f"Found acme: tokendraw_build raised OSError: no driver {place(source, 'driver')}; "
        "native: switched off by TOKENDRAW_DISABLE. "
        "Take 'native' out of TOKENDRAW_DISABLE."
    )


def test_the_proof_draw_uses_the_filters_and_the_dtype_that_are_advertised(dists):
    source = plugin(
        "acme",
        capabilities="dtypes=('bfloat16',), filters=(('top_k', 'scalar'),), filter_orders=('joint',), "
        "max_vocab_size=100",
    ).replace(
        "        import torch\n",
        "        import torch\n"
        "        BUILT.append((logits.dtype, tuple(logits.shape), metadata.top_k.tolist(), metadata.facts))\n",
    )
    module = dists.add_plugin("acme", source)
    load_sampler(device="cpu", need=Need(filter_orders=("joint",)))
    dtype, shape, top_k, facts = sys.modules[module].BUILT[1]
    assert (dtype, shape, top_k) == (torch.bfloat16, (2, 100), [2, 2])
    assert (facts.any_top_p, facts.any_min_p, facts.any_greedy, facts.any_seeded) == (False,) * 4
    assert facts.any_joint


@pytest.mark.parametrize(("need", "is_filtered"), [(Need(), False), (Need(dtype="float32"), True)])
def test_the_proof_draw_of_what_compiles_on_demand_has_filters_where_the_dtype_is_known(
    dists, need, is_filtered
):
    source = plugin("acme", capabilities=f"{EVERYTHING}, compiles_on_demand=True").replace(
        "        import torch\n", "        import torch\n        BUILT.append(metadata)\n"
    )
    module = dists.add_plugin("acme", source)
    assert load_sampler(device="cpu", need=need).name == "acme"
    metadata = sys.modules[module].BUILT[1]
    assert (metadata.facts.max_top_k > 0, metadata.facts.any_top_p) == (is_filtered, is_filtered)


def test_loading_leaves_the_random_state_alone(dists):
    source = plugin("acme", build="import torch; torch.rand(1); torch.manual_seed(0); return ArgmaxSampler()")
    dists.add_plugin("acme", source)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert load_sampler(device="cpu").name == "acme"
    assert torch.equal(torch.get_rng_state(), before)
