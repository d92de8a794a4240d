"""A run on disk: killed, interrupted, out of space or damaged, it goes on as if nothing had happened."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pmsfl
from pmsfl.engine.server import Server
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe
from pmsfl.run import Interrupted, Listener, Progress
from pmsfl.rundir import RunDirectory
from pmsfl.tensorfile import read_tensors, write_tensors

from .conftest import assert_same_tensors, play, tiny_federation, tiny_recipe

ROUNDS = 7
SMALL: dict[str, Any] = {"dtype": "float32", "rounds": ROUNDS, "eval_every": 3, "checkpoint_every": 2}


def go(out: Path, **options: Any) -> pmsfl.Run:
    """A small run; `resume=True` goes on with it."""
    federation = options.pop("federation", None) or tiny_federation()
    recipe = tiny_recipe(**SMALL | {k: options.pop(k) for k in list(options) if k in Recipe.__dataclass_fields__})
    return pmsfl.run(recipe, out=out, federation=federation, **options)


def lines(run: pmsfl.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in run.metrics]


def outcome(run: pmsfl.Run) -> dict[str, Any]:
    assert run.result is not None
    return {k: v for k, v in run.result.items() if k not in ("seconds", "seconds_training", "run")}


def assert_same_run(a: pmsfl.Run, b: pmsfl.Run) -> None:
    """Everything but times and places is equal, to the last bit."""
    assert lines(a) == lines(b)
    assert outcome(a) == outcome(b)
    for (_, x), (_, y) in zip(a.directory.checkpoints()[-1:], b.directory.checkpoints()[-1:], strict=True):
        assert x.name == y.name
        assert_same_tensors(read_tensors(x)[0], read_tensors(y)[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pmsfl.Run:
    """The run that nothing ever happened to."""
    return go(tmp_path_factory.mktemp("whole") / "run")


def stop(monkeypatch: pytest.MonkeyPatch, round_: int, error: BaseException, step: int = 1) -> None:
    """Raise `error` in the middle of a round, counted from 0."""
    original = Server.step

    def failing(self: Server, *args: Any) -> Any:
        if self.plan.round == round_ and int(self.clock.step) == step:
            raise error
        return original(self, *args)

    monkeypatch.setattr(Server, "step", failing)


# --- killed and interrupted, for real

CHILD = """
import sys, time, torch, pmsfl
from pmsfl.engine.server import Server
torch.set_num_threads(1)
original = Server.step
def slow(self, *args):
    if self.plan.round == 5 and int(self.clock.step) == 1:
        print("in the middle of round 6", flush=True)
        time.sleep(60)
    return original(self, *args)
