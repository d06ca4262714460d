"""The kit's line about metadata of a plugin's own class: it can be imported, stays, and is harmless where it is off."""

from dataclasses import dataclass, replace

import pytest
import torch

from mutants.samplers import NATIVE, SamplerMutant, sampler_mutant
from tokendraw import SamplingMetadata
from tokendraw_testing import Status


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnMetadata(SamplingMetadata):
    """Metadata with a parameter of a plugin."""

    offset: torch.Tensor | None = None


class OffIsNotOff(SamplerMutant):
    """A parameter that is off changes what is drawn."""

    def change(self, logits, metadata):
        core = {name: getattr(metadata, name) for name in SamplingMetadata.__dataclass_fields__}
        changed = logits.roll(1, -1) if type(metadata) is OwnMetadata else logits
        return changed, SamplingMetadata(**core)


class Core(SamplerMutant):
    """The native sampler, given the core's part of the metadata."""

    def change(self, logits, metadata):
        core = {name: getattr(metadata, name) for name in SamplingMetadata.__dataclass_fields__}
        return logits, SamplingMetadata(**core)


def line(sampler, *names):
    """The line of a report about the classes that are declared by these names."""
    capabilities = replace(NATIVE, metadata_classes=names)
    (result,) = sampler_mutant(sampler, capabilities=capabilities).look("metadata classes")
    return result


OWN = f"{__name__}.OwnMetadata"


def test_a_class_whose_parameters_are_off_changes_nothing():
    found = line(Core, OWN)
    assert (found.status, found.detail) == (Status.PASSED, OWN)


def test_the_line_is_left_out_where_no_class_is_declared():
    lines = sampler_mutant(SamplerMutant).look("output", "metadata classes")
    assert [line.name for line in lines] == ["output"]


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        (
            f"{__name__}.Misspelt",
            f"'{__name__}.Misspelt' needs to name a subclass of SamplingMetadata, found AttributeError",
        ),
        (
            "acme.Metadata",
            "'acme.Metadata' needs to name a subclass of SamplingMetadata, found ModuleNotFoundError",
        ),
        ("tokendraw.Need", "'tokendraw.Need' needs to name a subclass of SamplingMetadata, found <class "),
    ],
)
def test_a_name_that_is_none_of_metadata_turns_the_line_red(name, detail):
    found = line(Core, name)
    assert found.status is Status.FAILED
    assert found.detail.startswith(detail)


def test_a_parameter_that_is_never_off_turns_the_line_red():
    found = line(OffIsNotOff, OWN)
    assert found.status is Status.FAILED
    assert found.detail.startswith(f"metadata of '{OWN}' with nothing of its own need the tokens ")
