"""Building is proving: a sampler with a wrong draw is rejected with a reason; nothing else changes."""

import sys

import pytest
import torch

import call_tables
import tokendraw
from fake_candidates import EVERYTHING as ALL_OF_IT
from fake_dists import EVERYTHING, place, plugin
from tokendraw import (
    Need,
    SamplerFallbackWarning,
    SamplerOutput,
    SamplerUnavailableError,
    load_sampler,
    operations,
)

OF_BUILD = "tokendraw_build needs to return an object with a method sample, found"
WRONG = {
    "tokendraw_build raised RuntimeError: nvcc not found {here}": "raise RuntimeError('nvcc not found')",
    "tokendraw_build raised SystemExit: 0 {here}": "import sys; sys.exit(0)",
    f"{OF_BUILD} NoneType": "return None",
    "the proof draw raised ZeroDivisionError: division by zero {here}": (
        "sampler = ArgmaxSampler(); sampler.sample = lambda *given: 1 / 0; return sampler"
    ),
    "the proof draw raised SystemExit: 1 {here}": (
        "sampler = ArgmaxSampler(); sampler.sample = lambda *given: __import__('sys').exit(1); return sampler"
    ),
}
"""Reasons, and the statements of ``tokendraw_build``."""


@pytest.mark.parametrize("reason", WRONG)
def test_what_does_not_prove_itself_is_passed_over_with_its_reason(dists, reason):
    source = plugin("acme", capabilities=EVERYTHING, build=WRONG[reason])
    reason = reason.format(here=place(source, WRONG[reason]) if "{here}" in reason else "")
    dists.add_plugin("acme", source)
    with pytest.warns(SamplerFallbackWarning) as caught:
        sampler = load_sampler(device="cpu")
    assert sampler.name == "native"
    assert [str(warning.message) for warning in caught] == [
        f"'acme' was passed over: {reason}. Using 'native'. Set TOKENDRAW_DISABLE=acme to silence this."
    ]


class Drawing:
    """Returns what a function of the logits does."""

    def __init__(self, draw):
        self.draw = draw

    def sample(self, logits, metadata):
        return self.draw(logits)


def proof(draw):
    """Prove a sampler of EVERYTHING on a CPU."""
    operations.find_operation("sample").prove(Drawing(draw), ALL_OF_IT, torch.device("cpu"), Need())


def output(token_ids, valid=None):
    return SamplerOutput(token_ids, torch.ones(2, dtype=torch.bool) if valid is None else valid)


def test_which_draws_prove_nothing():
    table = call_tables.Table(__file__, "proofs.txt")
    assert table.found(lambda: dict(globals())) == table.text


def test_where_none_is_left_the_error_gives_the_reason_and_the_cause(dists, monkeypatch):
    source = plugin("acme", build="raise RuntimeError('nvcc not found')")
    module, here = dists.add_plugin("acme", source), place(source, "nvcc")
    with pytest.raises(SamplerUnavailableError) as refusal:
        load_sampler("acme", device="cpu")
    assert str(refusal.value) == (
        "'acme', asked for by the argument sampler=, cannot serve the operation 'sample' on cpu: "
        f"tokendraw_build raised RuntimeError: nvcc not found {here}. "
        "Available here: native. Leave out sampler= to let tokendraw choose."
    )
    cause = refusal.value.__cause__
    assert isinstance(cause, tokendraw.PluginError)
    assert isinstance(cause.__cause__, RuntimeError)
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
    with pytest.raises(SamplerUnavailableError) as refusal:
        load_sampler(device="cpu")
    assert str(refusal.value) == (
        "No plugin can serve the operation 'sample' on cpu. "
        f"Found acme: tokendraw_build raised RuntimeError: nvcc not found {here}; "
        "native: switched off by TOKENDRAW_DISABLE. Take 'native' out of TOKENDRAW_DISABLE."
    )
    assert len(sys.modules[module].BUILT) == 2  # once a load


def test_an_interrupt_while_building_passes_through(dists):
    dists.add_plugin("acme", plugin("acme", build="raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        load_sampler(device="cpu")


def proof_of(dists, need, **options):
    """Return the logits and the metadata of the proof draw of a sampler."""
    source = plugin("acme", **options)
    kept = "        import torch\n        BUILT.append((logits, metadata))\n"
    module = dists.add_plugin("acme", source.replace("        import torch\n", kept))
    assert load_sampler(device="cpu", need=need).name == "acme"
    return sys.modules[module].BUILT[1]


def test_the_proof_draw_uses_the_filters_and_the_dtype_that_are_advertised(dists):
    offered = (
        "dtypes=('bfloat16',), filters=(('top_k', 'scalar'),), filter_orders=('joint',), max_vocab_size=100"
    )
    logits, metadata = proof_of(dists, Need(filter_orders=("joint",)), capabilities=offered)
    assert (logits.dtype, logits.shape, metadata.top_k.tolist()) == (torch.bfloat16, (2, 100), [2, 2])
    facts = metadata.facts
    assert (facts.any_top_p, facts.any_min_p, facts.any_greedy, facts.any_seeded) == (False,) * 4
    assert facts.any_joint


@pytest.mark.parametrize(("need", "is_filtered"), [(Need(), False), (Need(dtype="float32"), True)])
def test_the_proof_of_what_compiles_on_demand_has_filters_if_the_dtype_is_known(dists, need, is_filtered):
    _, metadata = proof_of(dists, need, capabilities=f"{EVERYTHING}, compiles_on_demand=True")
    assert (metadata.facts.max_top_k > 0, metadata.facts.any_top_p) == (is_filtered, is_filtered)


def test_loading_leaves_the_random_state_alone(dists):
    dists.add_plugin(
        "acme", plugin("acme", build="import torch; torch.manual_seed(0); return ArgmaxSampler()")
    )
    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert load_sampler(device="cpu").name == "acme"
    assert torch.equal(torch.get_rng_state(), before)


BROKEN = """
class Wrong(ArgmaxSampler):
    def sample(self, logits, metadata, *, draft=False):
        return super().sample(logits, metadata)

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        import torch

        ids = target_logits.new_zeros(2, 2, dtype=torch.int64)
        return tokendraw.VerifyOutput(ids, ids[:, 0].int(), ids[:, 0] == 0)
"""


def test_a_verifier_is_proven_when_first_asked_for_and_may_be_another_backend(dists):
    source = plugin("acme", capabilities=EVERYTHING, build="return Wrong()") + BROKEN
    verifying = "tokendraw.plugin.VerifyCapabilities(verify_modes=('rejection',), draft_kinds=('probs',), "
    source = source.replace(
        'operations={"sample": tokendraw.plugin.Capabilities(', f"operations={{op: {verifying}"
    ).replace(")},\n        )", ') for op in ("sample", "verify")},\n        )')
    dists.add_plugin("acme", source)
    sampler = load_sampler(device="cpu")
    assert (sampler.name, sampler.resolution.operation) == ("acme", "sample")
    with pytest.warns(SamplerFallbackWarning, match="the proof draw needs the tokens"):
        assert sampler.verify_resolution.chosen == "native"
    assert sampler.verify_resolution.operation == "verify"
