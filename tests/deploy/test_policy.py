"""What a host lets FLARE do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pmsfl.deploy import kits
from pmsfl.deploy.host import SiteConfig
from pmsfl.deploy.operate import job_folder
from pmsfl.deploy.policy import CLASSES, restrict
from pmsfl.deploy.secret import COHORT, load
from pmsfl.deploy.secure import Authority, Identity, SecureError
from pmsfl.deploy.settings import Patience

from .helpers import recipe

pytest.importorskip("nvflare")

from pmsfl.deploy.flare import FlareServer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return kits.init(tmp_path_factory.mktemp("kits") / "new", ("a", "b"), "localhost", 8002)


def test_a_kit_has_its_own_key_and_only_its_own(made: dict[str, Path]) -> None:
    keys = {name: next((kit / "startup").glob("*.key")).read_bytes() for name, kit in made.items()}
    assert set(keys) == {"localhost", "a", "b", kits.ADMIN}
    assert len(set(keys.values())) == 4
    assert all(len(list(kit.rglob("*.key"))) == 1 for kit in made.values())
    common = {name: kit / COHORT for name, kit in made.items() if (kit / COHORT).exists()}
    assert set(common) == {"a", "b"}  # neither the server nor the administrator has it
    assert load(common["a"]) == load(common["b"])
    config = json.loads((made["a"] / "startup" / "fed_client.json").read_text())
    assert config["servers"][0]["service"] == {"target": "localhost:8002", "scheme": "tcp"}
    assert config["client"]["connection_security"] == "mtls"


def test_a_site_runs_no_code_that_comes_with_a_job_and_shows_no_files(made: dict[str, Path]) -> None:
    restrict(made["a"], "client")
    rights = json.loads((made["a"] / "local" / "authorization.json").read_text())["permissions"]
    assert list(rights) == ["project_admin"]
    assert rights["project_admin"]["byoc"] == rights["project_admin"]["shell_commands"] == "none"
    resources = json.loads((made["a"] / "local" / "resources.json").read_text())
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == list(CLASSES)
    assert resources["allow_log_streaming"] is False


def test_a_server_keeps_its_jobs_to_itself(made: dict[str, Path]) -> None:
    restrict(made["localhost"], "server")
    text = (made["localhost"] / "local" / "resources.json").read_text()
    assert "/tmp/nvflare" not in text
    assert str(made["localhost"].resolve() / "store" / "jobs") in text


def test_a_job_carries_no_code(made: dict[str, Path]) -> None:
    folder = job_folder(made[kits.ADMIN], recipe(), "run", ["a", "b"], 2, Patience())
    files = [f for f in folder.rglob("*") if f.is_file()]
    assert files
    assert not [f for f in files if f.suffix == ".py"]
    config = json.loads(next(folder.rglob("config_fed_server.json")).read_text())
    assert config["components"][0]["path"] == "pmsfl.deploy.flare.FlareServer"
    assert config["components"][0]["args"]["rounds"] == 2


def test_a_job_and_a_site_say_whether_masks_are_summed_securely(made: dict[str, Path]) -> None:
    for wanted in (True, False):
        folder = job_folder(made[kits.ADMIN], recipe(), "run", ["a", "b"], 2, Patience(), wanted)
        config = json.loads(next(folder.rglob("config_fed_server.json")).read_text())
        assert FlareServer(**config["components"][0]["args"]).secure_sums is wanted
        SiteConfig("x.npz", secure_sums=wanted).write(made["a"])
        assert SiteConfig.read(made["a"]).secure_sums is wanted


def test_kits_vouch_for_keys_of_secure_sums(made: dict[str, Path]) -> None:
    """Signed with a's kit, checked with what b's and the server's have."""
    names = ("a", "b")
    proof = Identity(made["a"], names).prove(b"keys")
    for checker in (Identity(made["b"], names), Authority(made["localhost"], names)):
        checker.check(0, b"keys", proof)
        with pytest.raises(SecureError, match="signed by 'a'"):
            checker.check(1, b"keys", proof)
