"""The line of a plugin's code behind a failure, and the traceback on request."""

import logging

import pytest
import torch

from fake_dists import EVERYTHING, faulty, place, plugin
from tokendraw import SamplerFallbackWarning, SamplingMetadata, load_sampler

KERNELS = """
import torch

def launch(logits):
    return torch.zeros(2) @ torch.zeros(3)  # raised by torch
"""
SAMPLER = """
from acme_tokendraw.kernels import launch

class AcmeSampler:
    def sample(self, logits, metadata):
        return launch(logits)
"""


def install(dists, build):
    modules = {
        "acme_tokendraw": plugin("acme", capabilities=EVERYTHING, build=build),
        "acme_tokendraw.sampler": SAMPLER,
        "acme_tokendraw.kernels": KERNELS,
    }
    dists.add("acme-tokendraw", plugins={"acme": "acme_tokendraw:plugin"}, modules=modules)


def reason(sampler):
    (found,) = [d.reason for d in sampler.resolution.decisions if d.name == "acme"]
    return found


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (
            "from acme_tokendraw.sampler import AcmeSampler; return AcmeSampler()",
            "the proof draw raised RuntimeError: inconsistent tensor size, expected tensor [2] and src [3] to have the "
            "same number of elements, but got 2 and 3 elements respectively (acme_tokendraw/kernels.py:5)",
        ),
        ("import nowhere", "tokendraw_build raised ModuleNotFoundError: No module named 'nowhere' {here}"),
        ("return 3", "tokendraw_build needs to return an object with a method sample, found int"),
    ],
    ids=["below torch", "at import", "no exception"],
)
def test_a_reason_ends_with_the_innermost_line_of_the_plugins_own_files(dists, build, expected):
    install(dists, build)
    with pytest.warns(SamplerFallbackWarning):
        sampler = load_sampler(device="cpu")
    here = place(plugin("acme", capabilities=EVERYTHING, build=build), build)
    assert reason(sampler) == expected.format(here=here.replace("fake_acme.py", "acme_tokendraw/__init__.py"))


def logged(caplog, level):
    return [r.getMessage() for r in caplog.records if r.levelno == level and r.exc_info]


@pytest.mark.parametrize("debug", ["", "1"])
def test_the_traceback_of_a_build_is_shown_on_request(dists, monkeypatch, caplog, debug):
    monkeypatch.setenv("TOKENDRAW_DEBUG", debug)
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING, build="raise OSError('no nvcc')"))
    with caplog.at_level("DEBUG", logger="tokendraw"), pytest.warns(SamplerFallbackWarning):
        load_sampler(device="cpu")
    assert logged(caplog, logging.WARNING if debug else logging.DEBUG) == ["tokendraw_build failed"]
    assert logged(caplog, logging.DEBUG if debug else logging.WARNING) == []
    assert "OSError: no nvcc" in caplog.text


@pytest.mark.parametrize("debug", ["", "1"])
def test_so_is_that_of_a_call_that_another_sampler_made_up_for(dists, monkeypatch, caplog, debug):
    monkeypatch.setenv("TOKENDRAW_DEBUG", debug)
    source = faulty("acme", "raise OSError('no kernel')")
    dists.add_plugin("acme", source)
    sampler = load_sampler(device="cpu")
    with caplog.at_level("DEBUG", logger="tokendraw"), pytest.warns(SamplerFallbackWarning):
        sampler.sample(torch.zeros(2, 3), SamplingMetadata())
    assert logged(caplog, logging.WARNING if debug else logging.DEBUG) == ["a call of 'acme' failed"]
    assert reason(sampler) == f"its call raised OSError: no kernel {place(source, 'no kernel')}"
