"""The default dtype belongs to the process: an engine may set the dtype of its weights while plugins load beside it."""

import logging
import threading

import pytest
import torch

from tokendraw.backends.discovery import torch_state

GUARDS = {
    "built": lambda: torch_state.preserved_while_building("acme"),
    "imported": lambda: torch_state.preserved_at_import("acme_never_imported", "acme"),
}


@pytest.fixture
def default_dtype():
    """Set the default dtype of before at the end."""
    before = torch.get_default_dtype()
    yield before
    torch.set_default_dtype(before)


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_what_the_host_sets_while_a_thread_loads_plugins_stays_and_is_no_plugins_fault(
    guard, default_dtype, caplog
):
    is_loading, is_set = threading.Event(), threading.Event()

    def load():
        with guard():
            is_loading.set()
            is_set.wait(10)

    caplog.set_level(logging.WARNING, "tokendraw")
    loading = threading.Thread(target=load)
    loading.start()
    assert is_loading.wait(10)
    torch.set_default_dtype(torch.bfloat16)
    is_set.set()
    loading.join(10)
    assert torch.get_default_dtype() == torch.bfloat16
    assert not caplog.records


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_what_a_plugin_sets_in_the_main_thread_is_put_back(guard, default_dtype, caplog):
    with guard():
        torch.set_default_dtype(torch.float64)
    assert torch.get_default_dtype() == default_dtype
    assert [record.levelname for record in caplog.records] == ["WARNING"]
