"""What holds of every resolution, whatever the candidates, the host, the need and the choice."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fake_candidates import EVERYTHING, H100, LAPTOP, MI300X, candidate
from tokendraw import Need, SamplerUnavailableError, operations, resolve
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


@given(st.data(), candidates_strategy(), HOSTS, NEEDS, CHOICES)
def test_the_order_of_the_candidates_does_not_matter(data, candidates, host, need, choice):
    shuffled = data.draw(st.permutations(candidates))
    assert outcome(candidates, host, need, choice) == outcome(shuffled, host, need, choice)


@given(candidates_strategy(), HOSTS, NEEDS, CHOICES)
def test_no_available_candidate_ranks_above_the_chosen_one(candidates, host, need, choice):
    result = outcome(candidates, host, need, choice)
    if isinstance(result, str):
        # Then none of them would serve if it were alone, either.
        for one in candidates:
            assert isinstance(outcome([one], host, need, choice), str)
        return

    def rank(name, priority):
        order = choice.priority
        return (order.index(name) if name in order else len(order), -priority, name)

    assert result.decisions[0].name == result.chosen
    assert result.decisions[0].state is State.AVAILABLE
    available = [d for d in result.decisions if d.accepted]
    assert all(rank(result.chosen, available[0].priority) <= rank(d.name, d.priority) for d in available)


@given(candidates_strategy(), HOSTS, NEEDS, CHOICES, st.sampled_from(NAMES))
def test_an_explicit_choice_is_chosen_or_refused(candidates, host, need, choice, name):
    result = outcome(candidates, host, need, replace(choice, sampler=name, source="TOKENDRAW_SAMPLER"))
    if isinstance(result, str):
        assert result.startswith(f"'{name}', asked for by TOKENDRAW_SAMPLER, cannot serve the operation")
    else:
        assert result.chosen == name


@given(candidates_strategy(), HOSTS, NEEDS, CHOICES)
def test_what_is_switched_off_is_never_chosen(candidates, host, need, choice):
    result = outcome(candidates, host, need, choice)
    if isinstance(result, str):
        return
    again = outcome(candidates, host, need, replace(choice, disabled=(*choice.disabled, result.chosen)))
    if not isinstance(again, str):
        assert result.chosen not in (again.chosen, again.companion)


@given(candidates_strategy(), HOSTS, NEEDS, CHOICES)
def test_every_candidate_has_exactly_one_decision_with_a_reason(candidates, host, need, choice):
    try:
        decisions = resolve(candidates, host, need, choice).decisions
    except SamplerUnavailableError as refusal:
        decisions = refusal.decisions
    assert sorted(d.name for d in decisions) == sorted(c.name for c in candidates)
    assert all(d.reason and d.accepted is (d.state is State.AVAILABLE) for d in decisions)


@given(candidates_strategy(), HOSTS, NEEDS, CHOICES)
def test_a_companion_is_available_another_one_and_serves_what_the_chosen_one_cannot(
    candidates, host, need, choice
):
    result = outcome(candidates, host, need, choice)
    if isinstance(result, str) or result.companion is None:
        return
    assert result.companion != result.chosen
    assert result.beyond
    assert {d.name: d.accepted for d in result.decisions}[result.companion]
    alone = resolve([c for c in candidates if c.name == result.companion], host, need, choice)
    assert not set(alone.beyond) & set(result.beyond)


@given(candidates_strategy(), HOSTS, NEEDS, CHOICES)
def test_resolving_what_was_resolved_changes_nothing(candidates, host, need, choice):
    """The state that discovery wrote into a candidate is about one host; the facts decide for another."""
    from tokendraw.backends.resolution.decide import assess

    elsewhere = [assess(c, operations.find_operation("sample"), MI300X, need) for c in candidates]
    assert outcome(candidates, host, need, choice) == outcome(elsewhere, host, need, choice)
