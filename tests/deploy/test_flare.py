"""Three sites and a server as separate processes on loopback, over NVIDIA FLARE with mutual TLS."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pmsfl.deploy import kits
from pmsfl.engine.evaluate import Evaluator
from pmsfl.engine.reference import ReferenceExecutor
from pmsfl.engine.world import World
from pmsfl.recipe import Recipe
from pmsfl.tensorfile import read_tensors

from ..conftest import play

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nvflare") is None, reason="pip install 'pmsfl[deploy]'")

SITES = ("a", "b", "c")
CHANGES = ("clients=3", "cohort=3", "rounds=2", "epochs=1", "eval_every=2", "dtype=float64", "eval_masks=2")


def pmsfl(*words: object) -> list[str]:
    return [sys.executable, "-m", "pmsfl", *map(str, words)]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def keep(call: str) -> list[str]:
    """What `pmsfl deploy server` and `site` do, without the time it takes to load torch in each of them."""
    head = "from pathlib import Path; from pmsfl.deploy.operate import *; from pmsfl.deploy.host import SiteConfig"
    return [sys.executable, "-c", f"{head}; {call}"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """Kits, a running server and three running sites."""
    path, port = tmp_path_factory.mktemp("federation") / "kits", free_port()
    kits.init(path, SITES, "localhost", port)
    owners = World(Recipe.load("demo", CHANGES)).federation.owners
    with (path / "log.txt").open("w") as log:
        words = [keep(f"serve(Path('{path}/localhost'))")]
        words += [
            keep(f"site(Path('{path}/{s}'), SiteConfig('owner:{o}', None, True))")
            for s, o in zip(SITES, owners, strict=True)
        ]
        running = [subprocess.Popen(w, stdout=log, stderr=log) for w in words]
        listening(port)
        yield path, port
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


def listening(port: int, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"nobody listens on port {port}")


def handshake(port: int, kit: Path | None, authority: Path) -> None:
    """Come in with this certificate, or none; an error where the server turns it away."""
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname = False
    if kit is not None:
        context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    with socket.create_connection(("127.0.0.1", port), 10) as raw, context.wrap_socket(raw) as s:
        s.settimeout(2.0)
        with contextlib.suppress(TimeoutError):  # let in, and waited for
            if not s.recv(1):  # TLS 1.3 tells a client that it is refused when it first reads
                raise ConnectionError("closed")


def test_a_run_over_mutual_tls_is_the_reference_executors(federation: tuple[Path, int]) -> None:
    path, _ = federation
    changes = [word for change in CHANGES for word in ("-c", change)]
    words = pmsfl("deploy", "start", "demo", *changes, "--kit", path / "admin", "--run", "parity")
    done = subprocess.run(words, timeout=100, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    world = World(Recipe.load("demo", CHANGES))
    state, _, metrics = play(world, ReferenceExecutor, 2)
    run = path / "localhost" / "pmsfl" / "runs" / "parity"
    tensors, _ = read_tensors(run / "checkpoints" / "round-000002.safetensors")
    bottom = world.masked_size(world.cut)
    assert torch.equal(tensors["shared"][:bottom], state.shared[:bottom])  # the means of the same bits
    torch.testing.assert_close(tensors["shared"], state.shared, rtol=0, atol=1e-9)
    torch.testing.assert_close(tensors["plain"], state.plain, rtol=0, atol=1e-9)

    shown = subprocess.run(pmsfl("deploy", "status", path / "admin", "--json"), capture_output=True, text=True)
    found = json.loads(shown.stdout.splitlines()[-1])
    assert found["connected"] == list(SITES)
    assert found["run"]["round"] == 2
    assert found["run"]["accuracy"] == pytest.approx(Evaluator(world).evaluate(state).accuracy, abs=1e-9)
    assert found["run"]["loss"] == pytest.approx(metrics[-1].loss, rel=1e-9)
    assert found["run"]["timing"]["trip_p50_ms"] > 0


def test_without_a_certificate_of_this_authority_nobody_gets_in(federation: tuple[Path, int], tmp_path: Path) -> None:
    path, port = federation
    authority = path / "a" / "startup" / "rootCA.pem"
    handshake(port, path / "a", authority)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(port, None, authority)
    foreign = tmp_path / "foreign"
    kits.init(foreign, SITES, "localhost", port)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(port, foreign / "a", authority)


def test_a_site_cannot_take_anothers_name(federation: tuple[Path, int], tmp_path: Path) -> None:
    """b's certificate in a kit that says it is a stranger: the server does not register it."""
    path, _ = federation
    fake = tmp_path / "d"
    shutil.copytree(path / "b", fake, ignore=shutil.ignore_patterns("pmsfl", "*.fl"))
    config = fake / "startup" / "fed_client.json"
    config.write_text(config.read_text().replace('"fqsn": "b"', '"fqsn": "d"'))
    with (tmp_path / "log.txt").open("w") as log:
        words = keep(f"site(Path('{fake}'), SiteConfig('owner:x'))")
        process = subprocess.Popen(words, stdout=log, stderr=log)
        closed = said(tmp_path / "log.txt", "] is closed", 30.0)
        process.terminate()
        process.wait(30)
    server = (path / "localhost" / "log.txt").read_text()
    assert closed
    assert "client b registered" in server
    assert "client d registered" not in server


def said(file: Path, what: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if what in file.read_text():
            return True
        time.sleep(0.2)
    return False
