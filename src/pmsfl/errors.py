"""Errors that a user can act on."""

from __future__ import annotations


class PmsflError(Exception):
    """A problem the user can solve: the message names what was found, what is allowed and what to do."""
