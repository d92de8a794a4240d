"""Running a deployment: the processes on each host, and the jobs that the administrator submits."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pmsfl.deploy import policy
from pmsfl.deploy.host import SiteConfig, site_name
from pmsfl.deploy.kits import ADMIN, check_kit, need_flare, read_plan
from pmsfl.deploy.settings import Patience
from pmsfl.errors import PmsflError
from pmsfl.locks import only_one
from pmsfl.recipe import Recipe

Note = Callable[[str], None]
ATTEMPTS, PAUSE = 5, 5.0  # jobs that make no round, and the seconds between them
CRASHES, WITHIN = 5, 300.0  # so many crashes in so many seconds end it


def serve(kit: Path) -> int:
    """Run the server's process until it is told to stop; its exit code."""
    need_flare()
    check_kit(kit, "server")
    with alone(kit, f"a server of {kit} is running already") as lock:
        check_port(read_plan(kit)["port"])
        policy.restrict(kit, "server")
        return _keep_running(kit, lock, "server.server_train", "fed_server.json")


def site(kit: Path, config: SiteConfig) -> int:
    """Run a site's process until it is told to stop; its exit code."""
    need_flare()
    check_kit(kit, "client")
    if config.depth is not None and config.depth < 1:
        raise PmsflError(f"--depth {config.depth}: a cut is after block 1 or later")
    if not config.data.startswith("owner:") and not Path(config.data).is_file():
        raise PmsflError(f"--data {config.data!r}: no such file; give an .npz, or owner:NAME of the recipe's data")
    resolved = config.data if config.data.startswith("owner:") else str(Path(config.data).resolve())
    with alone(kit, f"a site of {kit} is running already") as lock:
        policy.restrict(kit, "client")
        dataclasses.replace(config, data=resolved).write(kit)
        return _keep_running(kit, lock, "client.client_train", "fed_client.json", f"uid={site_name(kit)}")


def alone(folder: Path, otherwise: str) -> contextlib.AbstractContextManager[int]:
    """Nobody else works in this folder meanwhile; gives the lock's file number, for processes that are to hold it."""
    return only_one(folder / ".pmsfl.lock", f"{otherwise}; stop it first")


def check_port(port: int) -> None:
    """PmsflError where something listens on the server's port: FLARE would wait for it without a word."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("", port))
        except OSError as e:
            raise PmsflError(f"port {port}: {e.strerror}; free it, or make kits with another --port") from None


def _keep_running(kit: Path, lock: int, module: str, config: str, *more: str) -> int:
    """One process, started again where it crashes."""
    command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}", "-m", str(kit.resolve()), "-s", config]
    command += ["--set", "secure_train=true", *more, "org=pmsfl", "config_folder=config"]
    (kit / "transfer").mkdir(exist_ok=True)
    crashes: list[float] = []
    while True:
        for name in ("shutdown.fl", "restart.fl", "pid.fl"):
            (kit / name).unlink(missing_ok=True)
        child = subprocess.Popen(command, cwd=kit, pass_fds=(lock,))
        with _passing_on(child):
            code = child.wait()
        if code == 0 or (kit / "shutdown.fl").exists() or code in (-signal.SIGTERM, -signal.SIGINT):
            return 0
        crashes = [t for t in crashes if time.monotonic() - t < WITHIN] + [time.monotonic()]
        if len(crashes) >= CRASHES:
            return code
        time.sleep(2.0)


@contextlib.contextmanager
def _passing_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whoever stops this process stops the child."""

    def stop(number: int, frame: Any) -> None:
        child.terminate()

    before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


# --- the administrator


@contextlib.contextmanager
def session(kit: Path) -> Iterator[Any]:
    """A secured session with the server."""
    need_flare()
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    read_plan(kit)
    try:
        with _silence():
            found = new_secure_session(ADMIN, str(kit.resolve()), timeout=20.0)
    except Exception as e:
        raise PmsflError(f"no session with the server: {e}; is `pmsfl deploy server` running?") from None
    try:
        yield found
    finally:
        found.close()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """FLARE tells of every attempt to connect; what came of it, the caller says."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def start(
    kit: Path, recipe: Recipe, run: str, job_rounds: int, patience: Patience, note: Note, secure_sums: bool = False
) -> None:
    """Submit jobs of a few rounds until the recipe's last round is done. Call it again to go on."""
    from pmsfl.deploy.rules import check_deployable  # here, so that keeping a process alive does not need torch
    from pmsfl.deploy.sums import check_summable

    check_deployable(recipe)
    sites = read_plan(kit)["sites"]
    if secure_sums:
        check_summable(recipe, len(sites), patience.min_clients)
    (folder := kit / "jobs" / f".{run}").mkdir(parents=True, exist_ok=True)
    with alone(folder, f"`pmsfl deploy start` of run {run} is under way from here already"):
        try:
            _submit_until_done(kit, recipe, run, job_rounds, patience, note, secure_sums)
        except KeyboardInterrupt:
            note(f"a job that was submitted goes on by itself; `pmsfl deploy stop {kit}` ends it")
            raise


