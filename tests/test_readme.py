"""The README's Python and model run as printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pmsfl.models.check import check_model

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def block(marker: str) -> str:
    (found,) = [b for b in BLOCKS if marker in b]
    return str(found)


def test_the_quickstart_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = block("pmsfl.run(").replace("rounds=5", "rounds=2, epochs=1, eval_masks=1")
    assert "rounds=2" in code
    exec(compile(code, "README", "exec"), {})
    accuracy, total = capsys.readouterr().out.split("\n")[0].split()
    assert float(accuracy) > 0
    assert int(total) > 0


def test_the_model_of_one_s_own_passes_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model.py").write_text(block("# my_model.py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        report = check_model("my_model:make_model", (1, 28, 28), 10)
    finally:
        sys.modules.pop("my_model", None)
    assert report.vectorised
    assert report.depth == 2
    assert [name for name, _, _ in report.masked] == ["blocks.0.0.weight", "blocks.1.0.weight"]
