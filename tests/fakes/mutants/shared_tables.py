"""A cache of covering tables, since many looks need the same."""

import contextlib
from unittest import mock

from tokendraw_testing.crossing import table
from tokendraw_testing.crossing.covering import anything, covering
from tokendraw_testing.sample import crossed_statistics
from tokendraw_testing.verify.crossing import lines

_MADE = {}


@contextlib.contextmanager
def shared_tables():
    """Cache tables by factors and generator state, so that later random numbers stay equal."""
    with contextlib.ExitStack() as stack:
        for module in (table, crossed_statistics, lines):
            stack.enter_context(mock.patch.object(module, "covering", _remembering(module.__name__)))
        yield


def _remembering(who):
    def made(factors, rng, allowed=anything):
        key = who, repr(factors), repr(rng.bit_generator.state)
        if key not in _MADE:
            _MADE[key] = covering(factors, rng, allowed), rng.bit_generator.state
        cases, rng.bit_generator.state = _MADE[key]
        return cases

    return made
