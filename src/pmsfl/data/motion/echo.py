"""From ranges over time to raw signals: what a radar's converter and a phone's microphone would have recorded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pmsfl.data.motion.body import Floats
from pmsfl.data.motion.people import ECHO, Take
from pmsfl.data.motion.scene import Scene, scene_of
from pmsfl.data.optional import scipy_part
from pmsfl.data.radar import LIGHT, RadarSetting
from pmsfl.data.ultrasound import SPEED_OF_SOUND, UltrasoundSetting

FULL_SCALE = 32767.0
RADAR_NOISE = 0.2  # deviation of the converter's noise, where an echo of 1 at one metre has amplitude 1
SOUND_NOISE = 0.4
# The converter's full scale: the strongest clutter nearby stays below it.
RADAR_RANGE = 40.0
SOUND_RANGE = 120.0
LEAK = 8.0  # the loudspeaker heard directly, far above any echo
RATE = 44_100
SLOW = 10  # the envelope has a rate of 44.1 kHz / 10
PAD = 40  # envelope samples beyond both ends
PHONE_DISTANCE = 0.5  # of the radar's: a phone lies nearer
_NOISE_KEY = 1


def radar_cube(take: Take, length: float, setting: RadarSetting) -> npt.NDArray[np.int16]:
    """Raw samples of a take as the converter gives them: int16 [chirps, 1 receiver, samples, 2] (I, Q)."""
    scene = scene_of(take, length)
    ranges = at_times(scene, np.arange(round(length * setting.chirp_hz)) / setting.chirp_hz)
    signal = beat_signal(ranges, scene.echoes, setting)
    rng = take.rng(ECHO, _NOISE_KEY)
    noisy = np.stack([signal.real, signal.imag], -1).astype(np.float32)
    noisy += scene.noise * RADAR_NOISE * rng.standard_normal(noisy.shape, dtype=np.float32)
    return _to_int16(noisy / RADAR_RANGE)[:, None]


def ultrasound_audio(take: Take, length: float, setting: UltrasoundSetting) -> npt.NDArray[np.int16]:
    """The microphone's samples of a take, 44.1 kHz: int16 [length · 44100]."""
    scene = scene_of(take, length, near=PHONE_DISTANCE)
    count = round(length * RATE)
    slow = np.arange(-PAD, -(-count // SLOW) + PAD) * SLOW / RATE
    signal = on_carrier(echo_envelope(at_times(scene, slow), scene.echoes, setting.carrier_hz), setting.carrier_hz)[
        :count
    ]
    seconds = np.arange(len(signal)) / RATE
    rng = take.rng(ECHO, _NOISE_KEY)
    signal += scene.noise * (SOUND_NOISE * rng.standard_normal(len(signal)) + _voices(rng, seconds))
    return _to_int16(signal / SOUND_RANGE)


def at_times(scene: Scene, seconds: Floats) -> Floats:
    """The scene's ranges [S, len(seconds)], between its own times by cubic splines."""
    spline = scipy_part("interpolate").CubicSpline(scene.seconds, scene.ranges, axis=1)
    out: Floats = spline(seconds)
    return out


def beat_signal(ranges: Floats, echoes: Floats, setting: RadarSetting) -> npt.NDArray[np.complex64]:
    """Complex beat signal of point scatterers: ranges [S, chirps], echoes [S] → [chirps, samples].

    A chirp of bandwidth B is mixed with its echo from range R: the beat has 2·B·R/c cycles per chirp and starts at
    phase 4πR/λ. Nothing moves within a chirp.
    """
    wavelength = LIGHT / setting.carrier_hz
    out = np.zeros((setting.samples, ranges.shape[1]), np.complex64)
    for r, echo in zip(ranges, echoes, strict=True):
        start = (echo / np.maximum(r, 0.3) ** 2) * np.exp(4j * np.pi * r / wavelength)
        per_sample = np.exp(4j * np.pi * setting.bandwidth_hz * r / LIGHT / setting.samples)
        # chirp by chirp a geometric series, written by doubling: one exponential per chirp, not one per sample
        series = np.empty((setting.samples, len(r)), np.complex64)
        series[0] = start
        done = 1
        while done < setting.samples:
            more = min(done, setting.samples - done)
            series[done : done + more] = series[:more] * (per_sample**done).astype(np.complex64)
            done += more
        out += series
    return out.T


def echo_envelope(ranges: Floats, echoes: Floats, carrier_hz: float) -> npt.NDArray[np.complex128]:
    """What point scatterers do to the carrier, as a complex envelope: ranges [S, T], echoes [S] → [T], with the
    loudspeaker heard directly.

    The range at the time of hearing stands for the one at the time of reflection: a body moves by 1 % of it in between.
    """
    out = np.full(ranges.shape[1], LEAK, np.complex128)
    for r, echo in zip(ranges, echoes, strict=True):
        out += echo / np.maximum(r, 0.3) ** 2 * np.exp(-4j * np.pi * carrier_hz * r / SPEED_OF_SOUND)
    return out


def on_carrier(envelope: npt.NDArray[np.complex128], carrier_hz: float) -> Floats:
    """The sound with this envelope [PAD + n / SLOW + PAD]: [n] samples at 44.1 kHz. Bodies are far too slow to need
    an envelope of that rate."""
    whole = scipy_part("signal").resample_poly(envelope, SLOW, 1)[PAD * SLOW : -PAD * SLOW]
    turns = np.exp(2j * np.pi * carrier_hz * np.arange(len(whole)) / RATE)
    out: Floats = (whole * turns).real
    return out


def _voices(rng: np.random.Generator, seconds: Floats) -> Floats:
    """Everyday sound far below the carrier; the detector has to reject it."""
    out = np.zeros(len(seconds))
    for _ in range(4):
        out += rng.uniform(0.2, 1.0) * np.sin(2 * np.pi * (rng.uniform(80.0, 2000.0) * seconds + rng.random()))
    return out


def _to_int16(signal: npt.NDArray[np.floating]) -> npt.NDArray[np.int16]:
    out: npt.NDArray[np.int16] = np.clip(np.rint(signal * FULL_SCALE), -FULL_SCALE, FULL_SCALE).astype(np.int16)
    return out
