"""Rows of logits, requests within the capabilities of a subject, and covering tables of both."""

from tokendraw_testing.cases.factors import *  # noqa: F403 - the face of these three
from tokendraw_testing.cases.requests import *  # noqa: F403
from tokendraw_testing.cases.rows import *  # noqa: F403
