"""The heat map of labels by client."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from pmsfl.data.federation import Federation
from pmsfl.report import dataview
from pmsfl.report.heatmap import draw_labels


@pytest.mark.parametrize(("clients", "classes", "mixed"), [(1, 2, False), (24, 10, True), (190, 62, True)])
def test_a_picture_of_any_size(tmp_path: Path, clients: int, classes: int, mixed: bool) -> None:
    counts = np.random.default_rng(0).integers(0, 9, (clients, classes))
    depths = [1 + k % 4 if mixed else 2 for k in range(clients)]
    file = tmp_path / "labels.png"
    draw_labels(counts, depths, [str(c) for c in range(classes)], "test", file)
    assert file.read_bytes()[:4] == b"\x89PNG"


def test_without_matplotlib_there_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.arange(2)
    federation = Federation(
        "tiny",
        np.zeros((4, 1, 2, 2), np.uint8),
        np.array([0, 1, 0, 1]),
        (rows,),
        (rows + 2,),
        rows + 2,
        2,
        (0.0,),
        (1.0,),
        ("me",),
        False,
    )
    monkeypatch.setitem(sys.modules, "pmsfl.report.heatmap", None)
    assert not dataview._draw(federation, [2], tmp_path / "labels.png")
    assert "matplotlib is not installed" in capsys.readouterr().err
