"""The exceptions and warnings of the adapter, and the check that it works with the installed transformers.

::

    tokendraw.TokendrawError
    └── TransformersVersionError     the installed transformers is not one that the adapter knows (also an ImportError)

    tokendraw.TokendrawWarning
    ├── InvalidRowsWarning           a row met NaN, or nothing above -inf
    └── SeedsUnusedWarning           seeds were given to greedy decoding

``TOKENDRAW_STRICT=1`` raises the warnings. Arguments that cannot be served are a
:class:`tokendraw.InvalidParameterError`, a ValueError.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement

from tokendraw import TokendrawError, TokendrawWarning
from tokendraw.resolution import read_settings


class TransformersVersionError(TokendrawError, ImportError):
    """transformers is outside the supported range, or its decoding loop is unknown to the adapter."""


class InvalidRowsWarning(TokendrawWarning):
    """Some rows had NaN, or no logit above -inf, where transformers' own sampling would have raised.

    The other rows are not affected. ``valid`` of the output says which are which.
    """


class SeedsUnusedWarning(TokendrawWarning):
    """Seeds were given to greedy decoding, which draws nothing: no token changed."""


def warn(text: str, category: type[TokendrawWarning]) -> None:
    """Warn the caller of ``model.generate`` from the adapter's ``generate``."""
    if read_settings().strict:
        raise category(f"{text} TOKENDRAW_STRICT=1 makes this warning an error.")
    warnings.warn(text, category, stacklevel=5)


_PARAMETERS = {
    "_sample": (
        "self input_ids logits_processor stopping_criteria generation_config synced_gpus streamer model_kwargs"
    ),
    "_extract_generation_mode_kwargs": "self custom_generate kwargs synced_gpus assistant_model streamer",
    "generate": "assistant_model streamer synced_gpus",
}
SIGNATURES = {name: parameters.split() for name, parameters in _PARAMETERS.items()}
"""Methods of ``GenerationMixin`` and their parameters: the decoding loop, and what it is prepared with."""
CALLER_ARGUMENTS = SIGNATURES["generate"]
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
    if not requirement.specifier.contains(version, prereleases=True):
        raise TransformersVersionError(
            f"'tokendraw-transformers' needs {requirement}, found transformers {version}. "
            f"Run: pip install '{requirement}'"
        )


def check_signatures(mixin: type, version: str) -> None:
    """Refuse a ``GenerationMixin`` with unexpected arguments of the decoding loop."""
    for name, parameters in SIGNATURES.items():
        method = getattr(mixin, name, None)
        found = [] if method is None else list(inspect.signature(method).parameters)
        if name == "generate":  # it has others too
            found = [each for each in parameters if each in found]
        if found != parameters:
            raise TransformersVersionError(
                f"'GenerationMixin.{name}' of transformers {version} needs the parameters {', '.join(parameters)}, "
                f"found {', '.join(found) or 'none'}. Install a transformers that tokendraw-transformers was tested "
                "with, or leave out custom_generate."
            )