Server.step = slow
pmsfl.run("demo", sys.argv[2:], out=sys.argv[1], device="cpu")
"""
DEMO = ["clients=4", "cohort=2", "epochs=1", "eval_masks=1", "width=4", "rounds=8", "eval_every=3"]
DEMO += ["checkpoint_every=4", "agreement=0.2"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> pmsfl.Run:
    return pmsfl.run("demo", DEMO, out=tmp_path_factory.mktemp("demo") / "run", device="cpu")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_stopped_by_a_signal_resumes_bit_for_bit(how: signal.Signals, tmp_path: Path, demo: pmsfl.Run) -> None:
    out = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(out), *DEMO],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "in the middle of round 6\n"
        child.send_signal(how)
        _, errors = child.communicate(timeout=60)
    assert child.returncode != 0
    left = RunDirectory(out)
    assert [m["round"] for m in left.metrics()] == [1, 2, 3, 4, 5]
    assert not (out / "result.json").exists()
    if how == signal.SIGINT:
        assert f"pmsfl run --resume --out {out}" in errors
        assert [r for r, _ in left.checkpoints()] == [4, 5]
    else:
        assert [r for r, _ in left.checkpoints()] == [4]
    notes: list[str] = []
    resumed = pmsfl.run(out=out, resume=True, device="cpu", listener=Listener(on_note=notes.append))
    assert not [n for n in notes if "last bits" in n]
    assert lines(resumed) == lines(demo)
    newest = [r.directory.checkpoints()[-1][1] for r in (resumed, demo)]
    assert_same_tensors(*(read_tensors(file)[0] for file in newest))
    if how == signal.SIGKILL:
        assert outcome(resumed) == outcome(demo)


def test_the_demo_begins_as_it_always_did() -> None:
    """Golden losses of the first two rounds, double precision, one thread; knobs that may be tuned are pinned.

    Weights are normal ones: signs of one size make sums that are equal but for rounding, where a maximum falls
    this way on one CPU and that way on another.
    """
    pinned = ["frozen=kaiming", "damping=0.35", "lr_score=0.1", "lr_client=0.1", "lr_server=0.1", "rounds=40"]
    world = World(Recipe.load("demo", pinned, dtype="float64", weight_decay=5e-4, momentum=0.9, clip=0.01))
    _, _, metrics = play(world, rounds=2)
    assert [m.loss for m in metrics] == pytest.approx([2.1501685215050195, 1.8173427931417347], rel=1e-6)
    assert [m.mask_entropy for m in metrics] == pytest.approx([0.8340619223225414, 0.8218117434699723], rel=1e-6)


# --- stopped in every other way


def test_an_interrupt_in_the_middle_of_a_round_costs_that_round_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: pmsfl.Run
) -> None:
    with monkeypatch.context() as patch:
        stop(patch, 4, KeyboardInterrupt())
        with pytest.raises(Interrupted, match=r"after round 4 of 7; go on with: pmsfl run --resume --out"):
            go(tmp_path / "run")
    assert_same_run(pmsfl.run(out=tmp_path / "run", resume=True, federation=tiny_federation()), whole)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has 1 GiB. Process 7 has the rest. More"
        ),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"),
        MemoryError("Unable to allocate 2 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_run_that_memory_is_too_small_for_keeps_its_rounds_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: pmsfl.Run, error: Exception
) -> None:
    with monkeypatch.context() as patch:
        stop(patch, 5, error)  # the newest checkpoint is of round 4: round 5 is saved now
        with pytest.raises(
            PmsflError, match=r"out of memory on cpu .* after round 5 of 7; go on with: .*--resume"
        ) as e:
            go(tmp_path / "run")
    assert "smaller batch" in str(e.value)
    assert "Process 7" not in str(e.value)
    assert_same_run(pmsfl.run(out=tmp_path / "run", resume=True, federation=tiny_federation()), whole)


def test_an_error_that_is_not_of_memory_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop(monkeypatch, 4, RuntimeError("expected scalar type Float"))
    with pytest.raises(RuntimeError, match="expected scalar type"):
        go(tmp_path / "run")


def test_a_round_of_several_merges_is_told_saved_and_resumed_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges: dict[str, Any] = {"merges": 2, "client_state": "stay", "epochs": 2, "rounds": 4, "personal_ratio": 0.5}
    undisturbed = go(tmp_path / "whole", **merges)
    seen = undisturbed.metrics
    assert [line["round"] for line in seen] == [1, 2, 3, 4]
    assert [line["round"] for line in seen if "evaluation" in line] == [3, 4]
    once = go(tmp_path / "once", **merges | {"merges": 1})
    assert [line["samples"] for line in seen] == [line["samples"] for line in once.metrics]
    bytes_, plain = (line["bytes"] for line in (seen[0], once.metrics[0]))
    assert bytes_["norms.up"] == 2 * plain["norms.up"]
    assert bytes_["smashed.up"] == plain["smashed.up"]
    with monkeypatch.context() as patch:
        stop(patch, 5, KeyboardInterrupt())  # in the second turn of round 3
        with pytest.raises(Interrupted, match=r"after round 2 of 4"):
            go(tmp_path / "run", **merges)
    assert_same_run(pmsfl.run(out=tmp_path / "run", resume=True, federation=tiny_federation()), undisturbed)


def test_bytes_of_an_interrupted_round_are_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: pmsfl.Run
) -> None:
    with monkeypatch.context() as patch:
        stop(patch, 5, KeyboardInterrupt())  # the newest checkpoint is of round 4: round 5 is saved now
        with pytest.raises(Interrupted):
            go(tmp_path / "run")
    resumed = pmsfl.run(out=tmp_path / "run", resume=True, federation=tiny_federation())
    assert outcome(resumed)["bytes"] == outcome(whole)["bytes"]


def test_an_interrupt_while_metrics_are_written_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: pmsfl.Run
) -> None:
    original = RunDirectory.append_metrics

    def interrupted(self: RunDirectory, line: dict[str, Any]) -> None:
        if line["round"] == 5:
            raise KeyboardInterrupt
        original(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "append_metrics", interrupted)
        with pytest.raises(Interrupted):
            go(tmp_path / "run")
    assert_same_run(pmsfl.run(out=tmp_path / "run", resume=True, federation=tiny_federation()), whole)


def test_an_interrupt_while_somebody_listens_keeps_the_bytes_of_the_round(tmp_path: Path, whole: pmsfl.Run) -> None:
    def interrupted(progress: Progress) -> None:
        if progress.round == 5:  # no checkpoint is due: the round is saved because of the interrupt
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="after round 5"):
        go(tmp_path / "run", listener=Listener(on_round=interrupted))
    assert_same_run(pmsfl.run(out=tmp_path / "run", resume=True, federation=tiny_federation()), whole)


def test_a_loss_that_is_no_number_keeps_the_rounds_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Server.step

    def poisoned(self: Server, *args: Any) -> Any:
        gradients = original(self, *args)
        if self.plan.round == 4:
            self.rows.loss_sum *= float("nan")
        return gradients

    monkeypatch.setattr(Server, "step", poisoned)
    with pytest.raises(PmsflError, match=r"round 5: the loss is nan; start a new run with a lower lr_server"):
        go(tmp_path / "run")
    assert [r for r, _ in RunDirectory(tmp_path / "run").checkpoints()] == [2, 4]


def full(call: int, original: Callable[[int], None]) -> Callable[[int], None]:
    """An os.fsync that finds the disk full from some call on."""
    calls = iter(range(10**6))

    def fsync(descriptor: int) -> None:
        if next(calls) >= call:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(descriptor)

    return fsync


@pytest.mark.parametrize("call", [0, 2, 5, 6])  # of round 1's metrics, of the first and the second checkpoint
def test_a_full_disk_says_what_is_safe_and_costs_no_checkpoint(
    call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: pmsfl.Run
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full(call, os.fsync))
        with pytest.raises(PmsflError, match="No space left on device") as caught:
            go(out)
    message = str(caught.value)
    assert f"pmsfl run --resume --out {out}" in message
    kept = RunDirectory(out).checkpoints()
    assert (f"the checkpoint of round {kept[-1][0]} is intact" if kept else "no checkpoint was written yet") in message
    for _, file in kept:
        assert "shared" in read_tensors(file)[0]
    assert not [f for f in (out / "checkpoints").iterdir() if f.suffix == ".tmp"]
    assert_same_run(pmsfl.run(out=out, resume=True, federation=tiny_federation()), whole)


def half_done(out: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run that stopped in round 7, with checkpoints of rounds 2, 4 and 6."""
    with monkeypatch.context() as patch:
        stop(patch, 6, RuntimeError("power cut"))
        with pytest.raises(RuntimeError, match="power cut"):
            go(out)
    directory = RunDirectory(out)
    assert [r for r, _ in directory.checkpoints()] == [2, 4, 6]
    return directory


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut short": lambda f: f.write_bytes(f.read_bytes()[:-5]),
    "empty": lambda f: f.write_bytes(b""),
    "garbage": lambda f: f.write_bytes(os.urandom(500)),
    "of another program": lambda f: write_tensors(f, {"x": torch.ones(2)}, {}),
    "without its tensors": lambda f: write_tensors(f, {"round": torch.tensor(6)}, read_tensors(f)[1]),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: pmsfl.Run
) -> None:
    directory = half_done(tmp_path / "run", monkeypatch)
    DAMAGE[what](directory.checkpoints()[-1][1])
    assert_same_run(pmsfl.run(out=directory.path, resume=True, federation=tiny_federation()), whole)


