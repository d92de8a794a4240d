"""A step as one compiled program: traced as it runs, forward, backward and optimisers together, for any number of
clients at a depth.

The step is ordinary torch code, so a tracer that watches its operations sees all of it, users' modules included,
and no method has a second implementation. The number of clients stays a symbol, so one compilation serves a
cohort of ten and the last straggler alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pmsfl.engine.reshape import compute_before_views

Program = Callable[..., Any]
Step = Callable[[list[Tensor]], None]  # moves the tensors it is given, in place
Lower = Callable[[fx.GraphModule, list[Tensor], Any], Program]  # graph, its inputs and their mode → what runs
INT32 = 2**31
SPARE_ROOM = 4  # later rounds may have more clients of a depth than the one that is compiled


class CannotCompile(Exception):
    """Why a step was not compiled."""


@dataclass(frozen=True)
class Compiled:
    """A compiled step. constants: tensors the step refers to that are always the same (data, frozen weights)."""

    program: Program
    constants: list[Tensor]
    seconds: float

    def __call__(self, inputs: Sequence[Tensor]) -> None:
        with torch.no_grad():
            self.program(*inputs, *self.constants)


def inductor(graph: fx.GraphModule, fakes: list[Tensor], mode: Any) -> Program:
    """Torch's own compiler: fused kernels, library convolutions and products."""
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx

    with tracing(TracingContext(mode)), torch.no_grad(), _narrow_sizes(_largest(graph) * SPARE_ROOM < INT32):
        program: Any = compile_fx(graph, fakes)
    return program  # type: ignore[no-any-return]


def _largest(graph: fx.GraphModule) -> int:
    """Elements of the largest tensor, with as many clients as the examples have."""
    values = [n.meta["val"] for n in graph.graph.nodes if isinstance(n.meta.get("val"), Tensor)]
    return max(math.prod(int(s.node.hint) if isinstance(s, torch.SymInt) else s for s in v.shape) for v in values)


@contextmanager
def _narrow_sizes(fits: bool) -> Iterator[None]:
    """Let kernels take symbolic sizes as 32-bit numbers, where every index fits.

    Inductor passes them as 64-bit ones, in case that they are multiplied. Every element's channel is its index modulo
    such a size, and a GPU divides 64-bit numbers by a subroutine: half of the time of a normalisation went there.
    """
    from torch._inductor.codegen import triton_utils

    original = getattr(triton_utils, "signature_of", None)
    if not fits or original is None:
        yield
        return

    def narrow(arg: Any, *, size_dtype: str | None) -> str:
        kind: str = original(arg, size_dtype=size_dtype)
        return "i32" if kind == "i64" and str(getattr(arg, "name", "")).startswith("ks") else kind

    triton_utils.signature_of = narrow
    try:
        yield
    finally:
        triton_utils.signature_of = original


def compile_step(
    step: Step, examples: Sequence[Tensor], symbols: Sequence[int | None], lower: Lower = inductor
) -> Compiled:
    """Compile `step` for inputs like `examples`. symbols: for each input, which symbol its first axis is, None: fixed.

    The examples are not touched. Raises CannotCompile with the reason.
    """
    began = time.perf_counter()
    try:
        graph, fakes, mode, constants = _trace(step, examples, symbols)
        program = lower(graph, [*fakes, *(mode.from_tensor(c, static_shapes=True) for c in constants)], mode)
    except CannotCompile:
        raise
    except Exception as error:  # whatever torch's compiler does not know: the step still runs as it is
        lines = str(error).strip().splitlines() or [""]
        raise CannotCompile(f"{type(error).__name__}: {lines[0][:200]}") from error
    return Compiled(program, constants, time.perf_counter() - began)


def _trace(
    step: Step, examples: Sequence[Tensor], symbols: Sequence[int | None]
) -> tuple[fx.GraphModule, list[Tensor], Any, list[Tensor]]:
    """The step as a graph of torch operations, its inputs as fake tensors, and the constants it refers to."""
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    fakes, sizes = list[Tensor](), dict[int, Any]()
    for i, (t, symbol) in enumerate(zip(examples, symbols, strict=True)):
        axes = [DimDynamic.STATIC] * t.ndim
        if symbol is not None:
            axes[0] = DimDynamic.DYNAMIC
        context = StatelessSymbolicContext(dynamic_sizes=axes)  # type: ignore[var-annotated]
        fake = mode.from_tensor(t, symbolic_context=context, source=ConstantSource(f"input_{i}"))
        if symbol is not None and not bool(fake.shape[0] == sizes.setdefault(symbol, fake.shape[0])):
            raise CannotCompile(f"input {i} has {t.shape[0]} rows")
        fakes.append(fake)

    def flat(*inputs: Tensor) -> list[Tensor]:
        step(list(inputs))
        return []

    traced = make_fx(flat, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*fakes)
    fixed = [s for s, size in sizes.items() if not shapes.replace(size.node.expr).free_symbols]
    if fixed:
        raise CannotCompile("some layer needs the number of clients as a constant")
    compute_before_views(traced.graph, mode)
    constants = _lift_constants(traced)
    # A new module holds the graph alone, which torch's cache on disk can recognise.
    return fx.GraphModule({}, traced.graph), fakes, mode, constants


def _lift_constants(graph: fx.GraphModule) -> list[Tensor]:
    """Make every tensor that the graph holds an input of it, after the others; returns them."""
    found: dict[int, tuple[Tensor, fx.Node]] = {}
    last = [n for n in graph.graph.nodes if n.op == "placeholder"][-1]
    for node in list(graph.graph.nodes):
        if node.op != "get_attr":
            continue
        tensor = getattr(graph, str(node.target))
        if id(tensor) not in found:
            with graph.graph.inserting_after(last):
                last = graph.graph.placeholder(f"constant_{len(found)}")
            found[id(tensor)] = (tensor, last)
        node.replace_all_uses_with(found[id(tensor)][1])
        graph.graph.erase_node(node)
    return [tensor for tensor, _ in found.values()]
