"""State of the whole process: torch's global state, and many threads at once."""

import pytest

from fake_dists import EVERYTHING, faulty, place, plugin
from isolation import answer, drawn, run, run_after_torch

DISTURBING = """
import torch
torch.manual_seed(0)
torch.set_default_device("cuda")
torch.set_default_dtype(torch.float16)
"""


# An import that disturbs torch


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)"], ids=["and succeeds", "and raises"])
def test_an_import_that_seeds_torch_and_changes_its_defaults_leaves_the_host_as_it_was(dists, ending):
    dists.add_plugin("acme", f"{DISTURBING}\n{ending}\n{plugin('acme', priority=-1)}")
    code = """
import json, logging, torch, tokendraw
told = []
logging.getLogger("tokendraw").addHandler(logging.Handler())
logging.Handler.handle = lambda self, record: told.append([record.levelname, record.getMessage()])
torch.manual_seed(7)
torch.set_default_device("meta")
torch.set_default_dtype(torch.float64)
before = torch.get_rng_state()
chosen = tokendraw.resolve(device="cpu").chosen
after = torch.zeros(1)
print(json.dumps([chosen, str(after.device), str(after.dtype), torch.equal(before, torch.get_rng_state()), told]))
"""
    told = (
        "'acme' changed torch's default device, default dtype and CPU random state when it was imported, "
        "which tokendraw has put back. Report it to its author."
    )
    assert answer(dists, code) == ["native", "meta", "torch.float64", True, [["WARNING", told]]]


@pytest.mark.slow
def test_an_import_that_brings_torch_and_disturbs_it_leaves_a_fresh_one(dists):
    dists.add_plugin("acme", DISTURBING + plugin("acme", priority=-1))
    code = """
import sys, tokendraw
chosen, absent = tokendraw.resolve(device="cpu").chosen, "torch" not in sys.modules
import torch
tokendraw.resolve(device="cpu")
print(chosen, absent, torch.zeros(1).device, torch.zeros(1).dtype, torch.initial_seed() == 0)
"""
    result = run(dists, "-c", code)
    assert (result.returncode, result.stdout) == (0, "native False cpu torch.float32 False\n")
    assert result.stderr == (
        "'acme' changed torch's default device, default dtype and CPU random state when it was imported, "
        "which tokendraw has put back. Report it to its author.\n"
    )


@pytest.mark.slow
def test_an_import_that_only_brings_torch_is_not_blamed(dists):
    dists.add_plugin("acme", "import torch\n" + plugin("acme", priority=-1))
    result = run(dists, "-c", "import tokendraw; print(tokendraw.resolve(device='cpu').chosen)")
    assert (result.returncode, result.stdout, result.stderr) == (0, "native\n", "")


def test_what_the_host_does_to_torch_after_the_first_import_stays(dists):
    dists.add_plugin("acme", DISTURBING + plugin("acme", priority=-1))
    code = """
import logging, torch, tokendraw
logging.disable()
tokendraw.discover()
torch.manual_seed(11)
torch.set_default_dtype(torch.float64)
before = torch.get_rng_state()
tokendraw.discover()
print([torch.initial_seed(), str(torch.get_default_dtype()), torch.equal(before, torch.get_rng_state())])
"""
    result = run_after_torch(dists, code)
    assert (result.returncode, result.stdout) == (0, "[11, 'torch.float64', True]\n")


def test_only_the_first_import_is_guarded_lest_draws_of_other_threads_repeat(dists):
    source = plugin("acme").replace("\nplugin = Plugin()", "")
    drawing = "def __getattr__(name):\n    import torch\n    torch.rand(1)\n    return Plugin()\n"
    dists.add(
        "acme-tokendraw", plugins={"acme": "fake_acme:drawing"}, modules={"fake_acme": source + drawing}
    )
    code = """
import logging, torch, tokendraw
logging.disable()
states = [torch.get_rng_state()]
for _ in range(2):
    tokendraw.discover()
    states.append(torch.get_rng_state())
print([torch.equal(one, other) for one, other in zip(states, states[1:])])
"""
    result = run_after_torch(dists, code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "[True, False]\n", "")


# Sixteen threads

SIXTEEN = """
import threading

def sixteen_times(call):
    gate, results = threading.Barrier(16), []

    def thread():
        gate.wait()
        try:
            results.append(call())
        except BaseException as error:
            results.append(repr(error))

    threads = [threading.Thread(target=thread) for _ in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return results
"""


def test_sixteen_threads_that_resolve_at_once_agree_and_import_each_plugin_once(dists):
    slow = "import builtins, time; builtins.IMPORTED.append(__name__); time.sleep(0.05)\n"
    dists.add_plugin("acme", slow + plugin("acme", capabilities=EVERYTHING))
    dists.add_plugin("beta", slow + plugin("beta"))
    dists.add_plugin("gone", "raise OSError('no libgone')")
    code = f"""
import builtins, json
builtins.IMPORTED = []
import tokendraw
{SIXTEEN}
results = sixteen_times(lambda: tokendraw.resolve(device="cpu"))
same = all(result == results[0] for result in results)
print(json.dumps([len(results), same, getattr(results[0], "chosen", str(results[0])), IMPORTED]))
"""
    assert answer(dists, code) == [16, True, "acme", ["fake_acme", "fake_beta"]]


@pytest.mark.slow
def test_sixteen_threads_whose_samplers_fail_in_the_first_call_are_warned_once(dists):
    source = faulty("acme", "raise RuntimeError('no kernel image')")
    dists.add_plugin("acme", source)
    code = f"""
{SIXTEEN}
def load_and_draw():
    sampler = tokendraw.load_sampler(device="cpu")
    return [draw(sampler), draw(sampler), sampler.name]

results = sixteen_times(load_and_draw)
result = [results, [text for _, text, _ in warned], len(sys.modules["fake_acme"].CALLED)]
"""
    results, warned, called = drawn(dists, code)
    assert results == [[[1, 0], [1, 0], "native"]] * 16
    assert warned == [
        f"'acme' failed: its call raised RuntimeError: no kernel image {place(source, 'kernel')}. Using "
        "'native' from here on. Set TOKENDRAW_DISABLE=acme to silence this."
    ]
    assert called == 16


def test_sixteen_threads_with_one_sampler_that_fails_build_one_successor(dists):
    fault = "import time; time.sleep(0.05); raise RuntimeError('no kernel image')"
    dists.add_plugin("acme", faulty("acme", fault))
    build = "import time; time.sleep(0.1); return ArgmaxSampler()"
    dists.add_plugin("beta", plugin("beta", priority=40, capabilities=EVERYTHING, build=build))
    code = f"""
{SIXTEEN}
sampler = tokendraw.load_sampler(device="cpu")
results = sixteen_times(lambda: draw(sampler))
beta = sys.modules["fake_beta"]
result = [results, sampler.name, len(beta.BUILT), len(warned)]
"""
    assert drawn(dists, code) == [[[1, 0]] * 16, "beta", 1, 1]
