"""The logits processor written by ``tokendraw new``: the kit, and the template's tests."""

import importlib

import pytest
import torch

import tokendraw
from command_line import call
from pages import importable, install, run_with
from tokendraw import RequestSlots, SamplingParams
from tokendraw._torch.threads import one_thread


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the written project ``acme-tokendraw``, and its installation in ``site``."""
    folder = tmp_path_factory.mktemp("vendor")
    written = call("new", "acme", folder / "acme-tokendraw", "--operation", "process_logits")
    assert written.exit_code == 0
    install(folder / "acme-tokendraw", folder / "site")
    return folder


@pytest.fixture(scope="module")
def processor(folder):
    with importable(folder / "site"), one_thread():
        loaded = tokendraw.load("process_logits", "acme", device="cpu")
        assert loaded.name == "acme"
        yield importlib.import_module("acme_tokendraw.processor").AcmeProcessor()


def test_logits_that_were_made_in_inference_mode_are_edited_too(processor):
    slots = RequestSlots(num_slots=1, max_tokens=4, vocab_size=8)
    slots.add(0, SamplingParams(logit_bias={3: 2.0}))
    with torch.inference_mode():
        logits = torch.zeros(1, 8)
    processor.process(logits, slots, torch.zeros(1, dtype=torch.int64))
    assert logits.tolist() == [[0, 0, 0, 2, 0, 0, 0, 0]]


def test_the_default_choice_stays(folder):
    result = run_with(
        folder / "site", "tokendraw", "resolve", "--operation", "process_logits", "--device", "cpu"
    )
    assert result.stdout == "native\n"


@pytest.mark.slow
def test_the_conformance_kit_passes(folder):
    options = ("--operation", "process_logits", "--device", "cpu", "--quick", "--jobs", "1")
    result = run_with(folder / "site", "tokendraw", "check", "acme", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\n12 passed, 0 failed, 2 refused (not advertised), 0 not run.\n" in result.stdout


@pytest.mark.slow
def test_the_tests_of_the_project_pass(folder):
    result = run_with(
        folder / "site", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "acme-tokendraw")
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "14 passed, " in result.stdout


@pytest.mark.slow
def test_beside_a_sampler_both_pass(tmp_path):
    both = ("--operation", "process_logits", "--operation", "sample")
    assert call("new", "acme", tmp_path / "acme-tokendraw", *both).exit_code == 0
    install(tmp_path / "acme-tokendraw", tmp_path / "site")
    lines = ("output", "process order")
    only = [option for line in lines for option in ("--only", line)]
    options = ("--device", "cpu", "--quick", "--jobs", "1")
    result = run_with(tmp_path / "site", "tokendraw", "check", "acme", *options, *only)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\n2 passed, 0 failed, 0 refused, 0 not run.\n" in result.stdout
