"""Reads the installed version of a library.

Versions come from distribution metadata, never from an import and never from ``find_spec``: a folder or
another project may have the same import name.
"""

from __future__ import annotations

import importlib_metadata

from tokendraw.errors.formatting import printable


def installed_version(distribution: str) -> str | None:
    """Read the installed version of a distribution; ``""`` if the metadata hold none, None if not installed."""
    try:
        version: str | None = importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None
    except Exception:  # damaged metadata: KeyError, FileNotFoundError, UnicodeDecodeError, by their damage
        return ""
    return printable(version or "")
