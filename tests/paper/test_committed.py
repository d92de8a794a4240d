"""The pages that come with the project say what its logs say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pmsfl.paper import figures
from pmsfl.paper.logs import Logs
from pmsfl.paper.outcome import Outcome
from pmsfl.paper.tables import TABLES

COMMITTED = Path(__file__).parents[2] / "papers" / "pm-sfl"


@pytest.fixture(scope="module")
def logs() -> Logs:
    return Logs(COMMITTED)


def test_every_log_is_whole(logs: Logs) -> None:
    assert logs.unread == []


@pytest.mark.parametrize("name", list(TABLES))
def test_pages_are_those_of_the_logs(name: str, logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the table were written anew; figures are taken to be as they are, they differ with matplotlib's version."""

    def kept(path: Path, make: Callable[[], object]) -> list[Path]:
        return [path] if (COMMITTED / path.name).exists() else []

    monkeypatch.setattr(figures, "draw", kept)
    (tmp_path / "logs").symlink_to(COMMITTED / "logs")
    TABLES[name].write(Outcome(TABLES[name], tmp_path, Path("data"), Logs(tmp_path)))
    written = sorted(f.name for f in tmp_path.glob("*.*"))
    assert f"{name}.md" in written
    for file in written:
        assert (tmp_path / file).read_text(encoding="utf-8") == (COMMITTED / file).read_text(encoding="utf-8"), file