def test_when_every_checkpoint_is_damaged_nothing_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = half_done(tmp_path / "run", monkeypatch)
    for _, file in directory.checkpoints():
        file.write_bytes(b"gone")
    before = directory.metrics()
    with pytest.raises(PmsflError, match="no checkpoint can be read"):
        pmsfl.run(out=directory.path, resume=True, federation=tiny_federation())
    assert directory.metrics() == before


def test_metrics_cut_off_by_a_crash_are_made_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: pmsfl.Run
) -> None:
    directory = half_done(tmp_path / "run", monkeypatch)
    with (directory.path / "metrics.jsonl").open("a") as f:
        f.write('{"round": 7, "loss": 0.')
    assert [m["round"] for m in directory.metrics()] == [1, 2, 3, 4, 5, 6]
    assert_same_run(pmsfl.run(out=directory.path, resume=True, federation=tiny_federation()), whole)


# --- directories


def test_a_finished_run_can_be_opened_and_resumed_without_change(tmp_path: Path) -> None:
    run = go(tmp_path / "run", rounds=2)
    again = pmsfl.run(out=run.path, resume=True, federation=tiny_federation())
    assert_same_run(again, run)
    opened = pmsfl.Run.open(run.path)
    assert opened.result == again.result
    assert opened.recipe == run.recipe
    assert run.state().round == 2


