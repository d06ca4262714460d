"""The explicit choice and the names of plugins: refusals with their whole text."""

from dataclasses import replace

import pytest

from fake_candidates import ALL, LAPTOP, NATIVE, T4
from tokendraw import Need, SamplerUnavailableError, resolve
from tokendraw.resolution import Candidate, Choice, DuplicatePluginError, State

NEED = Need()
DEFAULT = Choice()


def asked(name, source="TOKENDRAW_SAMPLER"):
    return Choice(sampler=name, source=source)


# The explicit choice


def test_a_refusal_names_the_file_that_asked_and_how_to_undo_it():
    with pytest.raises(SamplerUnavailableError) as refusal:
        resolve(ALL, T4, NEED, asked("triton-gumbel", "/home/ada/config.toml"))
    assert str(refusal.value) == (
        "'triton-gumbel', asked for by /home/ada/config.toml, cannot serve the operation 'sample' on "
        "cuda (T4), compute capability 7.5, 40 SMs: needs compute capability 8.0 or later, found 7.5. "
        "Available here: flashinfer and native. Take 'sampler' out of /home/ada/config.toml to let tokendraw choose."
    )


REFUSED = {
    "the nearest name": (
        ALL,
        asked("flashinfr"),
        "no plugin of that name is installed, the nearest installed name is 'flashinfer'. "
        "Available here: native. Unset TOKENDRAW_SAMPLER",
    ),
    "no similar name": (
        [NATIVE],
        asked("q"),
        "no plugin of that name is installed. Available here: native. Unset TOKENDRAW_SAMPLER",
    ),
    "switched off by the user": (
        [NATIVE],
        Choice(sampler="native", source="the argument sampler=", disabled=("native",)),
        "switched off by TOKENDRAW_DISABLE. Nothing else is available here. Leave out sampler=",
    ),
}


@pytest.mark.parametrize(("candidates", "choice", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_sampler_that_is_not_there_or_switched_off_is_refused(candidates, choice, words):
    with pytest.raises(SamplerUnavailableError) as refusal:
        resolve(candidates, LAPTOP, NEED, choice)
    assert str(refusal.value) == (
        f"{choice.sampler!r}, asked for by {choice.source}, cannot serve the operation 'sample' on cpu: {words} "
        "to let tokendraw choose."
    )


# Names


def two_claims(state=State.FOUND):
    return [
        Candidate(name="acme", state=state, distribution="acme-tokendraw", version="1.0"),
        Candidate(name="acme", state=state, distribution="other-tokendraw", version="2.0"),
    ]


CLAIMED = "the name 'acme' is claimed by acme-tokendraw 1.0 and other-tokendraw 2.0; uninstall one of them"


def test_three_claimants_are_all_named():
    third = Candidate(name="acme", state=State.FOUND, distribution="third-tokendraw", version="3.0")
    resolution = resolve([NATIVE, *two_claims(), third], LAPTOP, NEED, DEFAULT)
    assert resolution.decisions[1].reason == (
        "the name 'acme' is claimed by acme-tokendraw 1.0, other-tokendraw 2.0 and third-tokendraw 3.0; "
        "uninstall all but one of them"
    )


def test_with_nothing_else_installed_the_name_that_two_distributions_claim_is_told_once():
    with pytest.raises(SamplerUnavailableError) as refusal:
        resolve(two_claims(), LAPTOP, NEED, DEFAULT)
    assert str(refusal.value) == (
        f"No plugin can serve the operation 'sample' on cpu. Found acme: {CLAIMED}. "
        "Run `pip install ./plugins/native` in tokendraw's checkout."
    )


@pytest.mark.parametrize(
    ("choice", "more"),
    [
        (Choice(priority=("native", "acme"), priority_source=source), f", or take 'acme' out of {source}")
        for source in ("TOKENDRAW_PRIORITY", "/etc/tokendraw.toml")
    ]
    + [(asked("acme"), "")],
)
def test_asking_for_a_name_that_two_distributions_claim_is_an_error_that_names_both(choice, more):
    with pytest.raises(DuplicatePluginError) as refusal:
        resolve([NATIVE, *two_claims()], LAPTOP, NEED, choice)
    assert str(refusal.value) == (
        "'acme' is claimed by acme-tokendraw 1.0 and other-tokendraw 2.0. "
        f"Uninstall all but one of them{more}."
    )


def test_another_choice_is_honoured_beside_a_name_that_two_distributions_claim():
    choice = replace(asked("native"), priority=("acme",))
    resolution = resolve([NATIVE, *two_claims()], LAPTOP, NEED, choice)
    assert resolution.chosen == "native"
    assert [(d.state, d.reason) for d in resolution.decisions[1:]] == [(State.BROKEN, CLAIMED)] * 2


def test_switching_off_a_name_that_two_distributions_claim_settles_it():
    resolution = resolve([NATIVE, *two_claims()], LAPTOP, NEED, Choice(disabled=("acme",)))
    assert resolution.chosen == "native"
    assert [d.state for d in resolution.decisions[1:]] == [State.DISABLED] * 2


def test_one_distribution_under_two_spellings_is_no_conflict():
    claims = two_claims()
    claims[1] = replace(claims[1], distribution="Acme_Tokendraw")
    assert resolve([NATIVE, *claims], LAPTOP, NEED, DEFAULT).chosen == "native"


def test_a_candidate_that_never_described_itself_is_not_available():
    resolution = resolve([NATIVE, Candidate(name="acme", state=State.FOUND)], LAPTOP, NEED, DEFAULT)
    assert resolution.decisions[1].reason == "it never described itself"
