"""The commands' own checks, with and without NVIDIA FLARE."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pmsfl.deploy import operate
from pmsfl.deploy.command import run_name
from pmsfl.deploy.host import CONFIG, SiteConfig
from pmsfl.deploy.operate import alone
from pmsfl.deploy.rules import check_deployable
from pmsfl.errors import PmsflError

from ..conftest import Pmsfl
from .helpers import recipe


def test_without_flare_every_command_says_what_to_install(
    pmsfl: Pmsfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "nvflare", None)
    for words in (
        ("init", tmp_path / "new", "--sites", "a,b"),
        ("server", tmp_path),
        ("site", tmp_path, "--data", "x.npz"),
        ("stop", tmp_path),
    ):
        assert pmsfl("deploy", *words) == 1
        assert "pip install 'pmsfl[deploy]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--sites", "a,a"), "a name of its own"),
        (("--sites", "a/b"), "cannot be a site's name"),
        (("--sites", "a,server"), "'server' is the name of something else"),
        (("--sites", "Host,b", "--server", "host"), "'Host' is the name of something else"),
        (("--sites", "a", "--port", "0"), "between 1 and 65535"),
        (("--sites", "a", "--server", "a b"), "a host name or an address"),
    ],
)
def test_bad_names_are_refused_before_anything_is_written(
    words: tuple[str, ...], match: str, pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nvflare")
    assert pmsfl("deploy", "init", tmp_path / "new", *words) == 1
    assert match in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def kit_of(folder: Path, kind: str, port: int = 0) -> Path:
    """A kit with the files that are looked for, and nothing in them."""
    for name in (f"fed_{kind}.json", f"{kind}.crt", f"{kind}.key", "rootCA.pem"):
        (folder / "startup").mkdir(parents=True, exist_ok=True)
        (folder / "startup" / name).write_text("{}")
    (folder / "local").mkdir()
    (folder / "local" / "resources.json.default").write_text("{}")
    (folder / "deployment.json").write_text(json.dumps({"port": port}))
    return folder


def test_a_kit_that_lacks_a_file_is_not_started(
    pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nvflare")
    (kit_of(tmp_path / "a", "client") / "startup" / "client.key").unlink()
    assert pmsfl("deploy", "site", tmp_path / "a", "--data", "owner:x") == 1
    assert "lacks startup/client.key" in capsys.readouterr().err


def test_a_site_is_not_started_twice_nor_with_a_cut_before_its_first_block(
    pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nvflare")
    kit = kit_of(tmp_path / "a", "client")
    assert pmsfl("deploy", "site", kit, "--data", "owner:x", "--depth", "0") == 1
    assert "--depth 0" in capsys.readouterr().err
    with alone(kit, "taken"):
        assert pmsfl("deploy", "site", kit, "--data", "owner:x") == 1
    assert "is running already; stop it first" in capsys.readouterr().err
    assert not (kit / CONFIG).exists()  # the one that runs keeps its configuration


def test_a_lock_outlives_its_process_as_long_as_a_child_has_it(tmp_path: Path) -> None:
    with alone(tmp_path, "taken") as lock:
        child = subprocess.Popen(["sleep", "30"], pass_fds=(lock,))
    try:
        with pytest.raises(PmsflError, match="taken"), alone(tmp_path, "taken"):
            pass
    finally:
        child.kill()
        child.wait()
    with alone(tmp_path, "taken"):
        pass


def test_a_port_that_is_taken_is_named(pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("nvflare")
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        assert pmsfl("deploy", "server", kit_of(tmp_path / "s", "server", port)) == 1
    assert f"port {port}: Address already in use" in capsys.readouterr().err


def test_a_run_is_not_started_twice_at_once(pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deployment.json").write_text('{"sites": ["a", "b"]}')
    (tmp_path / "jobs" / ".one").mkdir(parents=True)
    with alone(tmp_path / "jobs" / ".one", "taken"):
        assert pmsfl("deploy", "start", "demo", "--kit", tmp_path, "--run", "one") == 1
    assert "of run one is under way from here already" in capsys.readouterr().err


class OneJob:
    """An administrator's session in which every job ends as it is told."""

    def __init__(self, after: dict[str, object]) -> None:
        self.after, self.submitted = after, 0

    def submit_job(self, folder: str) -> str:
        self.submitted += 1
        return f"job-{self.submitted}"

    def wait_for_job(self, job: str, timeout: float, poll_interval: float) -> dict[str, str]:
        return {"status": "FINISHED:EXECUTION_EXCEPTION"}


