"""Sweeps: which cells there are, that they can be stopped and taken up again, and what is said at the end."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pmsfl import commands
from pmsfl.cli import ABOUT, COMMANDS
from pmsfl.errors import PmsflError
from pmsfl.recipe import RecipeError
from pmsfl.report.interval import Interval, interval, t_probability, t_quantile
from pmsfl.report.listing import find_runs
from pmsfl.sweep import rows
from pmsfl.sweep_plan import cell_name, plan, split_values

from .conftest import interrupted_in_round

KEYS = ["rounds=2", "epochs=1", "clients=4", "cohort=2", "eval_masks=1"]
TINY = [word for key in KEYS for word in ("-c", key)]


def pmsfl(*words: object) -> int:
    return commands.main(COMMANDS, [str(w) for w in words], ABOUT)


def table(out: Path) -> list[dict[str, str]]:
    with (out / "results.csv").open(encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f))


# --- confidence intervals


@pytest.mark.parametrize(
    ("freedom", "expected"),  # two-sided 95 %, from printed tables
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (5, 2.57058), (9, 2.26216), (30, 2.04227), (100, 1.98397)],
)
def test_quantiles_of_student(freedom: int, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, rel=2e-6)


def test_other_confidences() -> None:
    assert t_quantile(4, 0.99) == pytest.approx(4.60409, rel=2e-6)
    assert t_quantile(1, 0.5) == pytest.approx(1.0)  # Cauchy's quartile
    assert t_probability(0.0, 3) == 0.0
    with pytest.raises(ValueError, match="at least 1"):
        t_probability(1.0, 0)


def test_interval() -> None:
    # mean 71, deviation 1, error 1 / sqrt(3); 4.30265 / 1.73205 = 2.48414
    found = interval([70.0, 71.0, 72.0])
    assert found is not None
    assert (found.mean, found.n) == (71.0, 3)
    assert found.half == pytest.approx(2.48414, rel=1e-5)
    assert interval([5.0]) == Interval(5.0, None, 1)
    assert interval([]) is None


# --- planning


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr_score=0.1", ("lr_score", ["0.1"])),
        ("lr_score=0.1, 0.2", ("lr_score", ["0.1", "0.2"])),
        ("masks.clip=0.1,0.2", ("clip", ["0.1", "0.2"])),
        ("depths=1,2;2", ("depths", ["1,2", "2"])),
        ("depths=1,2,2,1;", ("depths", ["1,2,2,1"])),
        ("pretrained=", ("pretrained", [""])),
    ],
)
def test_values(text: str, expected: tuple[str, list[str]]) -> None:
    assert split_values(text) == expected


def test_the_product_in_order(tmp_path: Path) -> None:
    found = plan("demo", "pm-sfl,splitfed", [*KEYS, "clip=0.01,0.1"], 2, tmp_path / "out")
    assert found.swept == ("clip",)
    assert [c.name for c in found.cells] == [
        f"{method}-clip={clip}-s{seed}"
        for method in ("pm-sfl", "splitfed")
        for clip in ("0.01", "0.1")
        for seed in (0, 1)
    ]
    assert all(c.recipe.rounds == 2 and c.path == tmp_path / "out" / c.name for c in found.cells)
    assert not (tmp_path / "out").exists()


def test_names_are_file_names() -> None:
    assert cell_name("pm-sfl", {"depths": "1:1", "model": "a/b.c:f g"}, 3) == "pm-sfl-depths=1_1-model=a_b.c_f_g-s3"


def test_default_place_and_explicit_seeds() -> None:
    found = plan("demo", None, [*KEYS, "seed=5,7"], None, None)
    assert found.out == Path("sweeps/demo")
    assert [c.name for c in found.cells] == ["pm-sfl-s5", "pm-sfl-s7"]


@pytest.mark.parametrize(
    ("methods", "changes", "seeds", "hint"),
    [
        (None, ["clp=0.1,0.2"], None, "did you mean 'clip'"),
        (None, ["clip=0.1,0.9"], None, "between"),
        (None, ["clip=0.1,much"], None, "must be a number"),
        (None, ["clip"], None, "key=value"),
        (None, ["clip=0.1,0.10"], None, "twice"),
        (None, ["clip=0.1", "clip=0.2"], None, "given twice"),
        (None, ["seed=1,2"], 3, "given twice"),
        (None, [], 0, "at least 1"),
        ("pm-sfl,pmsfl", [], None, "pm-sfl"),
        ("pm-sfl", ["method=splitfed"], None, "given twice"),
        (None, ["depths=2,9"], None, "depths=9"),
    ],
)
def test_mistakes_show_before_anything_runs(
    tmp_path: Path, methods: str | None, changes: list[str], seeds: int | None, hint: str
) -> None:
    with pytest.raises(PmsflError, match=hint):
        plan("demo", methods, [*KEYS, *changes], seeds, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_is_taken(tmp_path: Path) -> None:
    assert pmsfl("sweep", *TINY, "--out", tmp_path) == 0
    with pytest.raises(PmsflError, match="another recipe"):
        plan("demo", None, [*KEYS[1:], "rounds=3"], None, tmp_path)
    with pytest.raises(RecipeError):
        plan("demo", None, ["nonsense"], None, tmp_path)


# --- training


def test_a_sweep_and_again_with_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert pmsfl("sweep", "demo", "-m", "pm-sfl,splitfed", *TINY, "--seeds", 2, "--out", out, "--device", "cpu") == 0
    text = capsys.readouterr().out
    assert "cell 4 of 4  splitfed-s1  accuracy" in text
    assert "95 % confidence interval" in text
    found = table(out)
    assert [(r["method"], r["seed"], r["rounds"]) for r in found] == [
        ("pm-sfl", "0", "2"),
        ("pm-sfl", "1", "2"),
        ("splitfed", "0", "2"),
        ("splitfed", "1", "2"),
    ]
    assert list(found[0])[:5] == ["recipe", "method", "preset", "seed", "rounds"]
    result = json.loads((out / "pm-sfl-s1" / "result.json").read_text(encoding="utf-8"))
    assert float(found[1]["accuracy"]) == result["accuracy"]
    assert int(found[1]["bytes_total"]) == result["bytes"]["total"]
    assert found[2]["mask_entropy"] == ""
    assert (out / "pm-sfl-s0" / "report.html").exists()

    # One value becomes two: the runs that are there are known by their recipe, not by their name.
    before = (out / "pm-sfl-s0" / "result.json").stat().st_mtime_ns
    words = ["-m", "pm-sfl", *TINY, "-c", "damping=0.35,0.7", "--seeds", 1, "--out", out, "--json"]
    assert pmsfl("sweep", "demo", *words) == 0
    told = capsys.readouterr()
    assert "there already" in told.err
    content = json.loads(told.out)
    assert len(told.out.splitlines()) == 1
    assert [Path(c["run"]).name for c in content["cells"]] == ["pm-sfl-s0", "pm-sfl-damping=0.7-s0"]
    assert [g["damping"] for g in content["groups"]] == [0.35, 0.7]
    assert content["groups"][0]["figures"]["accuracy"] == {
        "mean": content["cells"][0]["accuracy"],
        "half": None,
        "n": 1,
    }
    assert list(table(out)[0])[5] == "damping"
    assert (out / "pm-sfl-s0" / "result.json").stat().st_mtime_ns == before
    assert pmsfl("compare", out) == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cell_that_fails_leaves_the_others_alone(
    jobs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "demo", *TINY, "-c", "lr_server=1e30,0.1", "--out", tmp_path, "--jobs", jobs, "--device", "cpu"]
    assert pmsfl(*words) == 1
    told = capsys.readouterr()
    assert "1 of 2 cells failed" in told.err
    assert "the loss is" in told.err
    assert [r["lr_server"] for r in table(tmp_path)] == ["0.1"]
    failed = json.loads((tmp_path / "failures.json").read_text(encoding="utf-8"))
    assert list(failed) == ["pm-sfl-lr_server=1e30-s0"]
    assert (tmp_path / "pm-sfl-lr_server=0.1-s0" / "report.html").exists()


def test_interrupt_then_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "demo", *TINY, "--seeds", 2, "--out", tmp_path]
    with interrupted_in_round(4, monkeypatch):  # that is in the second cell
        assert pmsfl(*words) == 130
    told = capsys.readouterr().err
    assert "1 of 2 cells are finished" in told
    assert "Go on with the same command" in told
    assert len(table(tmp_path)) == 1
    [left] = [c for c in plan("demo", None, KEYS, 2, tmp_path).cells if c.result is None]
    assert left.begun
    told_before = (left.path / "metrics.jsonl").read_text(encoding="utf-8")
    assert pmsfl(*words) == 0
    told_after = (left.path / "metrics.jsonl").read_text(encoding="utf-8")
    assert told_after.startswith(told_before)  # the first round was not played again: it has its time on it
    assert len(told_after.splitlines()) == 2
    assert len(rows(plan("demo", None, KEYS, 2, tmp_path))) == 2


def endless(out: Path) -> list[str]:
    """Two cells without an end, side by side."""
    keys = [word for key in ("rounds=100000", *KEYS[1:]) for word in ("-c", key)]
    return [sys.executable, "-m", "pmsfl", "sweep", "demo", *keys, "--seeds", "2", "--jobs", "2", "--out", str(out)]


@contextmanager
def running(command: list[str], **pipes: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that is gone afterwards: where a test fails, one without an end would keep it waiting for ever."""
    with subprocess.Popen(command, text=True, **pipes) as program:
        try:
            yield program
        finally:
            program.kill()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < deadline, "two minutes were not enough"
        time.sleep(0.1)


def both_have_begun(out: Path) -> bool:
    """Two lines: while the second is being written, the first round counts for sure."""
    return sum(f.read_text().count("\n") > 1 for f in out.glob("*/metrics.jsonl")) == 2


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_every_process(how: signal.Signals, tmp_path: Path) -> None:
    command = endless(tmp_path)
    if how == signal.SIGTERM:  # as in a script's background, where nobody hears Ctrl-C
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        wait_for(lambda: both_have_begun(tmp_path))
        program.send_signal(how)
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 130, errors
    assert "0 of 2 cells are finished" in errors
    runs = find_runs([tmp_path])
    assert len(runs) == 2
    assert all(list((path / "checkpoints").iterdir()) for path in runs)


def test_a_sweep_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    def training() -> int:
        listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return sum(" run " in line and str(tmp_path) in line for line in listed.splitlines())

    with running(endless(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        wait_for(lambda: both_have_begun(tmp_path))
        assert training() == 2
        program.kill()
    wait_for(lambda: training() == 0)
    runs = find_runs([tmp_path])
    assert len(runs) == 2
    assert all(list((path / "checkpoints").iterdir()) for path in runs)  # they stopped as if told to
