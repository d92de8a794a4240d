"""scipy, imported only where raw signals are handled: a prepared set loads with numpy alone."""

from __future__ import annotations

import importlib
from typing import Any

from pmsfl.errors import PmsflError


def scipy_part(name: str) -> Any:
    """scipy.signal, scipy.interpolate or scipy.io.wavfile; PmsflError where scipy is not installed."""
    try:
        return importlib.import_module(f"scipy.{name}")
    except ImportError:
        raise PmsflError(
            "raw signals need scipy, which is not installed: pip install 'pmsfl[sensors]' (or pip install scipy). "
            "A prepared .npz needs it no more: prepare it on another machine and copy it here."
        ) from None
