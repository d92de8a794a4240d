"""What FLARE may do on a host: run the two classes of this package, and nothing that comes with a job.

As provisioned, an administrator may send code and look into files of every site. Here a job can only name what is
installed; on a site no shell command is allowed, so that nobody reads its data from afar.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CLASSES = (
    "pmsfl.deploy.flare.FlareServer",
    "pmsfl.deploy.flare.FlareSite",
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    # FLARE puts these two into every job by itself; sites send no logs all the same, see `allow_log_streaming`.
    "nvflare.app_common.logging.job_log_streamer.JobLogStreamer",
    "nvflare.app_common.logging.job_log_receiver.JobLogReceiver",
)
_RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")


def restrict(kit: Path, kind: str) -> None:
    """Write the host's own policy into a kit of this kind (server or client), over the provisioned defaults."""
    local = kit / "local"
    resources: dict[str, Any] = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = list(CLASSES)
    if kind == "server":
        _keep_at_home(resources, kit.resolve() / "store")
    else:
        resources["allow_log_streaming"] = False
    _write(local / "resources.json", resources)
    rights = dict.fromkeys(_RIGHTS, "any") | {"byoc": "none", "shell_commands": "any" if kind == "server" else "none"}
    _write(local / "authorization.json", {"format_version": "1.0", "permissions": {"project_admin": rights}})


def _keep_at_home(resources: dict[str, Any], store: Path) -> None:
    """Jobs and snapshots below the kit: FLARE's default is one folder for all servers of a machine."""
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(store / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(store / "jobs")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
