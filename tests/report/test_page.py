"""The page of a run: well-formed, self-contained, complete, and true to the metrics; with a browser and without."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import pmsfl
from pmsfl import commands
from pmsfl.cli import ABOUT, COMMANDS
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe
from pmsfl.report.console import human_bytes, percent
from pmsfl.report.page import render, write_page
from pmsfl.report.page_charts import Axis, Series, line_chart
from pmsfl.report.page_heat import Heat, heat_map
from pmsfl.report.page_svg import escape, shorten, spread, ticks
from pmsfl.run import Run

TINY = ("rounds=2", "epochs=1", "clients=4", "cohort=2", "eval_masks=1", "eval_every=1")
CHARTS = {"accuracy": 1, "loss": 1, "entropy": 1, "bytes": 2, "clients": 1, "labels": 1, "costs": 0}
VOID = {"meta", "link", "br", "hr", "img", "input"}
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(HTMLParser):
    """Reads a page, refuses tags that do not match, and counts charts by the section they are in."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.charts: dict[str, int] = {}
        self.described = 0
        self.text: dict[str, str] = {}
        self.links: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    @property
    def section(self) -> str:
        return next((name for tag, name in reversed(self.open) if name), "")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert len(found) == len(attrs), f"an attribute twice in <{tag}>"
        self.links += [v or "" for k, v in attrs if k in ("href", "src")]
        if tag not in VOID:
            self.open.append((tag, (found.get("id") or "") if tag in ("section", "details") else ""))
        if tag == "section":
            self.charts[self.section] = 0
        if tag == "svg":
            assert found["role"] == "img"
            self.charts[self.section] += 1
        self.described += tag == "desc"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert any(t == "svg" for t, _ in self.open), f"<{tag}/> outside of a chart"
        assert not any(v is None or "nan" in v.lower() or "inf" in v.lower() for k, v in attrs if k != "class")

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if not any(t in ("style", "script") for t, _ in self.open):
            self.text[self.section] = self.text.get(self.section, "") + data + "\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs: pm-sfl and splitfed."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("pm-sfl", "splitfed"):
        words = [word for key in TINY for word in ("-c", key)]
        out = folder / method
        assert commands.main(COMMANDS, ["run", "-m", method, *words, "--device", "cpu", "--out", str(out)], ABOUT) == 0
        assert (out / "report.html").exists()
    return folder