def _submit_until_done(
    kit: Path, recipe: Recipe, run: str, job_rounds: int, patience: Patience, note: Note, secure_sums: bool
) -> None:
    failures, reached = 0, -1
    while True:
        try:
            done = _one_job(kit, recipe, run, job_rounds, patience, note, secure_sums)
        except Exception as e:  # the server may be restarting: what it has on disk is safe
            done, said = reached, str(e)
        else:
            said = "no round was made"
        if done >= recipe.turns:
            note(f"run {run} is complete: {done} rounds")
            return
        failures = 0 if done > reached else failures + 1
        reached = max(done, reached)
        if failures:
            note(f"attempt {failures} of {ATTEMPTS}: {said}")
            if failures >= ATTEMPTS:
                raise PmsflError(f"{ATTEMPTS} attempts in a row made no round; see the server's log. {said}")
            time.sleep(PAUSE)


def _one_job(
    kit: Path, recipe: Recipe, run: str, job_rounds: int, patience: Patience, note: Note, secure_sums: bool
) -> int:
    """Submit a job and wait for its end; how many rounds the run then has."""
    with session(kit) as s:
        before = status_of(s, run)
        reached = 0 if before is None else before["round"]
        if reached >= recipe.turns:
            return int(reached)
        sites = read_plan(kit)["sites"]
        _wait_for_sites(s, sites, min(patience.min_clients, len(sites)), patience.enrol_seconds)
        folder = job_folder(kit, recipe, run, sites, job_rounds, patience, secure_sums)
        job = s.submit_job(str(folder))
        note(f"job {job}: rounds {reached + 1} to {min(reached + job_rounds, recipe.turns)}")
        outcome = s.wait_for_job(job, timeout=0.0, poll_interval=1.0)
        after = status_of(s, run)
    if after is None:
        raise PmsflError(f"the job ended as {outcome.get('status')} before it began")
    accuracy = "no accuracy yet" if after["accuracy"] is None else f"accuracy {after['accuracy']:.1f} %"
    note(f"round {after['round']} of {after['rounds']}, {accuracy}; {outcome.get('status')}")
    if after["failed"] and after["round"] <= reached:
        raise PmsflError(str(after["failed"]))
    return int(after["round"])


def _wait_for_sites(s: Any, sites: list[str], least: int, seconds: float) -> None:
    """Until all named sites are connected, or enough of them and the time is up; PmsflError where they are not."""
    until = time.monotonic() + seconds
    while (there := connected(s)) != sorted(sites):
        if time.monotonic() >= until:
            if len(there) >= least:
                return
            raise PmsflError(f"{len(there)} of {len(sites)} sites are connected, at least {least} are needed")
        time.sleep(1.0)


def connected(s: Any) -> list[str]:
    """The sites that the server hears from."""
    return sorted(c.name for c in s.get_system_info().client_info)


def job_folder(
    kit: Path, recipe: Recipe, run: str, sites: list[str], rounds: int, patience: Patience, secure_sums: bool = False
) -> Path:
    """A job as FLARE takes it, written below the kit; its folder."""
    need_flare()
    from nvflare.collab import CollabRecipe

    from pmsfl.deploy.flare import FlareServer, FlareSite

    server = FlareServer(run, recipe.to_toml(), sites, rounds, patience.as_dict(), secure_sums)
    least = min(patience.min_clients, len(sites))
    job = CollabRecipe(job_name=f"pmsfl-{run}", server=server, client=FlareSite(), min_clients=least)
    target = kit.resolve() / "jobs"
    job.export(str(target))
    # FLARE would send sources along, and every host would run those: let each run what is installed on it.
    for sources in (target / f"pmsfl-{run}").glob("*/custom"):
        shutil.rmtree(sources)
    return target / f"pmsfl-{run}"


def status_of(s: Any, run: str) -> dict[str, Any] | None:
    """What the server last wrote down of a run; None before its first job."""
    import json

    try:
        text = s.cat_target("server", file=f"pmsfl/runs/{run}/status.json")
        found: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except Exception:
        return None
    return found


def status(kit: Path, run: str) -> dict[str, Any]:
    """The state of a run and of the engine, asked over the administrator's session."""
    with session(kit) as s:
        found = status_of(s, run)
        return {"run": found, "connected": connected(s), "jobs": _jobs(s, run)}


def _jobs(s: Any, run: str) -> list[dict[str, Any]]:
    jobs = s.list_jobs()
    mine = [j for j in jobs if j.get("job_name", j.get("name")) == f"pmsfl-{run}"]
    return [{"id": j.get("job_id"), "status": j.get("status")} for j in mine[-5:]]


def stop(kit: Path, everything: bool) -> list[str]:
    """Abort the jobs that run; with `everything`, shut the server and all sites down. What was done, in lines."""
    lines = []
    with session(kit) as s:
        for job in s.list_jobs():
            if str(job.get("status", "")).startswith(("RUNNING", "SUBMITTED", "DISPATCHED", "APPROVED")):
                try:
                    s.abort_job(job["job_id"])
                    lines.append(f"job {job['job_id']} aborted")
                except Exception:  # its process is gone: a server that was killed still lists it as running
                    lines.append(f"job {job['job_id']} was not running any more")
        if everything:
            # FLARE waits for an answer of the server that it has just shut down, and may fail for want of one.
            with _silence(), contextlib.suppress(TimeoutError):
                s.shutdown("all")
            lines.append("server and sites are shutting down")
    return lines or ["nothing was running"]
