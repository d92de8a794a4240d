"""Tables from logs: means, errors and paired differences, the paper's figures beside ours, gaps where nothing ran."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from pathlib import Path

import pytest

from pmsfl.paper import figures
from pmsfl.paper.rows import CIFAR100
from pmsfl.paper.write import COLUMNS, DIFFERENT_DATA
from tests.conftest import Pmsfl
from tests.paper import helpers
from tests.paper.helpers import fake_log

OURS = {
    "cifar100/pm-sfl": (60.0, 61.0, 63.5),
    "cifar100/splitfed": (70.0, 70.5, 74.0),
    "cifar100/pm-sfl@paper": (45.0,),
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Logs of a few full-scale cells, as brought from another machine."""
    for address, accuracies in OURS.items():
        for seed, accuracy in enumerate(accuracies):
            fake_log(tmp_path, address, seed, accuracy)
    return tmp_path


def play(table: str, out: Path, *words: object) -> int:
    """A call that has nothing to train: only cells that are there, or no data."""
    return helpers.pmsfl("paper", table, "--scale", "full", "--out", out, "--data", out / "no-data", *words)


def lines_of(file: Path, start: str) -> list[list[str]]:
    """The cells of the Markdown lines that begin with `start`."""
    found = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {start}")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def matrix_of(file: Path) -> list[dict[str, str]]:
    """The lines of Table 1 in the paper's layout, by the names of its columns."""
    text = file.read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(text) if line.startswith("|  | Standalone | SplitFed |"))
    end = text.index("", at)
    head, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in text[at:end])
    return [dict(zip(head, line, strict=True)) for line in lines]


