"""Moved to tokendraw-engine-ops. This module goes with the release after 0.1."""

from tokendraw._lazy import moved

raise moved(__name__, "tokendraw_engine_ops.paged_kv")
