"""Plugins that raise, hang or end the process, each beside a host that survives and names the plugin's line."""

import json
import logging
import signal

import pytest
import torch

from fake_dists import EVERYTHING, faulty, place, plugin
from isolation import RESOLVE, drawn, resolved, run
from tokendraw import SamplerFallbackWarning, SamplingMetadata, load_sampler


class TestImportsAndProbes:
    def test_a_host_survives_an_import_that_exits_or_is_circular(self, dists):
        dists.add_plugin("acme", "raise SystemExit(0)")
        modules = {
            "fake_beta": "from fake_beta_sampler import sampler\nplugin = sampler",
            "fake_beta_sampler": "from fake_beta import plugin\nsampler = plugin",
        }
        folder = dists.add("beta-tokendraw", plugins={"beta": "fake_beta:plugin"}, modules=modules)
        circular = (
            "loading 'fake_beta:plugin' raised ImportError: cannot import name 'plugin' from partially initialized "
            f"module 'fake_beta' (most likely due to a circular import) ({folder}/fake_beta.py)"
        )
        exited = "loading 'fake_acme:plugin' raised SystemExit: 0"
        assert resolved(dists) == ["native", {"acme": ["broken", exited], "beta": ["broken", circular]}]

    def test_an_interrupt_from_the_keyboard_ends_the_host_while_a_plugin_is_imported(self, dists):
        dists.add_plugin("acme", "raise KeyboardInterrupt")
        result = run(dists, "-c", RESOLVE)
        assert (result.returncode, result.stdout) == (-signal.SIGINT, "")
        assert result.stderr.endswith("\nKeyboardInterrupt\n")


SIXTEEN = """
import threading
from concurrent.futures import ThreadPoolExecutor

def sixteen_times(call):
    gate = threading.Barrier(16)
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda _: (gate.wait(), call())[1], range(16)))
"""


class TestThreads:
    def test_sixteen_threads_that_resolve_at_once_agree_and_import_each_plugin_once(self, dists):
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
        ran = run(dists, "-c", code)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert json.loads(ran.stdout) == [16, True, "acme", ["fake_acme", "fake_beta"]]

    def test_sixteen_threads_whose_sampler_fails_build_one_successor_and_are_warned_once(self, dists):
        fault = "import time; time.sleep(0.05); raise RuntimeError('no kernel image')"
        dists.add_plugin("acme", faulty("acme", fault))
        build = "import time; time.sleep(0.1); return ArgmaxSampler()"
        dists.add_plugin("beta", plugin("beta", priority=40, capabilities=EVERYTHING, build=build))
        code = f"""
{SIXTEEN}
def load_and_draw():
    sampler = tokendraw.load_sampler(device="cpu")
    return [draw(sampler), draw(sampler), sampler.name]

sampler = tokendraw.load_sampler(device="cpu")
result = [sixteen_times(lambda: draw(sampler)), sampler.name, len(sys.modules["fake_beta"].BUILT)]
result += [sixteen_times(load_and_draw), len(warned)]
"""
        assert drawn(dists, code) == [[[1, 0]] * 16, "beta", 1, [[[1, 0], [1, 0], "beta"]] * 16, 1]


KERNELS = "import torch\n\ndef launch():\n    return torch.zeros(2) @ torch.zeros(3)  # raised by torch\n"
SAMPLER = """
from acme_tokendraw.kernels import launch

class AcmeSampler:
    def sample(self, logits, metadata):
        return launch()
"""


class TestOrigins:
    @pytest.mark.parametrize(
        ("build", "expected"),
        [
            (
                "from acme_tokendraw.sampler import AcmeSampler; return AcmeSampler()",
                "the proof draw raised RuntimeError: inconsistent tensor size, expected tensor [2] and src [3] to have "
                "the same number of elements, but got 2 and 3 elements respectively (acme_tokendraw/kernels.py:4)",
            ),
            (
                "import nowhere",
                "tokendraw_build raised ModuleNotFoundError: No module named 'nowhere' {here}",
            ),
            ("return 3", "tokendraw_build needs to return an object with a method sample, found int"),
        ],
        ids=["below torch", "at import", "no exception"],
    )
    def test_a_reason_ends_with_the_innermost_line_of_the_plugins_own_files(self, dists, build, expected):
        source = plugin("acme", capabilities=EVERYTHING, build=build)
        modules = {
            "acme_tokendraw": source,
            "acme_tokendraw.sampler": SAMPLER,
            "acme_tokendraw.kernels": KERNELS,
        }
        dists.add("acme-tokendraw", plugins={"acme": "acme_tokendraw:plugin"}, modules=modules)
        with pytest.warns(SamplerFallbackWarning):
            sampler = load_sampler(device="cpu")
        here = place(source, build).replace("fake_acme.py", "acme_tokendraw/__init__.py")
        (reason,) = [d.reason for d in sampler.resolution.decisions if d.name == "acme"]
        assert reason == expected.format(here=here)

    @pytest.mark.parametrize("debug", ["", "1"])
    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (
                plugin("acme", capabilities=EVERYTHING, build="raise OSError('gone')"),
                "tokendraw_build failed",
            ),
            (faulty("acme", "raise OSError('gone')"), "a call of 'acme' failed"),
        ],
        ids=["build", "call"],
    )
    def test_the_traceback_is_shown_on_request(self, dists, monkeypatch, caplog, source, message, debug):
        monkeypatch.setenv("TOKENDRAW_DEBUG", debug)
        dists.add_plugin("acme", source)
        with caplog.at_level("DEBUG", logger="tokendraw"), pytest.warns(SamplerFallbackWarning):
            load_sampler(device="cpu").sample(torch.zeros(2, 3), SamplingMetadata())
        shown = [(r.levelno, r.getMessage()) for r in caplog.records if r.exc_info]
        assert shown == [(logging.WARNING if debug else logging.DEBUG, message)]
        assert "OSError: gone" in caplog.text
