"""The decision as a pure function: every reason, message, rank and companion by a table of calls.

``selection_table.txt`` states who is chosen on every platform. What holds of every resolution stands in
``test_properties.py``.
"""

import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

import fake_candidates
import tokendraw
from call_tables import pairs
from fake_candidates import ALL, EVERYTHING, FLASHINFER, H100, LAPTOP, NATIVE, candidate
from fake_dists import plugin
from tokendraw import InvalidParameterError, Need, SamplerUnavailableError, operations, resolve
from tokendraw.backends.resolution.decide import decide
from tokendraw.plugin import Capabilities, Host, PluginInfo, Release, Upstream, VerifyCapabilities
from tokendraw.resolution import Candidate, Choice, DuplicatePluginError, State

NEED = Need()
DEFAULT = Choice()
VERIFYING = VerifyCapabilities.of(EVERYTHING)
GREATEST = Need(
    logprobs_mode="processed_logprobs",
    filter_orders=("top_k_first", "joint"),
    gumbel_dtype="fp64",
    dtype="float16",
    vocab_size=262145,
    valid_flag=True,
    threshold=True,
    graph_safe=True,
    sync_free=True,
    batch_invariant=True,
    seeding="counter",
    tie_rule="value",
)
TABLE = (
    Release("0", "was never looked at", refused=True),
    Release("2", "has all that is called"),
    Release("2.5", "returns the wrong rows (pull request 17)", refused=True),
    Release("2.5.post1", "has all that is called"),
    Release("0", "has no kernel that draws", "sample", refused=True),
    Release("2.1", "draws with layout v1", "sample"),
    Release("2.3", "draws with layout v2", "sample"),
    Release("2.3.post2", "draws with layout v1", "sample"),
    Release("2.4", "draws with layout v2", "sample"),
)

# The words of the table


def able(**changes):
    return replace(EVERYTHING, **changes)


def named(name, priority, **changes):
    return candidate(name, priority, able(**changes))


def asked(name, source="TOKENDRAW_SAMPLER"):
    return Choice(sampler=name, source=source)


def who(candidates, host=LAPTOP, need=NEED, choice=DEFAULT, operation="sample", companions=True):
    """Return the choice, the companion and the warnings; or the reason for no choice."""
    try:
        if companions:
            made = resolve(candidates, host, need, choice, operation=operation)
        else:
            record = operations.find_operation(operation)
            made = decide(candidates, host, need, choice, operation=record, companions=False)
    except (SamplerUnavailableError, InvalidParameterError, DuplicatePluginError) as refusal:
        return str(refusal)
    return "; ".join([" beside ".join(filter(None, (made.chosen, made.companion))), *made.warnings])


def decisions(candidates, host=LAPTOP, need=NEED, choice=DEFAULT, operation="sample"):
    try:
        return resolve(candidates, host, need, choice, operation=operation).decisions
    except SamplerUnavailableError as refusal:
        return refusal.decisions


def about(name, *arguments, **options):
    """Return the reason of a decision."""
    return next(decision.reason for decision in decisions(*arguments, **options) if decision.name == name)


def order(*arguments, **options):
    return ", ".join(decision.name for decision in decisions(*arguments, **options))


def why(capabilities, host=LAPTOP, need=NEED, operation="sample"):
    """Return the reason for or against a sampler with some capabilities."""
    return about("acme", [candidate("acme", 0, capabilities)], host, need, operation=operation)


def beyond(capabilities, need=NEED):
    return ", ".join(resolve([candidate("acme", 0, capabilities)], LAPTOP, need, DEFAULT).beyond) or "nothing"


def version(installed, found=None, releases=TABLE, asked="sample", operations=("sample",)):
    """Return what is said of a plugin of acme-kernels in a version, whose files may say another one."""
    files = {"sample": found} if found else {}
    upstream = Upstream("acme-kernels", ">=2,<3", ("2.1", "2.4"), releases, found=files)
    made = replace(candidate("acme", 50, EVERYTHING, upstream), upstream_version=installed)
    offered = {name: {"sample": EVERYTHING, "verify": VERIFYING}[name] for name in operations}
    made = replace(made, info=replace(made.info, operations=offered))
    return about("acme", [made], operation=asked)


def claim(distribution, of_version):
    return Candidate(name="acme", state=State.FOUND, distribution=distribution, version=of_version)


