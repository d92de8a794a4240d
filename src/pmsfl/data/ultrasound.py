"""Ultrasound on a phone: WAV → coherent detector → STFT → Doppler-frequency-shift profile.

A take is one WAV file, 44.1 kHz or more, in which the phone's own inaudible tone and its echoes are heard.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pmsfl.data.maps import as_bytes, doppler_power, segments
from pmsfl.data.optional import scipy_part
from pmsfl.data.source import Array
from pmsfl.errors import PmsflError

SPEED_OF_SOUND = 343.0
BASEBAND_HZ = 1102.5  # rate after the detector: 44.1 kHz / 40, shifts to ±551 Hz or, at 20 kHz, ±4.7 m/s
WINDOW = 128  # baseband samples of one STFT window, 116 ms
TAPS_PER_STEP = 8  # low-pass length in units of the decimation


@dataclass(frozen=True)
class UltrasoundSetting:
    """The tone that the phone plays."""

    carrier_hz: float = 20_000.0


def ultrasound_maps(
    audio: Array, rate: int, setting: UltrasoundSetting, origin: str = "the take"
) -> list[npt.NDArray[np.uint8]]:
    """The maps of a take's 3-second segments: audio [n] (or [n, channels], the first is taken) → uint8 maps."""
    mono = one_channel(audio, origin)
    return [as_bytes(shift_profile(piece, rate, setting)) for piece in segments(mono, rate, origin)]


def one_channel(audio: Array, origin: str = "the take") -> npt.NDArray[np.float64]:
    """The first channel of audio [n] or [n, channels], as floats; integers are scaled to ±1."""
    mono = audio if audio.ndim == 1 else audio[:, 0]
    if mono.dtype == np.uint8:
        return (mono.astype(np.float64) - 128.0) / 128.0
    if mono.dtype.kind == "i":
        return mono.astype(np.float64) / float(np.iinfo(mono.dtype).max)
    if not np.isfinite(mono).all():
        raise PmsflError(f"{origin} holds NaN or infinite values; every sample must be finite.")
    return mono.astype(np.float64)


def coherent_detector(audio: Array, rate: int, carrier_hz: float) -> tuple[npt.NDArray[np.complex128], float]:
    """Audio [n] → (complex baseband [m], its rate): times the carrier's cosine and sine, low-pass, decimate."""
    if rate < 2 * carrier_hz + BASEBAND_HZ:
        raise PmsflError(
            f"rate = {rate} Hz cannot hold a carrier of {carrier_hz:g} Hz and its Doppler shifts; record with at least "
            f"{2 * carrier_hz + BASEBAND_HZ:g} Hz, or correct carrier_hz in sensor.toml."
        )
    step = round(rate / BASEBAND_HZ)
    angle = 2 * np.pi * carrier_hz * np.arange(len(audio)) / rate
    mixed = audio * np.cos(angle) - 1j * audio * np.sin(angle)
    signal = scipy_part("signal")
    lowpass = signal.firwin(2 * TAPS_PER_STEP * step + 1, 0.45 / step, fs=1.0)
    # beyond its ends the take goes on as its mean, the still part of it: no step, hence no splash in the first frame
    return signal.resample_poly(mixed, 1, step, window=lowpass, padtype="mean"), rate / step


def shift_profile(audio: Array, rate: int, setting: UltrasoundSetting) -> npt.NDArray[np.float64]:
    """One segment of audio [n] → power over time and Doppler shift [FRAMES, BINS]; what approaches is positive."""
    baseband, baseband_rate = coherent_detector(audio, rate, setting.carrier_hz)
    # the loudspeaker itself and everything still are a constant here
    return doppler_power(baseband - baseband.mean(), baseband_rate, WINDOW)


def read_audio(path: Path) -> tuple[Array, int]:
    """(samples, rate) of a WAV file."""
    wavfile = scipy_part("io.wavfile")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # phones write chunks that scipy does not know; they hold no samples
            rate, samples = wavfile.read(path)
    except (ValueError, OSError, EOFError) as e:
        raise PmsflError(f"{path} cannot be read as WAV ({e}); convert it to PCM.") from None
    return samples, int(rate)
