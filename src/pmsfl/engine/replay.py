"""Calls that are recorded on a GPU and replayed: evaluation makes the same few passes over and over, thousands of small
operations each, and the host could not launch them as fast as the GPU does them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from pmsfl.engine.rows import rebuilt, tensors

WARM_UP = 2  # calls before a capture: libraries choose their kernels and allocate their workspaces there


def capture(function: Callable[[], Any], pool: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A recording of function() and what it returns, which every replay overwrites. pool: other recordings' memory."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        outputs = function()
    return graph, outputs


class Replays:
    """One recording per kind of call and shapes of its tensors."""

    def __init__(self) -> None:
        self.pool: Any = None
        self.memory: dict[tuple[Any, ...], Tensor] = {}  # inputs of one shape share their place
        self.sources: dict[int, tuple[Tensor, int]] = {}  # what was last copied to a place
        self.known: dict[Hashable, tuple[Any, list[Tensor], Any]] = {}

    def __call__(self, kind: Hashable, function: Callable[[Any], Any], inputs: Any) -> Any:
        """function(inputs), from its recording. What it returns is overwritten by the next call."""
        given = tensors(inputs)
        shapes = tuple((i, t.shape, t.dtype) for i, t in enumerate(given))
        key = (kind, shapes)
        if key not in self.known:
            places = [self.memory.setdefault(s, t.clone()) for s, t in zip(shapes, given, strict=True)]
            self._fill(places, given)
            recorded = rebuilt(inputs, iter(places))
            graph, outputs = capture(lambda: function(recorded), self.pool)
            self.pool = graph.pool()
            self.known[key] = graph, places, outputs
        graph, places, outputs = self.known[key]
        self._fill(places, given)
        graph.replay()
        return outputs

    def _fill(self, places: list[Tensor], given: list[Tensor]) -> None:
        for place, t in zip(places, given, strict=True):
            last = self.sources.get(place.data_ptr())
            if last is None or last[0] is not t or last[1] != t._version:
                place.copy_(t)
                self.sources[place.data_ptr()] = (t, t._version)