def test_a_start_that_gets_nowhere_says_why(
    pmsfl: Pmsfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deployment.json").write_text('{"sites": ["a", "b"]}')
    one = OneJob({"round": 0, "rounds": 9, "accuracy": None, "failed": "a (1, 20, 20) and b (1, 28, 28)"})
    monkeypatch.setattr(operate, "session", lambda kit: contextlib.nullcontext(one))
    monkeypatch.setattr(operate, "status_of", lambda s, run: s.after)
    monkeypatch.setattr(operate, "connected", lambda s: ["a", "b"])
    monkeypatch.setattr(operate, "job_folder", lambda *args: tmp_path)
    monkeypatch.setattr(operate, "PAUSE", 0.0)
    assert pmsfl("deploy", "start", "demo", "--kit", tmp_path) == 1
    said = capsys.readouterr().err
    assert "attempt 1 of 5: a (1, 20, 20) and b (1, 28, 28)" in said
    assert "no accuracy yet; FINISHED:EXECUTION_EXCEPTION" in said
    assert one.submitted == operate.ATTEMPTS


class Vanishing:
    """A session whose server goes down when it is told to."""

    def list_jobs(self) -> list[dict[str, str]]:
        return []

    def shutdown(self, target: str) -> None:
        raise TimeoutError(f"{target}: server did not stop within 30.0 seconds; last error: Communication Error")


def test_a_server_that_is_gone_at_once_has_been_stopped(
    pmsfl: Pmsfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operate, "session", lambda kit: contextlib.nullcontext(Vanishing()))
    assert pmsfl("deploy", "stop", tmp_path, "--all") == 0
    assert "server and sites are shutting down" in capsys.readouterr().out


def test_a_status_is_read_on_the_servers_host(pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("deploy", "status", tmp_path) == 1
    assert "no kit of the server or the administrator" in capsys.readouterr().err
    (tmp_path / "deployment.json").write_text("{}")
    assert pmsfl("deploy", "status", tmp_path) == 1
    assert "knows of no run yet" in capsys.readouterr().err
    run = tmp_path / "pmsfl" / "runs" / "one"
    run.mkdir(parents=True)
    times = {"trip_p50_ms": 40.0, "trip_p99_ms": 90.0, "engine_p50_ms": 20.0, "engine_share": 0.5, "steps": 9}
    site = {"here": True, "train": 5, "depth": 2, "mask_score": 0.4, "refused": ["SMASHED is not finite"]}
    status = {
        "run": "one",
        "phase": "round",
        "round": 3,
        "rounds": 9,
        "loss": 1.0,
        "accuracy": 71.5,
        "mask_entropy": 0.8,
        "bytes": {"total": 12345},
        "timing": times,
        "failed": None,
        "sites": {"a": site},
    }
    (run / "status.json").write_text(json.dumps(status))
    assert pmsfl("deploy", "status", tmp_path) == 0
    shown = capsys.readouterr().out
    for part in ("3 of 9 (round)", "71.5 %", "40.0 / 90.0 ms", "50 %", "SMASHED is not finite"):
        assert part in shown
    assert pmsfl("deploy", "status", tmp_path, "--run", "one", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["run"] == status


def test_a_sites_configuration_is_its_owners(tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match="is missing"):
        SiteConfig.read(tmp_path)
    config = SiteConfig("/data/x.npz", 2)
    config.write(tmp_path)
    assert SiteConfig.read(tmp_path) == config
    assert (tmp_path / CONFIG).stat().st_mode & 0o777 == 0o600
    (tmp_path / CONFIG).write_text('{"nonsense": 1}')
    with pytest.raises(PmsflError, match="is damaged"):
        SiteConfig.read(tmp_path)


def test_what_a_deployment_cannot_do_is_refused_at_the_start() -> None:
    for changes, match in (
        ({"labels": "u-shape"}, "not deployed yet"),
        ({"pretrained": "x"}, "file of one host"),
    ):
        with pytest.raises(PmsflError, match=match):
            check_deployable(recipe(**changes))
    assert run_name(recipe(), None) == "tiny-pm-sfl-s0"
    with pytest.raises(PmsflError, match="letters, digits"):
        run_name(recipe(), "../x")
