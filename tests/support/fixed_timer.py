"""A timer of the bench whose times do not depend on the machine."""

import ast
import re
from pathlib import Path

import tokendraw_bench
from tokendraw import cli
from tokendraw_bench import Timing

SOURCE = Path(tokendraw_bench.__file__).parent / "commands" / "bench.py"
TIMES = {
    "read: torch.sum": 10.0,
    "read: torch.amax": 12.5,
    "copy: torch.Tensor.copy_": 4.0,
    "acme": 11.0,
    "native": 99.96,
    "torch-sort": 2500.0,
}


class FixedTimer:
    """Calls everything once and says what the tests compare with."""

    method = "a clock that stands"

    def __init__(self, repeats):
        self.repeats = repeats

    def buffers(self, nbytes):
        return 2

    def time(self, calls, buffers):
        for one in calls.values():
            one.draw(buffers[0])
        return {
            name: Timing(us=TIMES[name], q1_us=TIMES[name], q3_us=TIMES[name], host_us=None, how="wall clock")
            for name in calls
        }


def documented_keys() -> set[str]:
    """Names in double backquotes in the help of the command, and in that of all commands: keys of JSON among them."""
    docstring = ast.get_docstring(ast.parse(SOURCE.read_text(encoding="utf-8")))
    return set(re.findall(r"``(\w+)``", f"{docstring} {cli.__doc__}"))
