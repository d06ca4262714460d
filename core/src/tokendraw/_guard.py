"""The wall between tokendraw and the code of plugins: whatever that raises becomes a reason in words."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tokendraw._errors import PluginError
from tokendraw._words import spoken

T = TypeVar("T")

_log = logging.getLogger("tokendraw")


def guarded(action: str, call: Callable[[], T]) -> T:
    """Return what ``call`` returns.

    A plugin that calls ``sys.exit`` must not end its host, so this catches more than ``Exception``; only an
    interrupt from the keyboard is the user's own.

    :param action: what is being done, for the message: ``loading 'acme:plugin'``.
    :raises PluginError: the call raised; the message is a reason in words, the cause is what was raised.
    """
    try:
        return call()
    except (KeyboardInterrupt, PluginError):
        raise
    except BaseException as error:
        _log.debug("%s failed", action, exc_info=True)
        raise PluginError(f"{action} raised {spoken(error)}") from error
