"""Benchmarks for people: a short table, and one sentence on what it says."""

from __future__ import annotations

from typing import Any, TextIO

from pmsfl.report.console import human, human_bytes, human_seconds, number, say, table


def show_step(result: dict[str, Any], stream: TextIO) -> None:
    """Ours, both loops and the floor."""
    title = (
        f"a step of {result['clients']} clients × {result['batch']} samples: {result['recipe']}, {result['model']}, "
        f"cut after block {result['depths']}, {result['device']}"
    )
    rows = [
        ("pmsfl", *_times(result, "ms_step"), ""),
        ("eager loop, client by client", *_times(result, "ms_baseline"), number(result["ratio"])),
        ("eager loop, one top step", *_times(result, "ms_baseline_union"), number(result["ratio_union"])),
        ("floor of this machine", number(result["floor_ms"]), "", "", number(result["fraction_of_floor"])),
    ]
    table(title, ("", "ms", "p10", "p90", "of pmsfl"), rows, stream)
    if "profile" in result:
        _show_profile(result["profile"], stream)
    faster = result["ratio"] >= 1.0
    times = result["ratio"] if faster else 1.0 / result["ratio"]
    say(
        f"A step takes {number(result['ms_step'])} ms at {human(result['tflops'] * 1e12, 'FLOP/s')}: "
        f"{number(times, 1)} times {'faster' if faster else 'slower'} than a loop over the clients; "
        f"it was warm after {human_seconds(result['seconds_warmup']['ours'])}.",
        stream,
    )


def _show_profile(profile: dict[str, Any], stream: TextIO) -> None:
    whole = profile["ms_step_profiled"]
    kinds = [
        (name, number(k["ms"], 3), f"{100.0 * k['ms'] / whole:.0f} %", number(k["calls"], 0))
        for name, k in profile["kinds"].items()
    ]
    table("where the time goes, under the profiler", ("kind", "ms", "share", "calls"), kinds, stream)
    kernels = [(k["name"][:72], number(k["ms"], 3), number(k["calls"], 0)) for k in profile["kernels"]]
    table("largest kernels", ("kernel", "ms", "calls"), kernels, stream)


def show_rounds(result: dict[str, Any], stream: TextIO) -> None:
    """Two methods at two kinds of depths."""
    title = (
        f"a round of {result['cohort']} of {result['clients']} clients: {result['recipe']}, {result['model']}, "
        f"{result['device']}"
    )
    rows = [
        (v["method"], v["depths"], *_times(v, "ms_round"), number(v["client_steps"], 0), number(v["ms_client_step"], 3))
        for v in result["variants"]
    ]
    table(title, ("method", "depths", "ms", "p10", "p90", "client steps", "ms per client step"), rows, stream)
    say(
        f"A round of PM-SFL takes {number(result['pm_over_splitfed'])} times as long as one of SplitFed; "
        f"with mixed depths it takes {number(result['mixed_over_equal'])} times as long as with equal ones.",
        stream,
    )


def show_scale(result: dict[str, Any], stream: TextIO) -> None:
    """Cohorts of growing size."""
    rows = [
        (c["clients"], *_times(c, "ms_step"), number(c["ms_per_client"], 3), human_bytes(c["memory_peak"]))
        for c in result["cohorts"]
    ]
    title = f"a step as the cohort grows: {result['recipe']}, {result['model']}, {result['device']}"
    table(title, ("clients", "ms", "p10", "p90", "ms per client", "memory"), rows, stream)
    first, last = result["cohorts"][0], result["cohorts"][-1]
    say(
        f"{last['clients'] / first['clients']:g} times as many clients take "
        f"{number(last['ms_step'] / first['ms_step'], 1)} times as long.",
        stream,
    )


def _times(result: dict[str, Any], name: str) -> tuple[str, str, str]:
    return number(result[name]), number(result[f"{name}_p10"]), number(result[f"{name}_p90"])