def test_only_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    run = go(tmp_path / "run", checkpoint_every=1, keep_checkpoints=2, rounds=5)
    assert [r for r, _ in run.directory.checkpoints()] == [4, 5]


def test_an_existing_run_or_a_full_directory_is_refused(tmp_path: Path) -> None:
    go(tmp_path / "run", rounds=1)
    with pytest.raises(PmsflError, match="holds a run already; continue it with --resume"):
        go(tmp_path / "run", rounds=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(PmsflError, match="not an empty directory"):
        go(tmp_path / "other", rounds=1)
    (tmp_path / "empty").mkdir()
    assert go(tmp_path / "empty", rounds=1).result is not None


def test_a_bad_recipe_leaves_no_directory_behind(tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match="cohort = 9"):
        go(tmp_path / "run", cohort=9)
    with pytest.raises(PmsflError, match="depths"):
        go(tmp_path / "other", depths="7")
    assert not (tmp_path / "other").exists()


def test_runs_without_a_name_find_free_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tiny_recipe(rounds=1)
    paths = [pmsfl.run(recipe, federation=tiny_federation()).path for _ in range(2)]
    assert [str(p) for p in paths] == ["runs/tiny-pm-sfl-s0", "runs/tiny-pm-sfl-s0-2"]


# --- resuming


def test_changed_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = half_done(tmp_path / "run", monkeypatch)
    before = directory.metrics()
    with pytest.raises(PmsflError, match="fingerprint"):
        pmsfl.run(out=directory.path, resume=True, federation=tiny_federation(seed=1))
    assert directory.metrics() == before


def test_other_versions_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = half_done(tmp_path / "run", monkeypatch)
    file = directory.path / "versions.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"torch": "1.0", "threads": 64}))
    notes: list[str] = []
    listener = Listener(on_note=notes.append)
    pmsfl.run(out=directory.path, resume=True, federation=tiny_federation(), listener=listener)
    told = [n for n in notes if "last bits" in n]
    assert [n.split(" ", 1)[0] for n in told] == ["torch", "threads"]


def test_a_resumed_run_keeps_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = half_done(tmp_path / "run", monkeypatch)
    for options in ({"overrides": ["rounds=9"]}, {"rounds": 9}):
        with pytest.raises(PmsflError, match="keeps its recipe"):
            pmsfl.run(out=directory.path, resume=True, **options)


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PmsflError, match=r"has no recipe\.toml"):
        pmsfl.run(out=tmp_path, resume=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PmsflError, match="no unfinished run of demo"):
        pmsfl.run("demo", resume=True)


