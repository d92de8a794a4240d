"""Calls that are recorded on a GPU and replayed: evaluation makes the same few passes over and over, thousands of small
operations each, and the host could not launch them as fast as the GPU does them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pmsfl.engine.rows import rebuilt, tensors

WARM_UP = 2  # calls before a capture: libraries choose their kernels and allocate their workspaces there


def capture(
    function: Callable[[], Any], pool: Any, warm_up: int = WARM_UP, generators: Sequence[torch.Generator] = ()
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A recording of function() and what it returns, which every replay overwrites. pool: other recordings' memory;
    generators: whose randomness it draws, and every replay draws on."""
    stream = _stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_up):
            function()
    torch.cuda.synchronize()
    if pool is None:
        torch.cuda.empty_cache()  # only for the first: others fit into its memory, and a round keeps its own
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool)
        try:
            outputs = function()
        finally:
            graph.capture_end()
    return graph, outputs


@cache
def _stream() -> torch.cuda.Stream:
    """One for all recordings: libraries keep a workspace for every stream they have seen."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def repeat(step: Callable[[], None], times: int, generator: torch.Generator) -> None:
    """step() so many times, drawing from `generator`. On a GPU all but the first come from a recording.

    So whatever changes from one to the next has to be in tensors that the step itself moves. A step that cannot be
    recorded is played as it is.
    """
    play: Callable[[], object] = step
    begun = 0

    def counted() -> None:
        nonlocal begun
        begun += 1
        step()

    if generator.device.type == "cuda" and times > WARM_UP:
        try:
            play = capture(counted, None, generators=[generator])[0].replay
        except RuntimeError as error:
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise
    for _ in range(times - min(begun, WARM_UP)):  # those of the warm-up were steps as good as any
        play()


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
