"""A training through three kills: python benchmarks/faults.py FOLDER [--record DIR]

A server and three sites on loopback with mutual TLS, by the commands of docs/deploy.md. The demo is trained undisturbed
for a few seeds, then once more while, with SIGKILL,

1. the job process of site a,
2. all processes of site b,
3. all processes of the server

are killed. What a human would do is done: site b and the server are started again with the same command, and `start`
is called again should it have given up meanwhile. Everything else mends itself. FOLDER must be new; nothing outside it
is touched. Takes about a quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pmsfl.bench.record import hardware
from pmsfl.engine.world import federation_of
from pmsfl.recipe import Recipe
from pmsfl.rundir import versions

SITES = ("a", "b", "c")
CHANGES = ["clients=3", "cohort=3", "statistics=client", "eval_masks=2"]
CALM = "calm-s"
SAID: list[str] = []


def say(line: str) -> None:
    """Print a line, and keep it for the record's log."""
    SAID.append(line)
    print(line, flush=True)


class Federation:
    """The processes of one deployment and what was done to them."""

    def __init__(self, folder: Path, port: int, changes: list[str], job_rounds: int, secure_sums: bool) -> None:
        self.folder, self.changes, self.job_rounds = folder.resolve(), changes, job_rounds
        self.more = ["--secure-sums"] * secure_sums
        self.rounds = Recipe.load("demo", changes).rounds
        owners = federation_of(Recipe.load("demo", changes)).owners
        self.data = {s: f"owner:{o}" for s, o in zip(SITES, owners, strict=True)}
        self.began, self.events, self.running = (
            time.monotonic(),
            list[dict[str, Any]](),
            list[subprocess.Popen[bytes]](),
        )
        self._do("init", self.folder, "--sites", ",".join(SITES), "--server", "localhost", "--port", port)
        self.log = (self.folder / "log").open("wb")
        self.host("localhost")
        for site in SITES:
            self.host(site)

    def _words(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "pmsfl", "deploy", *map(str, words)]

    def _do(self, *words: object) -> str:
        return subprocess.run(self._words(*words), check=True, capture_output=True, text=True).stdout

    def host(self, name: str) -> None:
        """What runs on one host: `deploy server` or `deploy site`, until it is killed."""
        kit = self.folder / name
        words = ["site", kit, "--data", self.data[name], *self.more] if name in self.data else ["server", kit]
        self.running.append(subprocess.Popen(self._words(*words), stdout=self.log, stderr=self.log))

    def start(self, run: str, seed: int) -> subprocess.Popen[bytes]:
        """`deploy start`, which submits job after job."""
        changes = [word for change in (*self.changes, f"seed={seed}") for word in ("-c", change)]
        words = ["start", "demo", *changes, "--kit", self.folder / "admin", "--run", run]
        words += ["--job-rounds", self.job_rounds, "--step-seconds", 10, *self.more]
        process = subprocess.Popen(self._words(*words), stdout=self.log, stderr=self.log)
        self.running.append(process)
        return process

    def status(self, run: str) -> dict[str, Any]:
        """What the server last wrote down of a run; it replaces that file as a whole."""
        file = self.folder / "localhost" / "pmsfl" / "runs" / run / "status.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"round": 0}
        return found

    def amid(self, run: str, rounds: int) -> bool:
        """Are so many rounds done, and is the next one of the same job under way?"""
        before = self.status(run)
        if before["round"] < rounds or before["phase"] == "over":
            return False
        time.sleep(0.3)
        after = self.status(run)
        return bool(after["round"] == before["round"] and after["phase"] != "over")

    def kill(self, name: str, only_job: bool = False) -> int:
        """SIGKILL to all processes of a host, or to its job's alone; how many there were."""
        kit, found = str(self.folder / name), []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            job = any(w.endswith((".worker_process", ".runner_process")) for w in words)
            if kit in words and (job or not only_job):
                found.append(int(entry.parent.name))
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return len(found)

    def note(self, run: str, what: str) -> None:
        """Remember an event."""
        event = {"seconds": round(time.monotonic() - self.began, 1), "round": self.status(run)["round"], "what": what}
        self.events.append(event)
        say(f"{event['seconds']:7.1f} s  round {event['round']:3d}  {what}")

    def wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Until something is so."""
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() > until:
                raise SystemExit(f"{what}: not within {seconds:g} s; see {self.folder}/log")
            time.sleep(0.2)

    def close(self) -> None:
        """End what this script started."""
        for name in ("localhost", *SITES):
            self.kill(name)
        for process in self.running:
            process.kill()
            process.wait()
        self.log.close()


def calm(f: Federation, seed: int) -> dict[str, Any]:
    """An undisturbed training."""
    run, began = f"{CALM}{seed}", time.monotonic()
    started = f.start(run, seed)
    f.wait(lambda: started.poll() is not None, 1800, f"run {run}")
    return outcome(f, run, time.monotonic() - began)


def stormy(f: Federation, seed: int) -> dict[str, Any]:
    """The same training through the three kills."""
    run, began = "stormy", time.monotonic()
    started = f.start(run, seed)
    f.wait(lambda: f.amid(run, f.rounds // 6), 600, "the first kill")
    f.note(run, f"SIGKILL to the job process of site a ({f.kill('a', only_job=True)} process)")
    f.wait(lambda: f.amid(run, f.rounds // 3), 600, "the second kill")
    f.note(run, f"SIGKILL to all of site b ({f.kill('b')} processes)")
    time.sleep(10.0)
    f.host("b")
    f.note(run, "by hand: `pmsfl deploy site b` again, after 10 s")
    f.wait(lambda: f.amid(run, 7 * f.rounds // 12), 600, "the third kill")
    f.note(run, f"SIGKILL to all of the server ({f.kill('localhost')} processes)")
    time.sleep(10.0)
    f.host("localhost")
    f.note(run, "by hand: `pmsfl deploy server` again, after 10 s")
    f.wait(lambda: started.poll() is not None, 900, "the end")
    if f.status(run)["round"] < f.rounds:
        f.note(run, "`start` had given up; by hand: called again")
        again = f.start(run, seed)
        f.wait(lambda: again.poll() is not None, 900, "the end")
    f.note(run, "the run is complete")
    return outcome(f, run, time.monotonic() - began)


def outcome(f: Federation, run: str, seconds: float) -> dict[str, Any]:
    """How a run ended."""
    found = f.status(run)
    lines = (f.folder / "localhost" / "pmsfl" / "runs" / run / "metrics.jsonl").read_text().splitlines()
    sites = [json.loads(line)["sites"] for line in lines]
    out = {"run": run, "rounds": found["round"], "accuracy": found["accuracy"], "loss": found["loss"]}
    out |= {"seconds": round(seconds, 1), "timing": found["timing"]}
    out["rounds_missed"] = {s: sum(line[s] != "in" for line in sites) for s in SITES}
    say(f"{run}: {out['rounds']} rounds, accuracy {out['accuracy']:.1f} %, loss {out['loss']:.3f}, {seconds:.0f} s")
    return out


def compared(storm: dict[str, Any], quiet: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """A metric of the disturbed run beside the spread of the undisturbed ones: mean ± 2 deviations, and their range."""
    values = [q[key] for q in quiet]
    mean, deviation = statistics.mean(values), statistics.stdev(values)
    return {
        "disturbed": storm[key],
        "undisturbed": values,
        "mean": mean,
        "deviation": deviation,
        "within_range": min(values) <= storm[key] <= max(values),
        "within_two_deviations": abs(storm[key] - mean) <= 2 * deviation,
    }


def main() -> None:
    """Run everything and write the record."""
    parser = argparse.ArgumentParser(description="A training through three kills.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--job-rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3, help="of undisturbed trainings: a spread needs two or more")
    parser.add_argument("--port", type=int, default=8002)
    parser.add_argument("--secure-sums", action="store_true")
    parser.add_argument("--record", type=Path)
    a = parser.parse_args()
    if a.seeds < 2:
        parser.error("--seeds: a spread needs two or more")
    changes = [*CHANGES, f"rounds={a.rounds}", f"eval_every={a.rounds}"]
    f = Federation(a.folder, a.port, changes, a.job_rounds, a.secure_sums)
    try:
        quiet = [calm(f, seed) for seed in range(a.seeds)]
        storm = stormy(f, 0)
    finally:
        f.close()
    cpu = torch.device("cpu")
    result = {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", "benchmarks/faults.py", *sys.argv[1:]]),
        "hardware": hardware(cpu),
        "versions": versions(cpu, "digits"),
        "what": "a server and three sites on loopback, mutual TLS; a job process, a site and the server are killed",
        "recipe": {"name": "demo", "changes": f.changes, "job_rounds": a.job_rounds},
        "events": f.events,
        "accuracy": compared(storm, quiet, "accuracy"),
        "loss": compared(storm, quiet, "loss"),
        "disturbed": storm,
        "undisturbed": quiet,
        # a batch's call as its site saw it, in the last job of the run
        "timing": {k: statistics.median(q["timing"][k] for q in quiet) for k in quiet[0]["timing"]},
    }
    for key in ("accuracy", "loss", "timing"):
        say(f"{key}: {json.dumps(result[key])}")
    if a.record:
        a.record.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1, ensure_ascii=False)
        (a.record / "record.json").write_text(text + "\n", encoding="utf-8")
        (a.record / "log").write_text("\n".join([f"$ {result['command']}", *SAID]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
