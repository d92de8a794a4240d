"""`pmsfl attack`: a finished run in, a table, a picture and one JSON object out."""

from __future__ import annotations

import importlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pmsfl import commands
from pmsfl.cli import ABOUT, COMMANDS
from pmsfl.privacy.attacks import BUDGETS, Budget
from pmsfl.privacy.picture import GAP, ZOOM, grid, write_png
from pmsfl.privacy.suite import Outcome, Verdict, meaning
from pmsfl.run import train
from tests.conftest import Pmsfl
from tests.privacy.helpers import SIDE, blobs

TINY = Budget(steps=3, decoder_steps=2, decoder_batch=8, decoder_width=8, decoder_blocks=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds on images, the last one recorded."""
    folder = tmp_path_factory.mktemp("attacked")
    n = 60
    np.savez(folder / "blobs.npz", x=blobs(n), y=np.arange(n) % 3, owner=np.arange(n) % 3)
    changes: dict[str, Any] = {"data": "npz", "data_path": str(folder / "blobs.npz"), "width": 4, "record": True}
    train("demo", rounds=2, batch=4, epochs=1, cohort=2, depths="1", eval_masks=1, out=folder / "run", **changes)
    return folder / "run"


@pytest.fixture(autouse=True)
def tiny_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUDGETS, "quick", TINY)


@pytest.mark.parametrize("observations", ["same-view", "as-recorded"])
def test_the_last_line_is_one_object(
    pmsfl: Pmsfl, finished: Path, observations: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pmsfl("attack", finished, "--images", 8, "--observations", observations, "--json") == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["images"] == 8
    assert result["attacks"].keys() >= {"grey", "mean-image", "inversion", "joint", "decoder", "over-masks"}
    best = max(v["score"] for v in result["attacks"].values() if v["role"] == "attack")
    assert result["max"] == best == result["attacks"][result["max_attack"]]["score"]
    assert result["floor"] == max(result["attacks"][name]["score"] for name in ("grey", "mean-image"))
    assert result["unmasked"] == max(v["score"] for v in result["unmasked_attacks"].values())
    assert ("oracle-mask" in result["attacks"]) == (observations == "same-view")
    assert ("oracle-mask" in result["not_applicable"]) == (observations == "as-recorded")
    assert json.loads((finished / "attacks.json").read_text()) == result


def test_the_table_has_the_maximum_first(pmsfl: Pmsfl, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("attack", finished, "--attacks", "expected-mask,decoder", "--images", 4) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    head = next(i for i, line in enumerate(lines) if "SSIM" in line and "PSNR" in line)
    assert lines[head + 2].startswith("maximum")
    assert lines[head + 3].startswith("without mask")
    assert "floor" in out
    assert "the server knows:" in out
    assert "picture:" in out


def test_the_reference_without_a_mask_can_be_left_out(
    pmsfl: Pmsfl, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pmsfl("attack", finished, "--attacks", "inversion", "--images", 4, "--skip-reference", "--json") == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["unmasked"] is None
    assert result["unmasked_attacks"] == {}
    assert "inversion" in result["attacks"]


def test_the_picture_is_a_png_of_all_rows(finished: Path, pmsfl: Pmsfl) -> None:
    assert pmsfl("attack", finished, "--attacks", "inversion", "--images", 4) == 0
    data = (finished / "attacks.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    rows = 1 + 1 + 3  # the images, inversion without mask, inversion and two floors
    assert (width, height) == (4 * (ZOOM * SIDE + GAP), rows * (ZOOM * SIDE + GAP))


def test_a_png_holds_what_was_drawn(tmp_path: Path) -> None:
    image = torch.rand(2, 1, 12, 12)
    picture = grid([image])
    write_png(tmp_path / "a.png", picture, "θ")
    read = importlib.import_module("matplotlib.image").imread(tmp_path / "a.png")
    assert np.allclose(read[..., :3], picture.numpy() / 255.0, atol=1e-6)
    assert read[0, 0, 0] == pytest.approx(float(image[0, 0, 0, 0]), abs=0.003)
    data = (tmp_path / "a.png").read_bytes()
    at = data.index(b"tEXt")
    (size,) = struct.unpack(">I", data[at - 4 : at])
    assert struct.unpack(">I", data[at + 4 + size : at + 8 + size])[0] == zlib.crc32(data[at : at + 4 + size])


# --- the two cases that guard the suite, on the command's whole way: trained, kept, opened, attacked, printed

ENOUGH = Budget(steps=60, decoder_steps=40, decoder_batch=32, decoder_width=16, decoder_blocks=1)


@pytest.mark.parametrize(
    ("crosses", "changes"),
    [
        ("images", {"norm": "batch"}),
        ("noise", {"norm": "group", "norms": "frozen", "dp_smashed": "gaussian", "dp_epsilon_smashed": 1e-4}),
    ],
)
def test_the_command_sees_the_images_where_they_cross_and_nothing_where_noise_does(
    tmp_path: Path,
    crosses: str,
    changes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One convolution without a mask and with nothing uploaded: only the smashed data can tell."""
    monkeypatch.setitem(BUDGETS, "quick", ENOUGH)
    np.savez(tmp_path / "blobs.npz", x=blobs(96), y=np.arange(96) % 3, owner=np.arange(96) % 4)
    settings: dict[str, Any] = {
        "method": "dense-frozen",
        "data": "npz",
        "data_path": str(tmp_path / "blobs.npz"),
        "width": 16,
        "depths": "1",
        **changes,
    }
    train("demo", rounds=1, batch=8, epochs=1, cohort=2, eval_masks=1, out=tmp_path / "run", **settings)
    capsys.readouterr()
    assert commands.main(COMMANDS, ["attack", str(tmp_path / "run"), "--images", "8", "--json"], ABOUT) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    tried = {name for name, a in result["attacks"].items() if a["role"] == "attack"}
    assert tried >= {"inversion", "decoder"}
    assert result["failed"] == []
    assert result["floor"] < 0.3
    if crosses == "images":
        assert result["attacks"]["inversion"]["score"] > 0.9
        assert result["attacks"]["decoder"]["score"] > 0.6
        assert "no random mask to hide them" in result["meaning"]
    else:
        assert "decoder-32" in tried  # noise is worth averaging
        assert result["max"] < result["floor"] + 0.1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--attacks", "jiont"), 1, "unknown attack 'jiont'"),
        (("--images", "0"), 2, "at least 1"),
        (("--observations", "live"), 2, "same-view"),
        (("--budget", "huge"), 2, "quick"),
    ],
)
def test_what_cannot_be_meant_is_said(
    pmsfl: Pmsfl, finished: Path, words: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pmsfl("attack", finished, *words) == code
    assert message in capsys.readouterr().err


def outcome(role: str, score: float, name: str = "x") -> Outcome:
    return Outcome(name, name, role, None, score, score)


@pytest.mark.parametrize(
    ("best", "unmasked", "words"),
    [
        (0.95, 0.97, "hides nothing"),
        (0.6, 0.95, "hides some"),
        (0.3, 0.95, "proves nothing about better ones"),
        (0.16, 0.95, "no proof"),
        (0.25, 0.2, "say nothing about the mask"),
        (0.33, 0.14, "hides nothing"),
        (0.33, 0.2, "at SSIM 0.33"),
        (0.9, None, "no random mask to hide"),
    ],
)
def test_the_verdict_in_words(best: float, unmasked: float | None, words: str) -> None:
    plain = () if unmasked is None else (outcome("attack", unmasked),)
    verdict = Verdict((outcome("attack", best), outcome("floor", 0.15), outcome("oracle", 0.99)), plain)
    assert words in meaning(verdict)


def test_nothing_tried_is_nothing_known() -> None:
    assert "nothing is known" in meaning(Verdict((outcome("floor", 0.15),), ()))
