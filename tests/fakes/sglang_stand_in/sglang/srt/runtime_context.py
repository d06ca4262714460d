"""Stands in for SGLang's configuration of a process: namespaces with leaves, some of them overridden for a while."""

import contextlib
from types import SimpleNamespace


class _Namespace(SimpleNamespace):
    @contextlib.contextmanager
    def override(self, **leaves):
        before = {name: getattr(self, name) for name in leaves}
        vars(self).update(leaves)
        try:
            yield self
        finally:
            vars(self).update(before)


class RuntimeContext:
    """Holds the namespaces that the adapter reads."""

    def __init__(self):
        self.exec = _Namespace(
            kernel=_Namespace(sampling_backend=None),
            deterministic=_Namespace(enable_deterministic_inference=False, rl_on_policy_target=None),
        )
        self.spec = _Namespace(
            speculative_algorithm=None,
            speculative_accept_threshold_single=1.0,
            speculative_accept_threshold_acc=1.0,
            speculative_use_rejection_sampling=False,
            speculative_use_block_verification=False,
            speculative_num_draft_tokens=None,
        )
        self.parallel = _Namespace(tp_group=SimpleNamespace(world_size=1, device_group=None))
        self.platform = _Namespace(has_flashinfer=False)

    def override(self, source, **fields):
        vars(self.exec.kernel).update(fields)


_CONTEXT = RuntimeContext()


def get_context():
    return _CONTEXT


def get_exec():
    return _CONTEXT.exec


def get_spec():
    return _CONTEXT.spec


def get_parallel():
    return _CONTEXT.parallel


def get_platform():
    return _CONTEXT.platform