def unfinished(method: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unfinished run under runs/ in the working directory."""
    with monkeypatch.context() as patch:
        stop(patch, 1, KeyboardInterrupt(), step=0)
        with pytest.raises(Interrupted):
            pmsfl.run(tiny_recipe(method=method, rounds=2, checkpoint_every=1), federation=tiny_federation())
    return next(p for p in Path("runs").iterdir() if p.name.startswith(f"tiny-{method}-s0"))


def test_the_newest_unfinished_run_of_a_recipe_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = unfinished("pm-sfl", monkeypatch), unfinished("splitfed", monkeypatch)
    os.utime(first / "metrics.jsonl", (time.time() - 60,) * 2)
    assert pmsfl.run(tiny_recipe(), resume=True, federation=tiny_federation()).path == second
    assert pmsfl.run(tiny_recipe(), resume=True, federation=tiny_federation()).path == first


def test_a_method_whose_name_begins_alike_is_not_resumed_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unfinished("splitfed-pm", monkeypatch)
    with pytest.raises(PmsflError, match="no unfinished run"):
        pmsfl.run(tiny_recipe(), resume=True, federation=tiny_federation(), method="splitfed")


def test_a_run_killed_before_its_first_line_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = unfinished("pm-sfl", monkeypatch)
    early = path.with_name("tiny-pm-sfl-s0-2")
    early.mkdir()
    (early / "recipe.toml").write_text((path / "recipe.toml").read_text())  # killed before metrics.jsonl
    assert pmsfl.run(tiny_recipe(), resume=True, federation=tiny_federation()).result is not None


# --- calling


def test_overrides_and_changes_apply_to_a_recipe_object_too(tmp_path: Path) -> None:
    run = pmsfl.run(
        tiny_recipe(), ["rounds=1", "lr_score=0.3"], out=tmp_path / "run", federation=tiny_federation(), seed=4
    )
    assert (run.recipe.rounds, run.recipe.lr_score, run.recipe.seed) == (1, 0.3, 4)


def test_both_executors_give_the_same_result(tmp_path: Path) -> None:
    runs = [
        go(tmp_path / name, dtype="float64", rounds=3, eval_every=1, executor=name) for name in ("cohort", "reference")
    ]
    a, b = (outcome(r) for r in runs)
    assert (a.pop("executor"), b.pop("executor")) == ("cohort", "reference")
    for key in ("mask_entropy", "disagree"):
        assert a.pop(key) == pytest.approx(b.pop(key))
    assert a == b


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "refrence"}, "did you mean 'reference'"),
        ({"device": "tpu"}, "take auto, cpu or cuda"),
        ({"method": "pmsfl"}, "did you mean 'pm-sfl'"),
    ],
)
def test_a_bad_call_is_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match=message):
        go(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_listener_hears_the_start_every_round_and_notes(tmp_path: Path) -> None:
    started: list[tuple[str, int]] = []
    heard: list[Progress] = []
    notes: list[str] = []
    listener = Listener(
        on_start=lambda world, state, directory: started.append((world.federation.name, state.round)),
        on_round=heard.append,
        on_note=notes.append,
    )
    run = go(tmp_path / "run", rounds=4, listener=listener)
    assert started == [("tiny", 0)]
    assert [p.round for p in heard] == [1, 2, 3, 4]
    assert [p.evaluation is not None for p in heard] == [False, False, True, True]
    assert heard[-1].bytes_total == outcome(run)["bytes"]["total"]
    assert any("fewer samples than the batch" in n for n in notes)


def test_masks_that_lost_their_randomness_are_warned_about_once(tmp_path: Path) -> None:
    notes: list[str] = []
    go(tmp_path / "run", lr_score=20.0, aggregate="sampled", listener=Listener(on_note=notes.append))
    assert len([n for n in notes if "mask entropy fell" in n]) == 1


def strict(text: str) -> Any:
    """JSON as every other reader wants it: no NaN, no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("tests", [4, 0])
def test_metrics_and_result_are_plain_json_even_without_test_data(tests: int, tmp_path: Path) -> None:
    run = go(tmp_path / "run", rounds=2, eval_every=1, federation=tiny_federation(tests=tests))
    for line in (run.path / "metrics.jsonl").read_text().splitlines():
        strict(line)
    result = strict((run.path / "result.json").read_text())
    assert (result["accuracy"] is None) == (tests == 0)


def test_metrics_add_up_to_the_result(whole: pmsfl.Run) -> None:
    assert [m["round"] for m in whole.metrics] == list(range(1, ROUNDS + 1))
    assert sum(m["bytes"]["total"] for m in whole.metrics) == outcome(whole)["bytes"]["total"]
    evaluated = [m for m in whole.metrics if "evaluation" in m]
    assert [m["round"] for m in evaluated] == [3, 6, 7]
    assert outcome(whole)["accuracy"] == evaluated[-1]["evaluation"]["accuracy"]
    assert outcome(whole)["accuracy_best"] == max(m["evaluation"]["accuracy"] for m in evaluated)
    assert State.from_tensors(whole.world, read_tensors(whole.directory.checkpoints()[-1][1])[0]).round == ROUNDS


def test_a_run_from_python_ends_with_its_page(tmp_path: Path) -> None:
    run = pmsfl.run(tiny_recipe(rounds=1), out=tmp_path / "run", federation=tiny_federation())
    assert "<svg" in (run.path / "report.html").read_text()


def test_a_state_that_is_not_finite_is_never_accepted(tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match=r"round 1: .* start a new run with a lower lr_server"):
        pmsfl.run(tiny_recipe(rounds=1, lr_server=1e300), out=tmp_path / "run", federation=tiny_federation())
    assert pmsfl.Run.open(tmp_path / "run").directory.checkpoints() == []


def test_only_one_process_trains_in_a_directory(tmp_path: Path) -> None:
    run = pmsfl.run(tiny_recipe(rounds=1), out=tmp_path / "run", federation=tiny_federation())
    (run.path / "result.json").unlink()
    with run.directory.locked(), pytest.raises(PmsflError, match="another process is training"):
        pmsfl.run(resume=True, out=run.path, federation=tiny_federation())


def test_resuming_a_finished_run_leaves_its_result_alone(tmp_path: Path) -> None:
    run = pmsfl.run(tiny_recipe(rounds=1), out=tmp_path / "run", federation=tiny_federation())
    before = (run.path / "result.json").read_text()
    again = pmsfl.run(resume=True, out=run.path, executor="reference", federation=tiny_federation())
    assert again.result == run.result
    assert (run.path / "result.json").read_text() == before


def test_resume_refuses_another_method(tmp_path: Path) -> None:
    run = pmsfl.run(tiny_recipe(rounds=1), out=tmp_path / "run", federation=tiny_federation())
    with pytest.raises(PmsflError, match="is a run of pm-sfl, not of splitfed"):
        pmsfl.run(resume=True, out=run.path, method="splitfed", federation=tiny_federation())


def test_too_many_clients_are_refused_before_a_directory_is_made(tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match="cohort = 9: only 5 clients"):
        pmsfl.run(tiny_recipe(cohort=9), out=tmp_path / "run", federation=tiny_federation())
    assert not (tmp_path / "run").exists()
