"""The exceptions and warnings of the adapter.

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

import warnings

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


def warn(text: str, category: type[TokendrawWarning], *, stacklevel: int) -> None:
    """Warn, or raise the warning under ``TOKENDRAW_STRICT=1``.

    :param stacklevel: 1 is the caller of this function.
    """
    if read_settings().strict:
        raise category(f"{text} TOKENDRAW_STRICT=1 makes this warning an error.")
    warnings.warn(text, category, stacklevel=stacklevel + 1)
