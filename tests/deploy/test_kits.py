"""The commands' own checks, with and without NVIDIA FLARE."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pmsfl.deploy.command import run_name
from pmsfl.deploy.host import CONFIG, SiteConfig
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


def test_a_status_is_read_on_the_servers_host(pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        ({"upload_draw": "even"}, "the server lacks"),
        ({"labels": "u-shape"}, "not deployed yet"),
        ({"pretrained": "x"}, "file of one host"),
    ):
        with pytest.raises(PmsflError, match=match):
            check_deployable(recipe(**changes))
    assert run_name(recipe(), None) == "tiny-pm-sfl-s0"
    with pytest.raises(PmsflError, match="letters, digits"):
        run_name(recipe(), "../x")
