"""tokendraw draws the tokens of SGLang: ``sglang serve MODEL --sampling-backend tokendraw``.

SGLang finds :func:`register` by its entry point in ``sglang.srt.plugins``, tokendraw finds :func:`state` by the one in
``tokendraw.engines``. Importing this package imports neither torch nor SGLang.
"""

from tokendraw_sglang._engine import state
from tokendraw_sglang._registration import register

__all__ = ["register", "state"]
