"""Many threads at once."""

import pytest

from fake_dists import EVERYTHING, faulty, place, plugin
from isolation import answer, drawn

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
