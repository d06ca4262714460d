"""``tokendraw doctor``: a checkup to paste into a bug report.

JSON: ``tokendraw``, ``python``, ``platform``, ``libraries`` (``name``, ``installed``, ``needed``,
``needed_by``, ``fits``; once for each that requires it), ``upstreams`` (``name``, ``plugin``,
``installed``, ``needed``, ``tested``, ``would_change``), ``engines`` (of each adapter to an inference engine:
``engine``, ``installed``, ``tested``, ``applies``, ``reason``), ``commands`` (that distributions bring: ``name``,
``distribution``, ``version``, ``entry_point``, ``reason``: null if it can be used), ``host``, ``settings``
(``variables`` by name, ``config``: the path of the file in force or null), ``candidates`` (as in ``list --json``),
``origins`` (of the core and its own plugins: ``name``, ``path``, ``beside_core``), ``chosen`` (null if no sampler is
usable), ``operations`` (by name who serves, or null), ``builds`` (null with ``--no-build``, else for each operation
that a plugin was chosen for: ``chosen``, ``companion``, ``partial_companion``, ``seconds``, ``error``, and
``rejections``, reasons by plugin),
``heavy_imports`` (names of modules by plugin) and ``findings`` (``problem``, ``mend``: a command or null).
"""

from __future__ import annotations

import click

from tokendraw.backends.machine import detect
from tokendraw.cli import options
from tokendraw.cli.command import NOT_USABLE, GuardedCommand
from tokendraw.cli.diagnosis.checkup import examine
from tokendraw.cli.diagnosis.report import print_checkup
from tokendraw.cli.terminal.tables import print_json
from tokendraw.cli.terminal.verbose import is_verbose


@click.command(cls=GuardedCommand, short_help="What is wrong here, and what mends it.")
@click.option(
    "--no-build", is_flag=True, help="Decide from what the plugins say of themselves, and build none."
)
@options.verbose_option
@options.json_option
@click.pass_context
def doctor(ctx: click.Context, no_build: bool, as_json: bool) -> None:
    """Check this installation: libraries, plugins, settings, faults, and the command that mends each fault.

    For each operation, the plugin that a program gets is built and makes the call that proves it. Exits with 1 if a
    program would get no sampler here. All that imports torch, a backend or an engine runs in processes of its own.
    """
    host = detect.detect_host()
    facts = examine(host, builds=not no_build, verbose=is_verbose(ctx))
    if as_json:
        print_json(facts)
    else:
        print_checkup(host, facts)
    if facts["chosen"] is None:
        ctx.exit(NOT_USABLE)
