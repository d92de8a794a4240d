"""What check-model says of models that are fine, odd, or broken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pmsfl.errors import PmsflError
from pmsfl.models.check import check_model

HEAD = "nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))"
PRELUDE = "import torch\nfrom torch import nn\nimport pmsfl\n"


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("mine", None)


def write(body: str) -> None:
    Path("mine.py").write_text(PRELUDE + body)


def made_of(blocks: str, head: str = HEAD) -> None:
    write(f"def make(input_shape, classes):\n    return pmsfl.SplitModel([{blocks}], {head})\n")


def test_a_plain_network_with_batch_norm_over_vectors_is_vectorised() -> None:
    made_of("nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())", "nn.Linear(16, classes)")
    report = check_model("mine:make", (1, 8, 8), 3)
    assert report.vectorised, report.reason


def test_a_block_that_keeps_a_buffer_is_not_vectorised() -> None:
    write(
        "class Count(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(1, 4, 3)\n"
        "        self.register_buffer('seen', torch.zeros(()))\n"
        "    def forward(self, x):\n"
        "        self.seen += 1\n"
        "        return self.conv(x)\n"
        f"def make(input_shape, classes):\n    return pmsfl.SplitModel([Count()], {HEAD})\n"
    )
    report = check_model("mine:make", (1, 8, 8), 3)
    assert not report.vectorised
    assert "buffer" in str(report.reason)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("1 / 0\n", "ZeroDivisionError"),
        ("def make(:\n", "SyntaxError"),
        ("def make():\n    raise RuntimeError('no')\n", "raised RuntimeError: no"),
        ("def make(depth):\n    return None\n", "raised TypeError"),
        ("def make():\n    return nn.Linear(1, 1)\n", "must return pmsfl.SplitModel"),
        ("other = 1\n", "no function 'make'"),
    ],
)
def test_a_module_that_cannot_make_a_model_is_an_error_that_says_why(body: str, message: str) -> None:
    write(body)
    with pytest.raises(PmsflError, match=message):
        check_model("mine:make", (1, 8, 8), 3)


@pytest.mark.parametrize(
    ("blocks", "head", "message"),
    [
        ("nn.Conv2d(1, 4, 3)", "nn.Flatten()", "one logit per class"),
        ("nn.Conv2d(2, 4, 3)", HEAD, "fails on an input of shape"),
        ("nn.ReLU()", "nn.Sequential(nn.Flatten(), nn.Linear(64, classes))", "nothing can be masked"),
        ("*[nn.Conv2d(1, 1, 3, padding=1)] * 2", "nn.Sequential(nn.Flatten(), nn.Linear(64, classes))", "two places"),
    ],
)
def test_a_model_that_does_not_fit_is_an_error_that_says_why(blocks: str, head: str, message: str) -> None:
    made_of(blocks, head)
    with pytest.raises(PmsflError, match=message):
        check_model("mine:make", (1, 8, 8), 3)


def test_a_transformer_wants_sequences_or_maps() -> None:
    with pytest.raises(PmsflError, match=r"\[T, F\] or \[C, T, W\]"):
        check_model("transformer", (7,), 3)
