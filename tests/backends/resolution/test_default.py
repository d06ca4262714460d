"""The default choice: passed-over plugins, the warning, and the error with nothing left.

The golden table states the words about machines, upstream versions and probes.
"""

from dataclasses import replace

import pytest

from fake_candidates import (
    AITER,
    ALL,
    EVERYTHING,
    FLASHINFER,
    H100,
    LAPTOP,
    MI300X,
    NATIVE,
    TRITON_GUMBEL,
    V100,
    candidate,
)
from fake_dists import ONE_OF_THE_OPERATIONS
from tokendraw import InvalidParameterError, Need, SamplerUnavailableError, resolve
from tokendraw.plugin import Host, PluginInfo
from tokendraw.resolution import Candidate, Choice, State

NEED = Need()
DEFAULT = Choice()
MPS = Host(device_type="mps")


def asked(name, source="TOKENDRAW_SAMPLER"):
    return Choice(sampler=name, source=source)


# The default choice and its warning


def test_doing_what_the_warning_says_silences_it():
    first = resolve(ALL, V100, NEED, Choice(disabled=("aiter",)))
    assert first.fallback is not None
    names = first.fallback.partition("TOKENDRAW_DISABLE=")[2].split(" ")[0]
    assert names == "aiter,flashinfer,triton-gumbel"
    assert resolve(ALL, V100, NEED, Choice(disabled=tuple(names.split(",")))).warnings == ()


@pytest.mark.parametrize(
    ("host", "chosen", "others"),
    [
        *[
            (
                host,  # the CPU: or device="cpu" on any machine
                "native",
                {
                    "flashinfer": f"needs a cuda device, found {host.device_type}",
                    "aiter": f"needs a rocm device, found {host.device_type}",
                    "triton-gumbel": f"needs a cuda or rocm device, found {host.device_type}",
                },
            )
            for host in (LAPTOP, MPS)
        ],
        (H100, "triton-gumbel", {"aiter": "needs a rocm device, found cuda"}),
        (MI300X, "triton-gumbel", {"flashinfer": "needs a cuda device, found rocm"}),
    ],
    ids=["cpu", "mps", "H100", "MI300X"],
)
def test_a_plugin_for_another_kind_of_device_was_not_passed_over_and_still_shows_why(host, chosen, others):
    first = Choice(priority=(*others, chosen))  # they would all go before it
    resolution = resolve(ALL, host, NEED, first)
    assert (resolution.chosen, resolution.warnings, resolution.fallback) == (chosen, (), None)
    rejected = {d.name: d.reason for d in resolution.decisions if d.state is State.UNAVAILABLE}
    assert {name: rejected[name] for name in others} == others
    explained = resolution.explain()
    assert all(f"  - {name}: {reason}" in explained for name, reason in others.items())


def test_with_the_right_kind_of_device_a_plugin_that_cannot_serve_was_passed_over():
    probed = replace(TRITON_GUMBEL, probe_reason="needs a C compiler, found none")
    both = replace(EVERYTHING, device_types=("cpu", "cuda"), compute_capability=((10, 0), None))
    for host, others in ((H100, [probed]), (MI300X, [probed]), (H100, [candidate("acme", 5, both)])):
        assert resolve([NATIVE, *others], host, NEED, DEFAULT).fallback is not None


def test_a_lower_ranked_plugin_that_cannot_serve_is_no_reason_to_warn():
    slow = candidate("slow", -1, replace(EVERYTHING, device_types=("cuda",)))
    assert resolve([NATIVE, slow], LAPTOP, NEED, DEFAULT).warnings == ()


def test_a_plugin_for_another_operation_is_no_reason_to_warn():
    info = PluginInfo(name="verifier", api_version=1, priority=90, operations={"verify": EVERYTHING})
    verifier = Candidate(name="verifier", state=State.LOADED, info=info)
    resolution = resolve([NATIVE, verifier], LAPTOP, NEED, DEFAULT)
    assert resolution.warnings == ()
    assert resolution.decisions[1].reason == "needs the operation sample, found verify"


def test_a_plugin_too_broken_to_tell_its_priority_is_told_of():
    broken = Candidate(name="zeta", state=State.BROKEN, reason="loading 'zeta:plugin' raised OSError")
    assert resolve([NATIVE, broken], LAPTOP, NEED, DEFAULT).fallback == (
        "'zeta' was passed over: loading 'zeta:plugin' raised OSError. "
        "Using 'native'. Set TOKENDRAW_DISABLE=zeta to silence this."
    )
    first = Choice(priority=("native",))
    assert resolve([NATIVE, broken], LAPTOP, NEED, first).warnings == ()


def test_a_plugin_of_another_api_version_is_told_of_if_it_ranks_higher():
    def newer(priority):
        info = PluginInfo(name="acme", api_version=99, priority=priority, operations={})
        return Candidate(name="acme", state=State.INCOMPATIBLE, reason="needs plugin API 99", info=info)

    assert resolve([NATIVE, newer(1)], LAPTOP, NEED, DEFAULT).fallback is not None
    assert resolve([NATIVE, newer(-1)], LAPTOP, NEED, DEFAULT).fallback is None


def test_an_explicit_choice_warns_of_nothing_that_was_passed_over():
    assert resolve(ALL, LAPTOP, NEED, asked("native")).warnings == ()


def test_what_the_proof_draw_rejected_is_passed_over_with_its_reason():
    failed = replace(TRITON_GUMBEL, rejection="tokendraw_build raised RuntimeError: no compiler")
    resolution = resolve([NATIVE, failed], H100, NEED, DEFAULT)
    assert resolution.chosen == "native"
    assert resolution.decisions[1].reason == "tokendraw_build raised RuntimeError: no compiler"
    assert resolution.fallback is not None


INSTALL = "Run `pip install ./plugins/native` in tokendraw's checkout."
NOTHING = {
    "nothing is installed": ([], DEFAULT, f"no plugin. {INSTALL}"),
    "nothing is available": (
        [FLASHINFER, AITER],
        DEFAULT,
        "flashinfer: needs a cuda device, found cpu; aiter: needs a rocm device, found cpu. " + INSTALL,
    ),
    "native is switched off": (
        [NATIVE],
        Choice(disabled=("native",), disabled_source="/etc/tokendraw.toml"),
        "native: switched off by /etc/tokendraw.toml. Take 'native' out of /etc/tokendraw.toml.",
    ),
    "native is broken": (
        [replace(NATIVE, state=State.BROKEN, reason="loading it raised OSError")],
        DEFAULT,
        "native: loading it raised OSError. Mend one of them; `tokendraw doctor` says how.",
    ),
}


@pytest.mark.parametrize(("candidates", "choice", "found"), NOTHING.values(), ids=NOTHING.keys())
def test_without_any_available_plugin_the_error_gives_every_reason_and_its_mend(candidates, choice, found):
    with pytest.raises(SamplerUnavailableError) as refusal:
        resolve(candidates, LAPTOP, NEED, choice)
    assert str(refusal.value) == f"No plugin can serve the operation 'sample' on cpu. Found {found}"
    assert [d.name for d in refusal.value.decisions] == [c.name for c in candidates]
    assert not any(d.accepted for d in refusal.value.decisions)


def test_an_unknown_operation_is_an_error_that_lists_the_known_ones():
    with pytest.raises(InvalidParameterError) as refusal:
        resolve(ALL, LAPTOP, NEED, DEFAULT, operation="samlpe")  # type: ignore[arg-type]
    assert str(refusal.value) == (
        f"'operation' needs {ONE_OF_THE_OPERATIONS}, found 'samlpe'. Pass one of these."
    )
