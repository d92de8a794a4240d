"""Time × Doppler maps: 3-second segments, 64 frames of 64 Doppler bins, one byte each.

Row t is time, column d Doppler: column 32 is rest, columns above approach the sensor, columns below go away.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pmsfl.data.optional import scipy_part
from pmsfl.data.source import Array
from pmsfl.errors import PmsflError

SECONDS = 3.0
FRAMES = 64
BINS = 64
DECIBELS = 45.0  # from black to white; what is more than that above the noise is white


def segments(samples: Array, rate: float, origin: str) -> list[Array]:
    """`samples` [n, ...] cut along time into as many whole 3-second pieces as there are; the rest is dropped."""
    length = round(SECONDS * rate)
    if len(samples) < length:
        raise PmsflError(
            f"{origin} is {len(samples) / rate:.2f} s long; a segment takes {SECONDS:g} s. Record longer takes, or "
            "correct the rate in sensor.toml."
        )
    return [samples[i * length : (i + 1) * length] for i in range(len(samples) // length)]


def doppler_power(signal: Array, rate: float, window: int) -> npt.NDArray[np.float64]:
    """Power of a complex signal [..., n] over slow time: [..., FRAMES, BINS], Hann windows of `window` samples.

    Positive frequencies come last, zero at bin BINS // 2; neighbouring frequencies are averaged down to BINS.
    """
    hop = signal.shape[-1] // FRAMES
    if hop < 1 or window % BINS:
        raise PmsflError(
            f"a segment of {signal.shape[-1]} samples in windows of {window}: it takes at least {FRAMES} samples, and "
            f"a multiple of {BINS} in a window."
        )
    scipy_signal = scipy_part("signal")
    hann = scipy_signal.get_window("hann", window)
    transform = scipy_signal.ShortTimeFFT(hann, hop, rate, fft_mode="centered")
    # frames sit in the middle of FRAMES equal slots, so none of them looks far beyond the segment
    spectrum = transform.stft(signal, 0, FRAMES, k_offset=hop // 2, axis=-1)
    power = np.moveaxis(np.abs(spectrum) ** 2, -1, -2)
    # a bin is centred on its frequency: shift by half a bin, so that rest falls into the middle of one
    group = window // BINS
    power = np.roll(power, group // 2, axis=-1)
    out: npt.NDArray[np.float64] = power.reshape(*power.shape[:-1], BINS, group).mean(-1)
    return out


def as_bytes(power: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Power [FRAMES, BINS] as uint8: decibels above the map's own noise floor (its lower quartile)."""
    floor = max(float(np.quantile(power, 0.25)), 1e-30)
    decibels = 10.0 * np.log10(np.maximum(power, 1e-30) / floor)
    out: npt.NDArray[np.uint8] = np.rint(np.clip(decibels / DECIBELS, 0.0, 1.0) * 255.0).astype(np.uint8)
    return out
