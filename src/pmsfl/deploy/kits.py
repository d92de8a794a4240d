"""Signed startup kits for the server, the named sites and the administrator, made by `nvflare provision`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pmsfl.deploy import secret
from pmsfl.errors import PmsflError

ADMIN = "admin@pmsfl.org"
PLAN = "deployment.json"  # beside the kits: who is in, where the server is
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_TAKEN = ("admin", "work", "server", "all", "client")  # folders beside the kits, and whom FLARE's commands mean

# tcp, because only that driver refuses a certificate whose name is not the site's.
_PROJECT = """\
api_version: 3
name: pmsfl
description: split federated learning with probabilistic masks
participants:
  - name: {server}
    type: server
    org: pmsfl
    fed_learn_port: {port}
    admin_port: {port}
{sites}
  - name: {admin}
    type: admin
    org: pmsfl
    role: project_admin
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args:
      template_file:
        - master_template.yml
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args:
      config_folder: config
      scheme: tcp
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


def need_flare() -> None:
    """PmsflError where NVIDIA FLARE is not installed."""
    try:
        import nvflare  # noqa: F401
    except ImportError:
        raise PmsflError("NVIDIA FLARE is not installed: pip install 'pmsfl[deploy]'") from None


def init(folder: Path, sites: Sequence[str], server: str, port: int) -> dict[str, Path]:
    """Make a kit for everybody; their folders by name. Every kit goes to its host, and only there."""
    need_flare()
    _check(sites, server, port)
    if (folder / PLAN).exists():
        raise PmsflError(f"{folder} holds a deployment already; choose another directory")
    folder.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(f"  - name: {s}\n    type: client\n    org: pmsfl" for s in sites)
    project = folder / "project.yml"
    project.write_text(_PROJECT.format(server=server, port=port, sites=lines, admin=ADMIN), encoding="utf-8")
    command = [sys.executable, "-m", "nvflare.lighter.provision", "-p", str(project), "-w", str(folder / "work")]
    done = subprocess.run(command, capture_output=True, text=True)
    made = sorted((folder / "work" / "pmsfl").glob("prod_*"))
    if done.returncode or not made:
        raise PmsflError(f"nvflare provision failed: {(done.stderr or done.stdout).strip()[-800:]}")
    kits = {}
    for name in (server, *sites, ADMIN):
        kits[name] = (made[-1] / name).rename(folder / _folder(name))
    common = os.urandom(secret.SIZE)
    for site in sites:
        secret.write(kits[site] / secret.COHORT, common)
    plan = {"server": server, "port": port, "sites": list(sites), "admin": ADMIN}
    for where in (folder, kits[server], kits[ADMIN]):
        (where / PLAN).write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    (folder / "work").chmod(0o700)  # the private key of the certificate authority is in there
    return kits


def read_plan(kit: Path) -> dict[str, Any]:
    """What `init` wrote into the server's and the administrator's kit."""
    file = kit / PLAN
    if not file.is_file():
        raise PmsflError(f"{kit} is no kit of the server or the administrator (it has no {PLAN})")
    plan: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return plan


def check_kit(kit: Path, kind: str) -> None:
    """PmsflError where a folder is not a kit of this kind: server or client."""
    wanted = {"server": "fed_server.json", "client": "fed_client.json"}[kind]
    if not (kit / "startup" / wanted).is_file():
        raise PmsflError(f"{kit} is no {kind} kit (it has no startup/{wanted}); `pmsfl deploy init` makes them")
    others = (f"startup/{kind}.crt", f"startup/{kind}.key", "startup/rootCA.pem", "local/resources.json.default")
    if lacking := [name for name in others if not (kit / name).is_file()]:
        raise PmsflError(f"{kit} lacks {', '.join(lacking)}; copy the whole kit again")


def _folder(name: str) -> str:
    return "admin" if name == ADMIN else name


def _check(sites: Sequence[str], server: str, port: int) -> None:
    if not sites or len(set(sites)) != len(sites):
        raise PmsflError(f"--sites {','.join(sites)}: give every site a name of its own: a,b,c")
    for site in sites:
        if not _NAME.fullmatch(site):
            raise PmsflError(f"--sites: {site!r} cannot be a site's name; use letters, digits, '-' and '_'")
        if site.lower() in (*_TAKEN, server.lower()):
            raise PmsflError(f"--sites: {site!r} is the name of something else here; choose another one")
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?", server):
        raise PmsflError(f"--server {server!r}: a host name or an address is expected")
    if not 1 <= port <= 65535:
        raise PmsflError(f"--port {port}: must be between 1 and 65535")
