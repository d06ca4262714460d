"""Fixtures shared by the tests of the command line."""

import os
import threading

import numpy as np
import pytest


@pytest.fixture
def file(tmp_path):
    """A file with two rows of five equal logits."""
    np.save(tmp_path / "x.npy", np.zeros((2, 5), np.float32))
    return tmp_path / "x.npy"


@pytest.fixture
def terminal():
    """Return ``terminal(run)``: the terminal output of ``run(descriptor)``, and its result."""
    pty = pytest.importorskip("pty", reason="needs a POSIX terminal")

    def watched(run):
        ours, theirs = pty.openpty()
        parts = []

        def watch():
            while "the end" not in "".join(parts):
                parts.append(os.read(ours, 4096).decode())

        watching = threading.Thread(target=watch)
        watching.start()
        result = run(theirs)
        os.write(theirs, b"the end")
        watching.join()
        os.close(ours)
        os.close(theirs)
        return "".join(parts).removesuffix("the end"), result

    return watched
