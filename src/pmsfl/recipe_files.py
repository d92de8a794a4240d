"""The recipes in the package, and hints for what was misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import resources


def shipped() -> list[str]:
    """Names of the recipes in the package."""
    folder = resources.files("pmsfl") / "recipes"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the closest known word, or all of them if none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known)


def shipped_text(name: str) -> str:
    """The TOML of a shipped recipe."""
    return (resources.files("pmsfl") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
