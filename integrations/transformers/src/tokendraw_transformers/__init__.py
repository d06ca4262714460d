"""tokendraw draws the tokens of Hugging Face ``generate``.

Importing this package imports neither torch nor transformers, and changes nothing in either. The first use of a name
checks that the installed transformers is a supported one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokendraw.tools import lazy_names

if TYPE_CHECKING:
    from tokendraw_transformers._drawing import DrawDecoderOnlyOutput as DrawDecoderOnlyOutput
    from tokendraw_transformers._drawing import DrawEncoderDecoderOutput as DrawEncoderDecoderOutput
    from tokendraw_transformers._errors import InvalidRowsWarning as InvalidRowsWarning
    from tokendraw_transformers._errors import SeedsUnusedWarning as SeedsUnusedWarning
    from tokendraw_transformers._errors import TransformersVersionError as TransformersVersionError
    from tokendraw_transformers._generate import Row as Row
    from tokendraw_transformers._generate import derived_seed as derived_seed
    from tokendraw_transformers._generate import generate as generate
    from tokendraw_transformers._processor import DrawLogitsProcessor as DrawLogitsProcessor
    from tokendraw_transformers._processor import ModelOnDisk as ModelOnDisk
    from tokendraw_transformers._rollout import rollout_func as rollout_func

_ERRORS = "InvalidRowsWarning SeedsUnusedWarning TransformersVersionError"
_ENTRIES = "the output's row(i) lists (token id, logprob, rank) of each step, for a server to format"
_REMOVED = {
    "generate_batch": "use generate, whose rows have seeds of their own too",
    "chat_logprobs": _ENTRIES,
    "completion_logprobs": _ENTRIES,
}
_import_name, __dir__ = lazy_names(__name__, removed=_REMOVED)


def __getattr__(name: str) -> Any:
    if name in __dir__() and name not in _ERRORS.split():
        from tokendraw_transformers._errors import check_transformers

        check_transformers()
    return _import_name(name)
