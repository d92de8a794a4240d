"""SplitFed: clients train the bottom's weights, the server averages them."""

from __future__ import annotations

from pmsfl.methods.base import Method


class SplitFed(Method):
    """Weights trained and averaged; one shared top. The upper reference of every mask method."""

    name = "splitfed"
    summary = "weights of the bottom trained and averaged"
    paper = "SplitFed (AAAI 2022)"
