"""Keeps public calls out of the graphs of ``torch.compile``: a compiled program breaks its graph at such a call.

A call looks at what only the host knows (who serves a batch, which kernel was compiled, whether a row asked for
logprobs) and launches kernels of its own. Traced, all of that would become constants of the graph.

Nothing here loads ``torch._dynamo``, the front of ``torch.compile``, which takes a second.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

REASON = (
    "tokendraw is not traced. Make this call outside of the function that fullgraph=True compiles, or leave out "
    "fullgraph=True: the graph then breaks at the call and continues behind it"
)


def untraced(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Run ``function`` outside of every graph, like ``torch.compiler.disable``, but without loading torch._dynamo."""
    disabled: Callable[_P, _T] | None = None

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        try:  # dynamo compiles no part of a frame whose graph breaks inside of a try
            if disabled is None:
                disabled = _disabled(function)
            return disabled(*args, **kwargs)
        finally:
            pass

    # What dynamo looks for where a program that it traces makes a call: the graph breaks there, and the error of
    # fullgraph=True gives the reason. That of torch 2.6 names the function alone.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    call._torchdynamo_disable_msg = REASON  # type: ignore[attr-defined]
    return call


def made_untraced(cls: type[_T]) -> type[_T]:
    cls.__init__ = untraced(cls.__init__)  # type: ignore[method-assign]
    return cls


def _disabled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Switch dynamo off for this thread while ``function`` runs."""
    import torch

    try:
        from torch._C._dynamo.eval_frame import set_eval_frame
    except ImportError:  # it is private; torch.compiler.disable does the same in 4 us
        disabled: Callable[_P, _T] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return disabled

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        hook = None
        try:
            hook = set_eval_frame(None)
            return function(*args, **kwargs)
        finally:
            set_eval_frame(hook)

    return call
