"""`pmsfl simulate` and `pmsfl prepare`, and runs on what they write."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pmsfl.cli import ABOUT, COMMANDS
from pmsfl.commands import main
from pmsfl.data.sensors import SensorSet
from pmsfl.data.simulate import Plan
from pmsfl.report import sensing

TINY = Plan("sonichar", subjects=2, activities=2, repetitions=4)


def pmsfl(*arguments: object) -> int:
    return main(COMMANDS, [str(a) for a in arguments], ABOUT)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny sonichar.npz, its raw signals and a picture."""
    folder = tmp_path_factory.mktemp("sets")
    sensing.make_up(TINY, folder, keep_raw=True, jobs=1, picture=folder / "maps.png")
    return folder


def test_simulating_writes_a_set_its_raw_signals_and_a_picture(simulated: Path) -> None:
    with np.load(simulated / "sonichar.npz") as saved:
        assert saved["x"].shape == (16, 64, 64)
        assert saved["x"].dtype == np.uint8
        assert str(saved["simulated"]) == "2 subjects, variance 1, seed 0"
    assert len(list((simulated / "sonichar-raw").glob("*/*/*.wav"))) == 16
    assert (simulated / "maps.png").read_bytes()[:4] == b"\x89PNG"


def test_preparing_the_raw_signals_says_what_came_out(simulated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("prepare", "sonichar", simulated / "sonichar-raw", simulated / "again.npz") == 0
    out = capsys.readouterr().out
    assert "16 of 3 s, maps of 64x64" in out
    assert "2 subjects, variance 1, seed 0" in out
    assert "12 to train, 4 to test, by take" in out


def test_the_data_view_and_a_run_carry_the_label(simulated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"data_path={simulated / 'sonichar.npz'}"
    assert pmsfl("data", "sonichar", "-c", place, "-c", "width=8") == 0
    shown = capsys.readouterr()
    assert "sonichar (simulated)" in shown.out
    assert "simulated: 2 subjects" in shown.err
    out = simulated / "run"
    few = [x for key in ("width=8", "rounds=1", "epochs=1", "batch=4", "eval_masks=1") for x in ("-c", key)]
    assert pmsfl("run", "sonichar", "-c", place, *few, "--out", out, "--device", "cpu") == 0
    assert "simulated: 2 subjects" in capsys.readouterr().err
    assert json.loads((out / "result.json").read_text())["data"] == "sonichar (simulated)"
    assert "sonichar (simulated)" in (out / "report.html").read_text()


def test_nothing_is_overwritten(simulated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("simulate", "sonichar", simulated) == 1
    assert "sonichar.npz is there already" in capsys.readouterr().err
    (simulated / "again.npz").touch()
    assert pmsfl("prepare", "sonichar", simulated / "sonichar-raw", simulated / "again.npz") == 1


def test_a_recipe_without_its_set_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for recipe, hint in (("mmhar", "`pmsfl simulate mmhar data`"), ("radar", "x uint8 [n, time, range]")):
        assert pmsfl("run", recipe) == 1
        assert hint in capsys.readouterr().err


def test_an_unknown_sensor_and_a_bad_variance_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("simulate", "mmhr", tmp_path) == 2
    assert "did you mean 'mmhar'" in capsys.readouterr().err
    assert pmsfl("simulate", "mmhar", tmp_path, "--variance", "-1") == 1
    assert "variance = -1" in capsys.readouterr().err


def test_a_picture_of_a_kind_that_cannot_be_drawn_is_refused(tmp_path: Path, simulated: Path) -> None:
    from pmsfl.errors import PmsflError

    with np.load(simulated / "sonichar.npz") as s:
        names = tuple(s["class_names"].tolist())
        made = SensorSet("sonichar", s["x"], s["y"], s["owner"], s["room"], s["take"], names)
    with pytest.raises(PmsflError, match=r"a name that ends in \.png"):
        sensing._draw([made], tmp_path / "maps.mp3")
