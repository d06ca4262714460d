"""Pages of HTML that commands write: the option, the libraries that pages need, and templates around one frame."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from tokendraw.errors.exceptions import InvalidParameterError, TokendrawError
from tokendraw.errors.formatting import all_of
from tokendraw.errors.install_commands import how_to_install

html_option = click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the report as a page of HTML, which needs no network.",
)


def require_html(file: Path, distribution: str, modules: Sequence[str]) -> None:
    """Check the folder and the libraries of a page, ahead of the work to report.

    :param modules: modules that the extra ``html`` of the distribution brings.
    :raises InvalidParameterError: the folder of the file does not exist.
    :raises TokendrawError: a module is missing; the message has the command to install it.
    """
    if not file.parent.is_dir():
        raise InvalidParameterError(
            f"'--html' needs a file in a folder that exists, found '{file}'. Make the folder '{file.parent}'."
        )
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise TokendrawError(
            f"'--html' needs {all_of(modules)}, found no {' and no '.join(missing)}; run "
            f"{how_to_install(distribution, 'html')}."
        )


def write_page(file: Path, package: str, template: str, **values: Any) -> None:
    """Write a page from a Jinja template that extends ``frame.html``; every value in it is escaped.

    :param package: the package with the template in its folder ``pages``.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(package, "pages"), PackageLoader("tokendraw.cli", "pages")])
    pages = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = pages.get_template(template).render(values)
    file.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
