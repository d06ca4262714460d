"""Turns any exception from a plugin's code into a reason in words."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tokendraw.backends.discovery import settings
from tokendraw.backends.discovery.origins import format_origin
from tokendraw.errors.exceptions import PluginError
from tokendraw.errors.formatting import format_error

T = TypeVar("T")

_log = logging.getLogger("tokendraw")


def guarded(action: str, call: Callable[[], T], package: str = "") -> T:
    """Call a plugin's code, and raise any exception as a PluginError.

    A plugin that calls ``sys.exit`` must not end its host, so this catches more than ``Exception``; only an
    interrupt from the keyboard is the user's own.

    :param action: what is being done, for the message: ``loading 'acme:plugin'``.
    :param package: of the plugin; the message ends with the line in it that was running.
    :raises PluginError: the call raised; the message is a reason in words, the cause is what was raised.
    """
    try:
        return call()
    except (KeyboardInterrupt, PluginError):
        raise
    except BaseException as error:
        log_traceback(action, error, aloud=settings.is_debugging())
        raise PluginError(f"{action} raised {format_error(error)}{format_origin(error, package)}") from error


def log_traceback(action: str, error: BaseException, *, aloud: bool) -> None:
    """Log the traceback of an exception: as a warning with ``aloud`` (``TOKENDRAW_DEBUG=1``), else for debugging."""
    _log.log(logging.WARNING if aloud else logging.DEBUG, "%s failed", action, exc_info=error)
