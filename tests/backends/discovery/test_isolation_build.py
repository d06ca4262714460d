"""Plugins misbehave in the probe or the factory, beside a host that survives."""

import pytest

from fake_dists import EVERYTHING, plugin
from isolation import RESOLVE, drawn, run


@pytest.mark.slow
def test_a_probe_of_five_seconds_is_waited_for_and_told_of_once(dists):
    source = plugin("acme", probe="time.sleep(5 if first.pop() else 1.5) or 'needs a faster disk'")
    dists.add_plugin("acme", f"import time\nfirst = [False, True]\n{source}")
    result = run(dists, "-c", RESOLVE + "tokendraw.discover()\nprint('survived')")
    chosen, end = result.stdout.splitlines()
    assert chosen == '["native", {"acme": ["unavailable", "needs a faster disk"]}]'
    assert (result.returncode, end) == (0, "survived")
    told = "tokendraw_probe of 'acme' took 5.0 s, needs less than 1 s. Report it to its author.\n"
    assert result.stderr == told


@pytest.mark.slow
def test_a_probe_that_changes_its_mind_is_asked_once_a_load_and_believed(dists):
    probe = "ASKED.append(1) or (None if len(ASKED) % 2 else 'not now')"
    source = plugin("acme", capabilities=EVERYTHING, probe=probe)
    dists.add_plugin("acme", f"ASKED = []\n{source}")
    code = """
result = []
for _ in range(4):
    sampler = tokendraw.load_sampler(device="cpu")
    asked = len(sys.modules["fake_acme"].ASKED)
    result.append([asked, sampler.name, draw(sampler), reasons(sampler)["acme"]])
result.append(warned)
"""
    *loads, warned = drawn(dists, code)
    assert loads == [
        [1, "acme", [1, 0], "best available, priority 50"],
        [2, "native", [1, 0], "not now"],
        [3, "acme", [1, 0], "best available, priority 50"],
        [4, "native", [1, 0], "not now"],
    ]
    assert [text for _, text, _ in warned] == [
        "'acme' was passed over: not now. Using 'native'. Set TOKENDRAW_DISABLE=acme to silence this."
    ]


@pytest.mark.slow
def test_a_factory_that_seeds_torch_leaves_the_random_state_as_it_was(dists):
    build = "import torch; torch.manual_seed(0); return ArgmaxSampler()"
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING, build=build))
    code = """
torch.manual_seed(7)
before = torch.get_rng_state()
sampler = tokendraw.load_sampler(device="cpu")
result = [sampler.name, draw(sampler), torch.equal(before, torch.get_rng_state())]
"""
    assert drawn(dists, code) == ["acme", [1, 0], True]
