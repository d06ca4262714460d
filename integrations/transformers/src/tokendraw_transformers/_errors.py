"""What can go wrong here and nowhere else in tokendraw.

::

    tokendraw.TokendrawError
    └── TransformersVersionError     the installed transformers is not one that the adapter knows (also an ImportError)

    tokendraw.TokendrawWarning
    └── InvalidRowsWarning           a row met NaN, or nothing above -inf

Arguments that cannot be served are a :class:`tokendraw.InvalidParameterError`, a ValueError.
"""

from __future__ import annotations

from tokendraw import TokendrawError, TokendrawWarning


class TransformersVersionError(TokendrawError, ImportError):
    """transformers is outside the supported range, or its decoding loop is not the one that the adapter knows."""


class InvalidRowsWarning(TokendrawWarning):
    """Some rows met NaN, or logits without one above -inf, where transformers' own sampling would have raised.

    The other rows are untouched. ``valid`` of the output tells them apart.
    """