def of_another_api(priority):
    info = PluginInfo(name="acme", api_version=99, priority=priority, operations={})
    return Candidate(name="acme", state=State.INCOMPATIBLE, reason="needs plugin API 99", info=info)


CLAIMS = [claim("acme-tokendraw", "1.0"), claim("other-tokendraw", "2.0")]
VERIFIER = Candidate(
    name="verifier",
    state=State.LOADED,
    info=PluginInfo(name="verifier", api_version=1, priority=90, operations={"verify": VERIFYING}),
)
WORDS = {**vars(fake_candidates), **globals(), "Host": Host, "Capabilities": Capabilities}


@pytest.mark.parametrize(("call", "said"), pairs(Path(__file__).with_name("decisions.txt")))
def test_a_decision_is_as_written(call, said):
    assert eval(call, WORDS) == said


def test_every_field_of_a_need_is_looked_at_by_some_check():
    """A need without a check would be granted in silence."""
    # Two are of batches: one bounds what callers ask for, the other spares work, whoever serves them.
    poor = Capabilities(max_vocab_size=1000, tie_rule="exact_k")
    assert why(poor) == "best available, priority 0"
    for field in {field.name for field in fields(Need)} - {"max_logprobs", "logprob_ranks"}:
        value = ("joint",) if field == "filter_orders" else getattr(GREATEST, field)
        assert "needs" in why(poor, need=replace(NEED, **{field: value})), field


def test_an_explanation_has_a_line_a_decision_and_each_operation_its_capabilities():
    everything = replace(
        VERIFYING,
        verify_modes=("rejection", "coupled", "block"),
        draft_kinds=("probs", "logits", "chosen"),
        ragged_drafts=True,
        placeholder_drafts=True,
    )
    verifies = replace(FLASHINFER, info=replace(FLASHINFER.info, operations={"verify": VERIFYING}))
    both = {"sample": EVERYTHING, "verify": everything}
    reference = replace(NATIVE, info=replace(NATIVE.info, operations=both))
    assert resolve([reference, verifies], H100, NEED, DEFAULT).explain() == (
        "sample on cuda (H100), compute capability 9.0, 132 SMs: native\n"
        "  + native: best available, priority 0\n"
        "  - flashinfer: needs the operation sample, found verify"
    )
    assert resolve([reference, verifies], H100, NEED, DEFAULT, operation="verify").explain() == (
        "verify on cuda (H100), compute capability 9.0, 132 SMs: flashinfer\n"
        "  beyond flashinfer (the mode rejection, the mode coupled, the mode block, drafts with probabilities, "
        "drafts with logits, drafts that were not drawn, requests with different numbers of drafts, "
        "placeholders among drafts): "
        "go to native\n"
        "  + flashinfer: best available, priority 80\n"
        "  + native: available, priority 0; serves the rows that flashinfer cannot"
    )
    sample = operations.find_operation("sample")
    alone = decide(ALL, H100, NEED, DEFAULT, operation=sample, companions=False)
    assert alone.beyond == decide(ALL, H100, NEED, DEFAULT, operation=sample).beyond
    assert alone.explain().splitlines()[1] == (
        f"  beyond flashinfer ({', '.join(alone.beyond)}): are served by no plugin here"
    )


def test_resolving_gathers_what_it_was_not_given_and_builds_nothing(dists, monkeypatch):
    module = dists.add_plugin("acme", plugin("acme", capabilities="device_types=('cpu',)"))
    assert tokendraw.resolve(device="cpu").chosen == "acme"
    assert sys.modules[module].BUILT == []
    here = tokendraw.discover(host=LAPTOP)
    assert resolve(here, LAPTOP, NEED, DEFAULT).chosen == "acme"
    assert resolve(here, H100, NEED, DEFAULT).chosen == "native"
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    resolution = tokendraw.resolve(device="cpu")
    assert (resolution.chosen, resolution.choice.source) == ("native", "TOKENDRAW_SAMPLER")
    monkeypatch.delenv("TOKENDRAW_SAMPLER")
    assert tokendraw.resolve(device="cpu", operation="verify").chosen == "native"
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
    with pytest.raises(SamplerUnavailableError, match="needs the operation verify, found sample"):
        tokendraw.resolve(device="cpu", operation="verify")
