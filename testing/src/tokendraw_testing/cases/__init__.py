"""Rows of logits, requests within the capabilities of a subject, and covering tables of both."""

from tokendraw_testing.cases.requests import *  # noqa: F403 - the face of these two
from tokendraw_testing.cases.rows import *  # noqa: F403