def test_table1_shows_the_paper_beside_ours(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("table1", out) == 0
    told = capsys.readouterr()
    assert re.search(r"left out: cifar100: no cifar-100-python; bring .*cs.toronto.edu.*looked in .*no-data", told.err)
    assert "7 there already, 0 to play" in told.out
    page = out / "table1.md"
    # Global models, 1 below the clients' mean: mean 60.5, deviation sqrt(13/4) = 1.8028, over sqrt(3): 1.0408
    ours, theirs = matrix_of(page)
    assert ours[""] == "CIFAR-100, Dirichlet(0.3), same depths: ours, global model"
    assert theirs[""] == "CIFAR-100, Dirichlet(0.3), same depths: **paper**"
    assert (ours["SplitFed"], theirs["SplitFed"]) == ("70.50 ± 1.26", "51.39")
    assert (ours["PM-SFL"], theirs["PM-SFL"]) == ("60.50 ± 1.04", "51.02")
    assert (ours["Standalone"], theirs["Standalone"]) == ("", "30.16")  # not run: empty, never copied
    assert (ours["preset paper"], theirs["preset paper"]) == ("44.00", "")
    text = page.read_text(encoding="utf-8")
    assert "300 rounds, 10 % of 100 clients in each" in text
    assert "the paper: 1000 rounds, 3 seeds" in text
    assert "a GPU; 2026-01-02" in text
    assert str(out) not in text


def test_table1_leaves_out_what_nobody_played_and_names_it(out: Path) -> None:
    fake_log(out, "unipen/splitfed", 0, 50.0)
    assert play("table1", out) == 0
    page = out / "table1.md"
    lines = matrix_of(page)
    assert [line[""].partition(":")[0] for line in lines[::2]] == [
        "CIFAR-100, Dirichlet(0.3), same depths",
        "UNIPEN-62 by writer, same depths",
    ]
    assert lines[3][""] == "UNIPEN-62 by writer, same depths: **paper**, other data"
    assert "LG-FedAvg" in lines[0]  # the paper has it
    assert "threshold mask" not in lines[0]  # nobody has
    [told] = [t for t in page.read_text(encoding="utf-8").splitlines() if t.startswith("Not played at this scale: ")]
    assert "`femnist`" in told
    assert "`unipen`" not in told


def test_differences_are_paired_by_seed(out: Path) -> None:
    assert play("table1", out) == 0
    [splitfed] = lines_of(out / "table1.md", "SplitFed |")
    # differences 10, 9.5, 10.5: mean 10, error 0.5 / sqrt(3)
    assert splitfed[1:5] == ["70.50 ± 1.26", "3", f"+10.00 ± {0.5 / math.sqrt(3):.2f} (better)", "51.39"]
    [paper_preset] = lines_of(out / "table1.md", "PM-SFL, preset paper")
    assert paper_preset[1:4] == ["44.00", "1", "-15.00"]
    assert splitfed[-1] == "12.5"  # what a cell cost


def test_a_row_compares_global_models_or_means_over_clients_and_shows_the_other_beside(tmp_path: Path) -> None:
    for address in ("cifar100/splitfed", "unipen/splitfed"):
        fake_log(tmp_path, address, 0, 70.0)
    # Which is better hangs on what is asked: here the clients' mean is, by 2, and the global model is worse, by 3.
    for address in ("cifar100/pm-sfl", "unipen/pm-sfl"):
        fake_log(tmp_path, address, 0, 72.0, accuracy_global=66.0)
    assert play("table1", tmp_path) == 0
    by_global, by_client = lines_of(tmp_path / "table1.md", "SplitFed |")
    assert (by_global[1], by_global[3], by_global[6]) == ("69.00", "+3.00", "70.00")
    assert (by_client[1], by_client[3], by_client[6]) == ("70.00", "-2.00", "69.00")
    text = (tmp_path / "table1.md").read_text(encoding="utf-8")
    assert text.count("Methods are compared by the global model on all test samples.") == 1


def test_methods_without_a_global_model_are_shown_by_their_clients(tmp_path: Path) -> None:
    fake_log(tmp_path, "cifar100/pm-sfl", 0, 70.0)
    fake_log(tmp_path, "cifar100/standalone", 0, 30.0, accuracy_global=3.0)
    assert play("table1", tmp_path) == 0
    ours = matrix_of(tmp_path / "table1.md")[0]
    assert (ours["Standalone"], ours["PM-SFL"]) == ("30.00 (clients)", "69.00")
    [standalone] = lines_of(tmp_path / "table1.md", "Standalone |")
    assert (standalone[1], standalone[3], standalone[6]) == ("30.00 (clients)", "-40.00", "30.00")


def test_a_difference_says_how_many_pairs_it_rests_on(out: Path) -> None:
    fake_log(out, "cifar100/splitfed", 3, 99.0)
    assert play("table1", out) == 0
    [splitfed] = lines_of(out / "table1.md", "SplitFed |")
    assert splitfed[2:4] == ["4", f"+10.00 ± {0.5 / math.sqrt(3):.2f} (better, 3 of 4 seeds)"]


def test_pages_that_share_cells_are_written_together(out: Path) -> None:
    assert play("table1", out) == play("ablation", out) == 0
    assert not (out / "convergence.md").exists()
    fake_log(out, "cifar100/pm-sfl-single", 0, 55.0)
    assert play("table1", out) == 0
    [ablation] = lines_of(out / "ablation.md", "PM-SFL, single masks")
    assert ablation[1:4] == ["54.00", "1", "-5.00"]
    assert not (out / "convergence.md").exists()  # nobody asked for it yet


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", ""),
        ("result.json", "[]"),
        ("result.json", '{"accuracy": 1.0}'),
        ("versions.json", "{"),
        ("metrics.jsonl", '{"round": 1, "loss": 1.0, "bytes": {"total": 1}}\n'),
        ("recipe.toml", b"\xff\xfe"),
    ],
)
def test_a_damaged_log_does_not_count_and_is_named(
    name: str, content: str | bytes, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [folder] = out.glob("logs/*/cifar100-splitfed-s1")
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert play("table1", out) == play("convergence", out) == 0
    told = capsys.readouterr()
    assert "6 there already" in told.out
    assert re.search(r"1 logs cannot be read .* do not count: .*cifar100-splitfed-s1", told.err)
    [splitfed] = lines_of(out / "table1.md", "SplitFed |")
    assert splitfed[1:3] == ["71.00 ± 2.00", "2"]


def test_cells_of_different_data_are_told(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def say(cell: str, samples: str, dealt: str) -> None:
        file = out / "logs" / "table1" / cell / "versions.json"
        file.write_text(json.dumps({"device": "a GPU", "samples": samples, "data": dealt}), encoding="utf-8")

    say("cifar100-splitfed-s0", "a", "a0")
    say("cifar100-splitfed-s1", "a", "a1")
    say("cifar100-pm-sfl-s0", "a", "a0")
    assert play("table1", out) == 0
    assert DIFFERENT_DATA not in capsys.readouterr().err
    for samples, dealt in (("b", "a0"), ("a", "b0")):  # other samples, or the same ones dealt differently
        say("cifar100-pm-sfl-s0", samples, dealt)
        assert play("table1", out) == 0
        assert f"cifar100: {DIFFERENT_DATA}" in capsys.readouterr().err
        assert f"**{DIFFERENT_DATA}**" in (out / "table1.md").read_text(encoding="utf-8")


def test_named_cells_that_cannot_be_played_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("table1", tmp_path, "--only", "unipen/*") == 1
    assert "nothing was played: unipen had to be left out" in capsys.readouterr().err
    assert helpers.pmsfl("paper", "list", "--only", "no/such", "--out", tmp_path) == 2
    assert "no table has such a cell" in capsys.readouterr().err
    assert helpers.pmsfl("paper", "list", "--only", "radar-whole", "--out", tmp_path) == 2
    assert "at scale quick; there is one at half" in capsys.readouterr().err


def test_panels_are_wide_enough_to_compare_and_titles_fit_above_them() -> None:
    figure, (narrow, wide) = figures.panels(2)
    narrow.plot([70.0, 70.5], [0, 1])
    wide.plot([20.0, 70.0], [0, 1])
    before = wide.get_xlim()
    for ax in (narrow, wide):
        figures.widen(ax, 10.0)
        figures.entitle(
            ax, "a label that is much longer than a panel is wide, as some rows of the table are", "9 rounds"
        )
    low, high = narrow.get_xlim()
    assert high - low == pytest.approx(10.0)
    assert low + high == pytest.approx(140.5)
    assert wide.get_xlim() == before
    figure.draw_without_rendering()
    assert narrow.title.get_window_extent().width < figure.bbox.width / 2
    assert narrow.get_title().endswith("\n9 rounds")


def test_csv_has_these_columns_and_finished_cells_only(out: Path) -> None:
    assert play("table1", out) == 0
    with (out / "table1.csv").open(encoding="utf-8", newline="") as f:
        found = list(csv.reader(f))
    assert ", ".join(found[0]) == (
        "recipe, method, preset, seed, rounds, accuracy, accuracy_global, accuracy_best, mask_entropy, bytes_total, "
        "seconds, log"
    )
    assert tuple(found[0]) == COLUMNS
    assert len(found) == 1 + 7
    assert found[1][:6] == ["cifar100", "splitfed", "best", "0", "300", "70.0"]
    assert found[1][8] == ""
    assert found[-1][:4] == ["cifar100", "pm-sfl", "paper", "0"]
    assert all((out / row[-1] / "metrics.jsonl").is_file() for row in found[1:])


def test_the_variants_settings_are_in_the_csv(tmp_path: Path) -> None:
    fake_log(tmp_path, "cifar100-depths/pm-sfl-uncompensated", 0, 40.0)
    assert play("table1", tmp_path) == 0
    assert "cifar100-depths,pm-sfl compensation=false,best,0" in (tmp_path / "table1.csv").read_text(encoding="utf-8")


def test_bytes_per_client_and_round(out: Path) -> None:
    assert play("communication", out) == 0
    with (out / "communication.csv").open(encoding="utf-8", newline="") as f:
        found = {(r["method"], r["preset"], r["kind"], r["direction"]): r for r in csv.DictReader(f)}
    mask = found["pm-sfl", "best", "mask", "up"]
    assert float(mask["bytes_per_client_round"]) == 1_000 / 10  # ten clients in a round
    assert int(mask["bytes_total"]) == 1_000 * 300
    assert float(found["splitfed", "best", "total", ""]["bytes_per_client_round"]) == 8_100.0
    [line] = lines_of(out / "communication.md", "PM-SFL |")
    assert line[-3:] == ["2.10 kB", "8.10 kB", "60.50"]  # without the cut, total, accuracy of the global model


def test_curves_of_every_seed(out: Path) -> None:
    assert play("convergence", out) == 0
    with (out / "convergence.csv").open(encoding="utf-8", newline="") as f:
        found = list(csv.DictReader(f))
    assert len(found) == 7 * 2
    assert [(r["seed"], r["round"], float(r["accuracy"])) for r in found[:2]] == [
        ("0", "150", 35.0),
        ("0", "300", 70.0),
    ]
    [line] = lines_of(out / "convergence.md", "PM-SFL |")
    assert line[1:] == ["", "30.25", "30.25", "60.50"]  # after 75, 150, 225 and 300 rounds


@pytest.mark.parametrize("name", ["table1", "entropy", "convergence", "communication", "bytes"])
def test_figures_are_drawn(name: str, out: Path) -> None:
    table = {"entropy": "table1", "bytes": "communication"}.get(name, name)
    assert play(table, out) == 0
    assert (out / f"{name}-full.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert f"]({name}-full.png)" in (out / f"{table}.md").read_text(encoding="utf-8")


def test_settings_and_ablations(tmp_path: Path) -> None:
    for key, value in ((0.0, 70.0), (0.1, 71.0), (0.5, 72.0)):
        fake_log(tmp_path, f"unipen-own-statistics/personal_ratio={key:g}", 0, value, table="ratio")
    fake_log(tmp_path, "unipen-own-statistics/agreement=0.02", 0, 69.0, table="agreement")
    for table in ("ratio", "agreement", "ablation"):
        assert play(table, tmp_path) == 0
        assert (tmp_path / f"{table}-full.png").exists()
    [half] = lines_of(tmp_path / "ratio.md", "50 %")
    assert half[1:4] == ["72.00", "1", "+2.00"]
    # The row's own ratio is 0.5, so that cell is also agreement's 10 % and the baseline of the ablation.
    [ten] = lines_of(tmp_path / "agreement.md", "10 %")
    assert ten[1] == "72.00"
    [none] = lines_of(tmp_path / "ablation.md", "personal set: none")
    assert none[1:4] == ["70.00", "1", "-2.00"]
    [random] = lines_of(tmp_path / "ablation.md", "personal set: random")
    assert set(random[1:]) == {""}


def test_without_matplotlib_a_note_stands_for_the_figure(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert play("table1", out) == 0
    assert "table1-full.png is left out: matplotlib is not installed" in capsys.readouterr().err
    assert not list(out.glob("*.png"))
    assert "![" not in (out / "table1.md").read_text(encoding="utf-8")


def test_list_says_what_is_done_and_what_it_costs(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert helpers.pmsfl("paper", "list", "--scale", "full", "--out", out, "--data", out / "no-data", "--seeds", 4) == 0
    text = capsys.readouterr().out
    assert re.search(r"cifar100/pm-sfl +3/4 +12\.5 +about 12\.5 s", text)
    assert re.search(r"cifar100/standalone +0/4 +about 50\.0 s", text)
    assert re.search(r"unipen/standalone +0/4 +unknown +no unipen62", text)
    assert "ablation: Ablations of PM-SFL" in text
    assert helpers.pmsfl("paper", "list", "--out", out, "--seeds", 0) == 2


def test_a_log_of_another_version_is_told(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = next(out.glob("logs/*/*splitfed-s0/recipe.toml"))
    file.write_text(file.read_text(encoding="utf-8") + "\nno_such_key = 1\n", encoding="utf-8")
    assert helpers.pmsfl("paper", "list", "--scale", "full", "--out", out) == 0
    assert "1 logs cannot be read" in capsys.readouterr().err


def test_both_kinds_of_command_line(pmsfl: Pmsfl, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--scale", "full", "--out", out, "--only", "cifar100/pm-sfl", "--only", "cifar100/splitfed"]
    assert pmsfl("paper", "list", *words) == 0
    assert re.findall(r"^(cifar100/\S+) +3/3", capsys.readouterr().out, re.M)[:2] == [
        "cifar100/splitfed",
        "cifar100/pm-sfl",
    ]
    assert pmsfl("paper", "convergence", *words, "--data", out, "--jobs", 1) == 0
    assert pmsfl("paper", "convergence", *words, "--jobs", 0) == 2
    assert pmsfl("paper", "table1", "--scale", "whole") == 2
    assert "allowed: quick, reduced, half, full" in capsys.readouterr().err


def test_what_has_to_be_said_of_the_data_is_said_of_that_data_alone(tmp_path: Path) -> None:
    log = fake_log(tmp_path, "cifar100/splitfed", 0, 70.0)
    assert play("table1", tmp_path) == 0
    assert "split of our own" not in (tmp_path / "table1.md").read_text(encoding="utf-8")
    for key in ("samples", "data"):  # older logs have the latter alone
        known = next(iter(CIFAR100.remarks))
        (log / "versions.json").write_text(json.dumps({"device": "a GPU", key: known}), encoding="utf-8")
        assert play("table1", tmp_path) == 0
        assert (tmp_path / "table1.md").read_text(encoding="utf-8").count("a split of our own") == 1
