"""Compile one kernel through triton-gumbel in a process, and print the number of compilations: 1 or 0.

``compiling_process.py FOLDER SECONDS``: the kernel takes so long where the folder does not hold it yet, as Triton's
cache holds kernels. It begins when there is a file ``go``; locks are in ``locks``, which may be no folder.
"""

import sys
import time
from pathlib import Path

from tokendraw_triton_gumbel import compilation
from tokendraw_triton_gumbel.compilation import KernelSpec, compile_kernel


class Kernel:
    """A kernel without arguments, and its compiled form."""

    __name__, params = "a_kernel", ()

    def __init__(self, folder, seconds):
        self.folder, self.seconds, self.compilations = folder, seconds, 0

    def warmup(self, *, grid):
        if not (self.folder / "cached").exists():
            self.compilations += 1
            (self.folder / "begun").touch()
            time.sleep(self.seconds)
            (self.folder / "cached").touch()
        return {grid: self}


def main(folder, seconds):
    compilation._folder = lambda: folder / "locks"
    kernel = Kernel(folder, seconds)
    print("ready", flush=True)
    while not (folder / "go").exists():
        time.sleep(0.005)
    compile_kernel(KernelSpec(kernel, (), {}, {}))
    print(kernel.compilations)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
