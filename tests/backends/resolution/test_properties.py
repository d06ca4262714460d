"""What holds of every resolution, whatever the candidates, the host, the need and the choice."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_candidates import EVERYTHING, H100, LAPTOP, MI300X, candidate
from tokendraw import Need, SamplerUnavailableError, operations, resolve
from tokendraw.backends.resolution.decide import assess
from tokendraw.plugin import Capabilities, Upstream
from tokendraw.resolution import Candidate, Choice, State

CAPABILITIES = st.builds(
    Capabilities,
    device_types=st.sampled_from([None, ("cpu",), ("cuda",), ("cpu", "cuda")]),
    greedy=st.booleans(),
    seeding=st.sampled_from(["none", "launch", "counter"]),
    logprobs_modes=st.sampled_from([(), ("raw_logprobs",), ("processed_logprobs", "raw_logprobs")]),
    filter_orders=st.sampled_from([("top_k_first",), ("joint",), ("top_k_first", "joint")]),
    filters=st.sampled_from([(), EVERYTHING.filters]),
)
NAMES = ("native", "acme", "beta", "gamma", "delta")


@st.composite
def candidates_strategy(draw):
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        if draw(st.booleans()) and draw(st.booleans()):
            state = draw(st.sampled_from([State.BROKEN, State.INCOMPATIBLE]))
            found.append(Candidate(name=name, state=state, reason=f"{name} is {state}"))
            continue
        upstream = draw(st.sampled_from([None, Upstream("up", ">=1,<2", ("1.0",))]))
        installed = draw(st.sampled_from(["", "1.0", "1.5", "2.0"]))
        made = candidate(name, draw(st.integers(-2, 2)), draw(CAPABILITIES), upstream, installed)
        found.append(replace(made, probe_reason=draw(st.sampled_from([None, None, "needs a compiler"]))))
    return found


HOSTS = st.sampled_from([LAPTOP, H100])
NEEDS = st.builds(
    Need,
    logprobs_mode=st.sampled_from(["raw_logprobs", "processed_logprobs"]),
    seeding=st.sampled_from(["none", "none", "counter"]),
)
NAME_LISTS = st.lists(st.sampled_from(NAMES), max_size=2, unique=True).map(tuple)
CHOICES = st.builds(
    Choice, priority=NAME_LISTS, disabled=NAME_LISTS, first_party_only=st.sampled_from([False, False, True])
)


def outcome(candidates, host, need, choice):
    try:
        return resolve(candidates, host, need, choice)
    except SamplerUnavailableError as refusal:
        return str(refusal)


@given(st.data(), candidates_strategy(), HOSTS, NEEDS, CHOICES, st.sampled_from(NAMES))
def test_a_resolution_is_the_best_of_what_is_there(data, candidates, host, need, choice, name):
    result = outcome(candidates, host, need, choice)
    assert result == outcome(data.draw(st.permutations(candidates)), host, need, choice)
    # The state that discovery wrote into a candidate is about one host; the facts decide for another.
    elsewhere = [assess(c, operations.find_operation("sample"), MI300X, need) for c in candidates]
    assert result == outcome(elsewhere, host, need, choice)
    asked = outcome(candidates, host, need, replace(choice, sampler=name, source="TOKENDRAW_SAMPLER"))
    if isinstance(asked, str):
        assert asked.startswith(f"'{name}', asked for by TOKENDRAW_SAMPLER, cannot serve the operation")
    else:
        assert asked.chosen == name
    if isinstance(result, str):
        # Then none of them would serve if it were alone, either.
        assert all(isinstance(outcome([one], host, need, choice), str) for one in candidates)
        return
    available = is_told_of(candidates, result.decisions)
    order = choice.priority

    def rank(name, priority):
        return (order.index(name) if name in order else len(order), -priority, name)

    assert (result.decisions[0].name, result.decisions[0].state) == (result.chosen, State.AVAILABLE)
    assert all(rank(result.chosen, available[0].priority) <= rank(d.name, d.priority) for d in available)
    without = outcome(candidates, host, need, replace(choice, disabled=(*choice.disabled, result.chosen)))
    assert isinstance(without, str) or result.chosen not in (without.chosen, without.companion)
    if result.companion is not None:
        assert result.companion != result.chosen
        assert result.companion in [d.name for d in available]
        alone = resolve([c for c in candidates if c.name == result.companion], host, need, choice)
        assert result.beyond
        assert not set(alone.beyond) & set(result.beyond)


def is_told_of(candidates, decisions):
    """Require a decision with a reason on every candidate, and return those that are available."""
    assert sorted(d.name for d in decisions) == sorted(c.name for c in candidates)
    assert all(d.reason and d.accepted is (d.state is State.AVAILABLE) for d in decisions)
    return [d for d in decisions if d.accepted]


@given(candidates_strategy(), HOSTS, NEEDS, CHOICES)
@settings(max_examples=30)
def test_a_refusal_has_a_decision_on_every_candidate_too(candidates, host, need, choice):
    nobody = replace(choice, disabled=NAMES)
    with pytest.raises(SamplerUnavailableError) as refusal:
        resolve(candidates, host, need, nobody)
    assert is_told_of(candidates, refusal.value.decisions) == []
