"""Checks that the adapter works with the installed transformers: its version and signatures."""

from __future__ import annotations

import functools
import inspect
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement

from tokendraw_transformers._errors import TransformersVersionError

SIGNATURES: dict[str, tuple[str, ...]] = {
    "_sample": (
        "self",
        "input_ids",
        "logits_processor",
        "stopping_criteria",
        "generation_config",
        "synced_gpus",
        "streamer",
        "model_kwargs",
    ),
    "_extract_generation_mode_kwargs": (
        "self",
        "custom_generate",
        "kwargs",
        "synced_gpus",
        "assistant_model",
        "streamer",
    ),
}
"""Methods of ``GenerationMixin`` and their parameters: the decoding loop, and what it is prepared with."""

CALLER_ARGUMENTS = ("assistant_model", "streamer", "synced_gpus")
"""Arguments of ``GenerationMixin.generate`` that it does not pass on to a callable ``custom_generate``."""


def supported_range() -> Requirement:
    """Return the range of transformers from this distribution's metadata; pyproject.toml alone states it."""
    try:
        lines = requires("tokendraw-transformers") or []
    except PackageNotFoundError:
        lines = []
    for requirement in map(Requirement, lines):
        if requirement.name == "transformers":
            return requirement
    raise TransformersVersionError(
        "'tokendraw-transformers' needs its own metadata, found none that names transformers. Install it anew."
    )


@functools.cache
def check_transformers() -> None:
    """Check once that the adapter supports the installed transformers.

    :raises TransformersVersionError: it is outside the range, or a signature differs.
    """
    try:
        import transformers
    except ImportError as error:
        raise TransformersVersionError(
            f"'tokendraw-transformers' needs {supported_range()}, found it not installed. "
            f"Run: pip install '{supported_range()}'"
        ) from error
    check_version(transformers.__version__, supported_range())
    from transformers import GenerationMixin

    check_signatures(GenerationMixin, transformers.__version__)


def check_version(version: str, requirement: Requirement) -> None:
    """Refuse a version outside the range.

    :raises TransformersVersionError: with both in its message.
    """
    if not requirement.specifier.contains(version, prereleases=True):
        raise TransformersVersionError(
            f"'tokendraw-transformers' needs {requirement}, found transformers {version}. "
            f"Run: pip install '{requirement}'"
        )


def check_signatures(mixin: type, version: str) -> None:
    """Refuse a decoding loop with other arguments than expected.

    :param mixin: ``transformers.GenerationMixin``.
    :raises TransformersVersionError: names the method with both lists.
    """
    expected = {name: list(parameters) for name, parameters in SIGNATURES.items()}
    found = {name: _parameters(mixin, name) for name in expected}
    taken = set(_parameters(mixin, "generate"))
    expected["generate"] = list(CALLER_ARGUMENTS)
    found["generate"] = [name for name in CALLER_ARGUMENTS if name in taken]
    for name, parameters in expected.items():
        if found[name] != parameters:
            raise TransformersVersionError(
                f"'GenerationMixin.{name}' of transformers {version} needs the parameters {', '.join(parameters)}, "
                f"found {', '.join(found[name]) or 'none'}. Install a transformers that tokendraw-transformers was "
                "tested with, or leave out custom_generate."
            )


def _parameters(mixin: type, name: str) -> list[str]:
    method = getattr(mixin, name, None)
    return [] if method is None else list(inspect.signature(method).parameters)
