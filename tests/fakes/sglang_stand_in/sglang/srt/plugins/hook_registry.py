"""Stands in for SGLang's registry of hooks: AROUND hooks on methods and class methods."""

import functools
import pkgutil
from enum import Enum
from typing import ClassVar


class HookType(Enum):
    AFTER = "after"
    AROUND = "around"


class HookRegistry:
    _hooks: ClassVar = []

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
        assert hook_type is HookType.AROUND
        cls._hooks.append((target, hook))

    @classmethod
    def apply_hooks(cls):
        while cls._hooks:
            target, hook = cls._hooks.pop()
            owner, _, name = target.rpartition(".")
            owner = pkgutil.resolve_name(owner)
            raw = vars(owner)[name]
            is_classmethod = isinstance(raw, classmethod)
            original = raw.__func__ if is_classmethod else raw
            method = _around(hook, original)
            setattr(owner, name, classmethod(method) if is_classmethod else method)


def _around(hook, original):
    @functools.wraps(original)
    def method(*args, **kwargs):
        return hook(original, *args, **kwargs)

    return method
