"""Definitions of filters in float64, as functions of y."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tokendraw import InvalidParameterError
from tokendraw.tools import all_of, format_error, nearest

Array = NDArray[Any]

Definition: TypeAlias = Callable[[Array, float], Array]
"""Marks the kept tokens [n] bool of y [n] float64, the finite logits of a row with 0 the largest, for a value."""


def _probabilities(y: Array) -> Array:
    weights: Array = np.exp(y)
    return np.asarray(weights / weights.sum())


def _entropy(p: Array) -> float:
    shown = p[p > 0]
    return -float((shown * np.log(shown)).sum())


def _top_n_sigma(y: Array, value: float) -> Array:
    return np.asarray(y >= -value * y.std())


def _epsilon_cutoff(y: Array, value: float) -> Array:
    return _probabilities(y) >= value


def _eta_cutoff(y: Array, value: float) -> Array:
    p = _probabilities(y)
    return np.asarray(p >= min(value, np.sqrt(value) * np.exp(-_entropy(p))))


def _p_less(y: Array, value: float) -> Array:
    p = _probabilities(y)
    return np.asarray(p >= (p * p).sum())


SHIPPED: Final[Mapping[str, Definition]] = {
    "top_n_sigma": _top_n_sigma,
    "epsilon_cutoff": _epsilon_cutoff,
    "eta_cutoff": _eta_cutoff,
    "p_less": _p_less,
}
"""Definitions of the filters of tokendraw, as their papers have them."""


def read_definition(text: str) -> Definition:
    """Load a function from a Python file.

    :param text: ``FILE:FUNCTION``, such as ``tests/definition.py:kept``.
    :raises InvalidParameterError: there is no such file or function, or the file raised.
    """
    path, _, name = text.rpartition(":")
    if not Path(path).is_file():
        raise InvalidParameterError(
            f"'--definition' needs FILE:FUNCTION with a Python file, such as definition.py:kept, found {text!r}."
        )
    spec = importlib.util.spec_from_file_location("tokendraw_filter_definition", path)
    if spec is None or spec.loader is None:
        raise InvalidParameterError(f"'--definition' needs a Python file, found {path!r}. Name it *.py.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidParameterError(
            f"'--definition' needs a file that can be imported, {path!r} raised {format_error(error)}. Mend it."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = nearest(name, names)
        known = f"the nearest is {near!r}" if near else f"it has {all_of(sorted(names))}"
        raise InvalidParameterError(f"'--definition' needs a function of {path!r}, found {name!r}, {known}.")
    definition: Definition = function
    return definition
