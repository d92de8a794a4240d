"""mmWave FMCW radar: raw samples of chirps → range FFT → clutter removal → Doppler FFT → time–Doppler map.

A take is one `.npy`, int16 [chirps, receivers, samples, 2] (I and Q, as converters of the AWR1843 class give them) or
complex [chirps, receivers, samples]. Chirps are equally spaced. Range bin k is at k · c / (2 · bandwidth).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pmsfl.data.maps import as_bytes, doppler_power, segments
from pmsfl.data.source import Array
from pmsfl.errors import PmsflError

LIGHT = 299_792_458.0
WINDOW = 256  # chirps of one Doppler FFT


@dataclass(frozen=True)
class RadarSetting:
    """The chirps. bandwidth_hz: what the samples of a chirp span, not the whole ramp; samples: per chirp."""

    carrier_hz: float = 77e9
    bandwidth_hz: float = 0.75e9
    chirp_hz: float = 4096.0
    samples: int = 32

    @property
    def metres_per_bin(self) -> float:
        """Distance between range bins."""
        return LIGHT / (2 * self.bandwidth_hz)

    @property
    def largest_speed(self) -> float:
        """Metres per second beyond which Doppler folds over: λ · chirp_hz / 4."""
        return LIGHT / self.carrier_hz * self.chirp_hz / 4


def radar_maps(cube: Array, setting: RadarSetting, origin: str = "the take") -> list[npt.NDArray[np.uint8]]:
    """The maps of a take's 3-second segments: uint8 [FRAMES, BINS] each."""
    beat = complex_cube(cube, setting, origin)
    return [as_bytes(time_doppler(piece, setting)) for piece in segments(beat, setting.chirp_hz, origin)]


def complex_cube(cube: Array, setting: RadarSetting, origin: str = "the take") -> npt.NDArray[np.complex64]:
    """Raw samples, in either layout, as complex64 [chirps, receivers, samples]."""
    if cube.dtype == np.int16 and cube.ndim == 4 and cube.shape[-1] == 2:
        whole = cube.astype(np.float32)
        cube = whole[..., 0] + 1j * whole[..., 1]
    if cube.dtype.kind != "c" or cube.ndim != 3 or cube.shape[2] != setting.samples:
        raise PmsflError(
            f"{origin}: {cube.dtype} of shape {cube.shape}; a radar take is int16 [chirps, receivers, "
            f"{setting.samples}, 2] (I, Q) or complex [chirps, receivers, {setting.samples}]. The samples of a chirp "
            "are set in sensor.toml."
        )
    if not np.isfinite(cube).all():
        raise PmsflError(f"{origin} holds NaN or infinite values; every sample must be finite.")
    # one order in memory, so that sums round alike whether the cube came from a file or not
    return np.ascontiguousarray(cube, np.complex64)


def range_profile(beat: Array) -> npt.NDArray[np.complex64]:
    """Range FFT of every chirp [chirps, receivers, samples] → range bins, same shape."""
    window = np.hanning(beat.shape[-1] + 1)[:-1].astype(np.float32)
    return np.fft.fft(beat * window, axis=-1).astype(np.complex64)


def without_clutter(profile: Array) -> Array:
    """What moves: each range bin [chirps, ...] less its mean over slow time."""
    moving: Array = profile - profile.mean(axis=0, keepdims=True)
    return moving


def time_doppler(beat: Array, setting: RadarSetting) -> npt.NDArray[np.float64]:
    """One segment [chirps, receivers, samples] → power over time and Doppler [FRAMES, BINS], summed over ranges.

    The beat's phase grows with range, so it is conjugated: what approaches is at positive Doppler.
    """
    moving = without_clutter(range_profile(beat)).conj()
    power = doppler_power(np.moveaxis(moving, 0, -1), setting.chirp_hz, WINDOW)
    out: npt.NDArray[np.float64] = power.sum((0, 1))
    return out


def read_cube(path: Path) -> Array:
    """The array of a take's `.npy`; pickled objects are refused."""
    try:
        found: Array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as e:
        raise PmsflError(f"{path} cannot be read as a .npy array ({e}); save the cube with numpy.save.") from None
    return found
