"""The sampler written by ``tokendraw new``: the kit's lines that compare with the reference, token for token."""

from dataclasses import replace

import pytest

from command_line import call
from pages import importable, install
from tokendraw._torch.threads import one_thread
from tokendraw_testing import Effort, Status, Subject, run

LINES = (
    *("output", "crossed requests", "crossed logprobs", "near ties", "last ids", "far NaN and infinities"),
    *("ready tensors", "rows of shared slots", "noise precision"),
)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """The template's sampler on the CPU, under the name acme."""
    folder = tmp_path_factory.mktemp("vendor")
    assert call("new", "acme", folder / "acme-tokendraw").exit_code == 0
    install(folder / "acme-tokendraw", folder / "site")
    with importable(folder / "site"), one_thread():
        subject = Subject.installed("acme", device="cpu", quick=True)
        subject.effort = replace(
            Effort.of(quick=True, device_type="cpu"), crossed_sizes=(1, 33, 1025, 5003), crossed_batch=90
        )
        yield subject


@pytest.mark.parametrize("line", LINES)
@pytest.mark.fast_first
def test_a_line_of_the_kit_is_green(subject, line):
    (result,) = run(subject, only=line).lines
    assert result.status is Status.PASSED, result
