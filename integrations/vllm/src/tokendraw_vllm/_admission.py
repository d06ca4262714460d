"""Checks the rules that requests ask tokendraw for, ``extra_args["tokendraw"]``, before vLLM admits them.

``InputProcessor._validate_params`` runs in the process that takes requests; a ValueError there is the answer to the
request, and the engine goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tokendraw import InvalidParameterError, SamplingParams
from tokendraw.engines import changed_signature, read_rules
from tokendraw_vllm import _log
from tokendraw_vllm._draft_setup import verification_obstacle

KEY = "tokendraw"
SOURCE = f"extra_args[{KEY!r}]"
_ATTRIBUTE = "_tokendraw"


def install() -> None:
    """Have vLLM's input processor of this process refuse bad rules."""
    from vllm.v1.engine.input_processor import InputProcessor

    original = getattr(InputProcessor, "_validate_params", None)
    reason = changed_signature("InputProcessor._validate_params", original, ("self", "params"))
    if reason is not None:
        _log.log_kept(f"{reason}, so {SOURCE} is checked late, by the sampler", part="admission")
    elif original is not None and not hasattr(original, _ATTRIBUTE):
        InputProcessor._validate_params = _checked(original)


def rules_of(sampling_params: Any) -> SamplingParams:
    """Read the rules of a request.

    :param sampling_params: of vLLM.
    :raises InvalidParameterError: a ValueError: a name or a value is bad, or ``min_p`` stands beside a filter.
    """
    params = read_rules((getattr(sampling_params, "extra_args", None) or {}).get(KEY), SOURCE)
    if params.filters and sampling_params.min_p:
        raise InvalidParameterError(
            f"{SOURCE} needs min_p=0 beside filters, whose floors are those of the whole row, found "
            f"{sampling_params.min_p:g}. Leave out min_p or the filters."
        )
    return params


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _validate_params(self: Any, params: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(self, params, *arguments, **keywords)
        if (getattr(params, "extra_args", None) or {}).get(KEY) is not None:
            rules_of(params)
            _check_engine(self.vllm_config)
        return result

    setattr(_validate_params, _ATTRIBUTE, True)
    return _validate_params


def _check_engine(config: Any) -> None:
    """Refuse rules where vLLM draws or verifies the tokens of every request."""
    if not getattr(config, "use_v2_model_runner", True):
        raise InvalidParameterError(
            f"{SOURCE} needs vLLM's V2 runner, whose sampler knows requests, found V1. Set VLLM_USE_V2_MODEL_RUNNER=1."
        )
    obstacle = verification_obstacle(config)
    if obstacle is not None:
        raise InvalidParameterError(
            f"{SOURCE} needs drafts that tokendraw verifies, found {obstacle}, by which vLLM verifies. Leave out "
            "one of them."
        )
