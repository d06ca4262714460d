"""Plugins break at import, each beside a host in a separate process, and the host survives."""

import signal

from fake_dists import plugin
from isolation import RESOLVE, resolved, run


def test_a_host_survives_an_import_that_exits(dists):
    dists.add_plugin("acme", "raise SystemExit(0)")
    reason = "loading 'fake_acme:plugin' raised SystemExit: 0"
    assert resolved(dists) == ["native", {"acme": ["broken", reason]}]


def test_a_host_survives_a_circular_import(dists):
    folder = dists.add(
        "acme-tokendraw",
        plugins={"acme": "fake_acme:plugin"},
        modules={
            "fake_acme": "from fake_acme_sampler import sampler\nplugin = sampler",
            "fake_acme_sampler": "from fake_acme import plugin\nsampler = plugin",
        },
    )
    reason = (
        "loading 'fake_acme:plugin' raised ImportError: cannot import name 'plugin' from partially initialized "
        f"module 'fake_acme' (most likely due to a circular import) ({folder}/fake_acme.py)"
    )
    assert resolved(dists) == ["native", {"acme": ["broken", reason]}]


def test_a_plugin_that_discovers_while_it_is_discovered_is_fine(dists):
    source = "import tokendraw; SEEN = [(c.name, c.state) for c in tokendraw.discover()]\n"
    dists.add_plugin("acme", source + plugin("acme", priority=-1))
    assert resolved(dists) == ["native", {"acme": ["available", "available, priority -1"]}]


def test_an_interrupt_from_the_keyboard_ends_the_host_while_a_plugin_is_imported(dists):
    dists.add_plugin("acme", "raise KeyboardInterrupt")
    result = run(dists, "-c", RESOLVE)
    assert (result.returncode, result.stdout) == (-signal.SIGINT, "")
    assert result.stderr.endswith("\nKeyboardInterrupt\n")
