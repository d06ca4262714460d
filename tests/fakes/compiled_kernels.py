"""Compiles calls of kernels, as stand-ins noted them, for targets without a device."""

from tokendraw_triton_gumbel.host import tuning
from triton_on_a_cpu import TARGETS, code_of, compiled_call

SOME = ("sm_90", "gfx942")
"""In every configuration, and more kinds of calls: for a target of each kind, since it takes minutes for all."""


def compiled(kernel, target, **kwargs):
    """Compile the last call of a kernel, and return the code by stages."""
    return compiled_call(kernel.calls[-1], target, **kwargs)


def has_machine_code(asm):
    return len(code_of(asm)) > 1000


def configurations_of(target):
    """Look up the configurations of a kind of device, for many rows and for few."""
    return [how for name, how in tuning.TABLE.items() if name.startswith(TARGETS[target][0])]
