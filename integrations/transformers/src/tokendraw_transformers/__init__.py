"""tokendraw draws the tokens of Hugging Face ``generate``.

Importing this package imports neither torch nor transformers, and changes nothing in either. The first use of a name
checks that the installed transformers is a supported one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokendraw_transformers._continuous import generate_batch
    from tokendraw_transformers._errors import (
        InvalidRowsWarning,
        SeedsUnusedWarning,
        TransformersVersionError,
    )
    from tokendraw_transformers._generate import generate
    from tokendraw_transformers._model_on_disk import ModelOnDisk
    from tokendraw_transformers._openai import chat_logprobs, completion_logprobs
    from tokendraw_transformers._output import DrawDecoderOnlyOutput, DrawEncoderDecoderOutput
    from tokendraw_transformers._processor import DrawLogitsProcessor
    from tokendraw_transformers._rollout import rollout_func
    from tokendraw_transformers._seeds import Row, derived_seed

_MODULE_OF = {
    "DrawDecoderOnlyOutput": "_output",
    "DrawEncoderDecoderOutput": "_output",
    "DrawLogitsProcessor": "_processor",
    "InvalidRowsWarning": "_errors",
    "ModelOnDisk": "_model_on_disk",
    "Row": "_seeds",
    "SeedsUnusedWarning": "_errors",
    "TransformersVersionError": "_errors",
    "chat_logprobs": "_openai",
    "completion_logprobs": "_openai",
    "derived_seed": "_seeds",
    "generate": "_generate",
    "generate_batch": "_continuous",
    "rollout_func": "_rollout",
}

__all__ = [
    "DrawDecoderOnlyOutput",
    "DrawEncoderDecoderOutput",
    "DrawLogitsProcessor",
    "InvalidRowsWarning",
    "ModelOnDisk",
    "Row",
    "SeedsUnusedWarning",
    "TransformersVersionError",
    "chat_logprobs",
    "completion_logprobs",
    "derived_seed",
    "generate",
    "generate_batch",
    "rollout_func",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULE_OF[name] != "_errors":
        from tokendraw_transformers._versions import check_continuous, check_transformers

        check_transformers()
        if _MODULE_OF[name] == "_continuous":
            check_continuous()
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
