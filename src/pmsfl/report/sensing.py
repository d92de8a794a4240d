"""`pmsfl simulate` and `pmsfl prepare`: from raw signals to a set that a recipe trains on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pmsfl.data.recordings import check_sensor, prepare
from pmsfl.data.sensors import SensorSet
from pmsfl.data.simulate import Plan, simulate
from pmsfl.errors import PmsflError
from pmsfl.report.console import human_bytes, human_seconds, note, pairs, say


def make_up(plan: Plan, folder: Path, keep_raw: bool, jobs: int, picture: Path | None) -> None:
    """Simulate a set into folder/SENSOR.npz, and say what it is."""
    plan.check()
    out = folder / f"{plan.sensor}.npz"
    _refuse_to_overwrite(out)
    raw = folder / f"{plan.sensor}-raw" if keep_raw else None
    if raw is not None and raw.exists():
        raise PmsflError(f"{raw} is there already; remove it, or take another folder")
    _finish(simulate(plan, raw, jobs, _countdown("takes")), out, picture)
    if raw is not None:
        say(f"raw signals: {raw}    put them through the chain again: pmsfl prepare {plan.sensor} {raw} OUT.npz")


def from_recordings(sensor: str, root: Path, out: Path, picture: Path | None) -> None:
    """Put a folder of recordings through the chain into one .npz, and say what it is."""
    check_sensor(sensor)
    _refuse_to_overwrite(out)
    _finish(prepare(root, sensor, _countdown("takes")), out, picture)


def _refuse_to_overwrite(out: Path) -> None:
    if out.exists():
        raise PmsflError(f"{out} is there already; remove it, or write elsewhere")


def _finish(made: SensorSet, out: Path, picture: Path | None) -> None:
    made.save(out)
    tests = int(made.is_test().sum())
    items = [
        ("file", f"{out} ({human_bytes(out.stat().st_size)})"),
        ("simulated", made.simulated or "no, recordings"),
        ("segments", f"{len(made.y)} of 3 s, maps of {'x'.join(map(str, made.x.shape[1:]))} (time x Doppler)"),
        ("subjects", len(set(made.owner.tolist()))),
        ("activities", ", ".join(made.class_names)),
        ("split", f"{len(made.y) - tests} to train, {tests} to test, by take"),
    ]
    pairs(made.sensor, items)
    if picture is not None:
        _draw([made], picture)
    say(f"train on it with: pmsfl run {made.sensor} -c data_path={out}")


def _draw(sets: list[SensorSet], picture: Path) -> None:
    try:
        from pmsfl.report.maps_picture import draw_maps
    except ImportError:
        return note("no picture: matplotlib is not installed (pip install matplotlib)")
    try:
        draw_maps(sets, picture)
    except ValueError as e:  # a format matplotlib does not write
        raise PmsflError(f"{picture}: {e}; take a name that ends in .png") from None
    return say(f"picture: {picture}")


def _countdown(what: str) -> Callable[[int, int], None]:
    """Something that says every tenth of the way how far it is."""
    begun = time.monotonic()

    def tick(done: int, all_: int) -> None:
        if done * 10 // all_ > (done - 1) * 10 // all_ and done < all_:
            left = (time.monotonic() - begun) * (all_ - done) / done
            say(f"{done} of {all_} {what}, {human_seconds(left)} left", sys.stderr)

    return tick
