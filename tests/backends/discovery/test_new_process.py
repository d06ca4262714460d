"""Functions called in a new process: the result, and every way of ending without one."""

import pytest

from tokendraw.backends.discovery import new_process
from tokendraw.backends.discovery.new_process import ProcessResult, call_in_new_process

FUNCTIONS = """
import json, os, sys, time

def echo(*arguments):
    print("a banner")
    print(json.dumps([*arguments, "tokendraw" in sys.modules]))

def end(status):
    os._exit(int(status))

def hang():
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def functions(tmp_path, monkeypatch):
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "fake_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path / "functions")


def test_the_last_line_is_the_value():
    assert call_in_new_process("fake_functions:echo", "a b", "") == (["a b", "", False], 0)


def test_a_process_that_ends_early_has_an_exit_status_alone():
    assert call_in_new_process("fake_functions:end", "7") == ProcessResult(None, 7)


def test_a_timeout_leaves_no_exit_status(monkeypatch):
    monkeypatch.setattr(new_process, "TIMEOUT_SECONDS", 0.5)
    assert call_in_new_process("fake_functions:hang") == ProcessResult(None, None)


def test_modules_in_the_working_folder_are_not_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("importlib", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    assert call_in_new_process("fake_functions:echo") == ([False], 0)