def altered(source: Path, target: Path, change: Callable[[dict[str, Any]], None], **recipe: Any) -> Run:
    """A copy of a run with other metrics and another recipe; its data then has another fingerprint."""
    shutil.copytree(source, target)
    lines = [json.loads(text) for text in (source / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        change(line)
    (target / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in lines), encoding="utf-8")
    changed = Recipe.from_toml((source / "recipe.toml").read_text(encoding="utf-8")).replace(**recipe)
    (target / "recipe.toml").write_text(changed.to_toml(), encoding="utf-8")
    (target / "versions.json").unlink()
    return Run.open(target)


def html_of(path: Path) -> str:
    return (path / "report.html").read_text(encoding="utf-8")


# --- a run's page


def test_every_chart_is_there_and_named(runs: Path) -> None:
    page = Page(html_of(runs / "pm-sfl"))
    assert page.charts == CHARTS
    assert page.described == sum(CHARTS.values())
    assert "recipe" in page.text
    assert "versions" in page.text


def test_nothing_comes_from_elsewhere(runs: Path) -> None:
    html = html_of(runs / "pm-sfl")
    assert "://" not in html
    assert "url(" not in html
    assert "@import" not in html
    assert Page(html).links == ["data:,"]
    assert "prefers-color-scheme:dark" in html
    assert "@media print" in html


def test_values_are_those_of_the_metrics(runs: Path) -> None:
    run = Run.open(runs / "pm-sfl")
    page = Page(html_of(run.path))
    assert run.result is not None
    last = run.metrics[-1]
    for key in ("accuracy", "accuracy_global", "accuracy_local_global"):
        assert percent(run.result[key]) in page.text[""]
        assert f"{last['evaluation'][key]:.1f}".removesuffix(".0") in page.text["accuracy"]
    assert f"loss: {last['loss']:.3g}" in page.text["loss"]
    for layer, bits in last["entropy_per_layer"].items():
        assert f"{layer}: {bits:.2f}" in page.text["entropy"]
    for name, size in run.result["bytes"].items():
        kind, _, way = name.partition(".")
        assert name == "total" or f"{kind}, {way}: {human_bytes(size)}" in page.text["bytes"]
    for k, accuracy in enumerate(last["evaluation"]["per_client"]):
        owner = run.world.federation.owners[k]
        assert f"client {k} ({owner})\nown θ: {percent(accuracy)}" in page.text["clients"]
        assert owner in page.text["costs"]
    for key in ("personal_ratio", "damping", "eval_masks"):
        assert key in page.text["recipe"]
    assert run.world.federation.fingerprint() in page.text["versions"]


def test_a_method_without_masks_says_so(runs: Path) -> None:
    page = Page(html_of(runs / "splitfed"))
    assert page.charts == CHARTS | {"entropy": 0}
    assert "splitfed samples no masks" in page.text["entropy"]


def test_the_command_says_where_the_page_is(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "pm-sfl", tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    assert commands.main(COMMANDS, ["report", str(tmp_path / "run")], ABOUT) == 0
    assert capsys.readouterr().out == f"report: {tmp_path / 'run' / 'report.html'}\n"
    assert html_of(tmp_path / "run") == html_of(runs / "pm-sfl")
    assert commands.main(COMMANDS, ["report", str(tmp_path)], ABOUT) == 1


def test_a_page_that_cannot_be_written_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(run: Run) -> Path:
        raise PmsflError("no room")

    monkeypatch.setattr("pmsfl.report.page.write_page", fail)
    words = [word for key in TINY for word in ("-c", key)]
    assert commands.main(COMMANDS, ["run", *words, "--out", str(tmp_path / "run")], ABOUT) == 0
    assert "note: no report: no room" in capsys.readouterr().err


def test_needs_nothing_but_torch_and_numpy(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "pm-sfl", tmp_path / "run")
    gone = "import sys; sys.modules.update(dict.fromkeys(('typer', 'rich', 'matplotlib', 'safetensors')))"
    write = "from pmsfl.run import Run; from pmsfl.report.page import write_page; write_page(Run.open('run'))"
    subprocess.run([sys.executable, "-c", f"{gone}; {write}"], cwd=tmp_path, check=True)
    assert html_of(tmp_path / "run") == html_of(runs / "pm-sfl")


# --- unusual runs


def test_text_stays_text(runs: Path, tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>&\'<b>'

    def rename(line: dict[str, Any]) -> None:
        line["entropy_per_layer"] = {evil: 0.5}

    html = render(altered(runs / "pm-sfl", tmp_path / "run", rename, name=evil))
    assert "<b>" not in html.replace('<div class="tile"', "").replace("</span><b>", "")
    assert html.count("<script>") == 1
    assert escape(evil) in html
    Page(html)


def test_gaps_stay_gaps(runs: Path, tmp_path: Path) -> None:
    def hollow(line: dict[str, Any]) -> None:
        line |= {"loss": math.nan, "mask_entropy": None, "entropy_per_layer": {}, "disagree": None}
        per_client = [None, 50.0, None, 70.0]
        line["evaluation"] |= {"accuracy_global": math.nan, "per_client": per_client, "per_client_global": per_client}

    page = Page(render(altered(runs / "pm-sfl", tmp_path / "run", hollow)))
    assert "without test samples are left out: 2" in page.text["clients"]
    assert page.charts["entropy"] == 0
    assert "nan" not in " ".join(page.text[k] for k in CHARTS)


@pytest.mark.parametrize(("clients", "rounds", "layers"), [(1, 1, 1), (190, 2, 30)])
def test_small_and_large(runs: Path, tmp_path: Path, clients: int, rounds: int, layers: int) -> None:
    def resize(line: dict[str, Any]) -> None:
        values = [float(k % 101) for k in range(clients)]
        line["evaluation"] |= {"per_client": values, "per_client_global": values[::-1]}
        line["entropy_per_layer"] = {f"blocks.{i}.conv.weight": 0.5 for i in range(layers)}

    recipe: dict[str, Any] = {"partition": "iid", "min_samples": 1, "cohort": 1, "depths": "1:2"}
    run = altered(runs / "pm-sfl", tmp_path / "run", resize, clients=clients, rounds=rounds, **recipe)
    run.directory.cut_metrics(rounds)
    page = Page(render(run))
    assert page.charts == CHARTS | ({"layers": 1} if layers > 7 else {})
    assert page.text["clients"].count("own θ: ") == clients
    assert f"{rounds} round{'s' * (rounds > 1)} ·" in page.text[""]


def test_an_unfinished_run_has_a_page(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "pm-sfl", tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "versions.json").write_text('{"data": "other"}', encoding="utf-8")
    run = Run.open(tmp_path / "run")
    page = Page(render(run))
    assert "not finished" in page.text[""]
    assert "fingerprint differs" in page.text[""]
    assert "labels" not in page.charts
    run.directory.cut_metrics(0)
    assert "No round is complete yet" in Page(render(run)).text[""]


def test_data_that_is_gone_leaves_the_rest(runs: Path, tmp_path: Path) -> None:
    run = altered(runs / "pm-sfl", tmp_path / "run", lambda line: None, data="npz", data_path=str(tmp_path / "gone"))
    page = Page(write_page(run).read_text(encoding="utf-8"))
    assert page.charts == {k: n for k, n in CHARTS.items() if k not in ("labels", "costs")}
    assert "Labels and costs per client are not shown" in page.text[""]


# --- several runs


def test_comparison(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.html"
    words = ["compare", str(runs), "--html", str(file)]
    assert commands.main(COMMANDS, words, ABOUT) == 0
    assert f"page: {file}" in capsys.readouterr().out
    html = file.read_text(encoding="utf-8")
    page = Page(html)
    charts = {"accuracy": 1, "global": 1, "loss": 1, "entropy": 1, "cost": 1, "bytes": 1}
    assert page.charts == charts | {"figures": 0, "differences": 0}
    assert "Without: splitfed" in page.text["entropy"]
    assert "not separable" in page.text["differences"]
    assert "://" not in html
    result = pmsfl.Run.open(runs / "splitfed").result
    assert result is not None
    assert f"{result['accuracy']:.1f}" in page.text["figures"]
    assert commands.main(COMMANDS, [*words, "--json"], ABOUT) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(file)


# --- pieces


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 100.0, [0, 20, 40, 60, 80, 100]),
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (1.0, 7.0, [2, 4, 6]),
        (3.0, 3.0, [3]),
        (0.0, math.nan, [0]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_whole_ticks() -> None:
    assert ticks(1.0, 3.0, 8, whole=True) == [1.0, 2.0, 3.0]


def test_labels_move_apart_and_stay_inside() -> None:
    places = spread([10.0, 11.0, 99.0, 12.0], 15.0, 0.0, 100.0)
    assert sorted(places) == [places[0], places[1], places[3], places[2]]
    assert min(b - a for a, b in zip(sorted(places), sorted(places)[1:], strict=False)) >= 15.0 - 1e-9
    assert max(spread([98.0, 99.0, 100.0], 15.0, 0.0, 100.0)) <= 100.0


def test_names_are_cut_in_the_middle() -> None:
    assert shorten("blocks.0.conv.weight", 11) == "block…eight"
    assert shorten("short", 11) == "short"


def test_a_line_breaks_where_values_are_missing() -> None:
    axis = Axis("y", str)
    points = [(1.0, 1.0), (2.0, 2.0), (3.0, None), (4.0, math.nan), (5.0, 3.0), (6.0, 1.0), (7.0, None), (8.0, 2.0)]
    drawn = line_chart("t", [Series("s", points, 0)], axis, axis)
    [path] = re.findall(r'class="line c0" d="([^"]*)"', drawn)
    assert path.count("M") == 2
    assert drawn.count("<circle") == 5
    assert "<path" not in line_chart("t", [Series("s", [(1.0, None)], 0)], axis, axis)


def test_shades_of_a_heat_map() -> None:
    heat = Heat([[0, 1], [50, 100]], ["a", "b"], ["0", "1"], ["x", "y"], str, "row", "column", 100.0)
    assert [heat.shade(v) for v in (None, math.nan, 0, 1, 50, 100, 200)] == [0, 0, 0, 1, 5, 10, 10]
    drawn = heat_map("t", heat)
    assert drawn.count('<path class="heat') == 3


# --- a browser


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium")
def test_a_browser_shows_it_without_complaint(runs: Path, tmp_path: Path) -> None:
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    options += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path}"]
    options += ["--enable-logging=stderr", "--dump-dom", (runs / "pm-sfl" / "report.html").as_uri()]
    shown = subprocess.run([BROWSER, *options], capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in shown.stderr
    assert shown.stdout.count("<svg") == sum(CHARTS.values())
    assert 'id="tip"' in shown.stdout  # the script ran
