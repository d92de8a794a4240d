"""The ultrasound chain against physics and tones whose answer is known."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from pmsfl.data.maps import BINS, FRAMES, SECONDS
from pmsfl.data.motion.echo import PAD, RATE, SLOW, echo_envelope, on_carrier
from pmsfl.data.optional import scipy_part
from pmsfl.data.ultrasound import (
    BASEBAND_HZ,
    SPEED_OF_SOUND,
    UltrasoundSetting,
    coherent_detector,
    one_channel,
    read_audio,
    shift_profile,
    ultrasound_maps,
)
from pmsfl.errors import PmsflError

SETTING = UltrasoundSetting()
CARRIER = SETTING.carrier_hz
TIMES = np.arange(round(SECONDS * RATE)) / RATE


def tone(hertz: float, amplitude: float = 1.0) -> np.ndarray:
    """A cosine of three seconds."""
    return amplitude * np.cos(2 * np.pi * hertz * TIMES)


def bin_of(shift_hz: float) -> int:
    return round(BINS // 2 + shift_hz / (BASEBAND_HZ / BINS))


@pytest.mark.parametrize("shift", [-310.0, -150.0, 60.0, 290.0])
def test_a_tone_beside_the_carrier_comes_out_as_the_difference(shift: float) -> None:
    baseband, rate = coherent_detector(tone(CARRIER + shift, 0.5), RATE, CARRIER)
    middle = slice(50, -50)
    seconds = np.arange(len(baseband)) / rate
    assert rate == BASEBAND_HZ
    assert np.allclose(baseband[middle], 0.25 * np.exp(2j * np.pi * shift * seconds)[middle], atol=2e-3)


def test_sound_far_from_the_carrier_does_not_pass() -> None:
    for hertz in (440.0, 8_000.0, CARRIER - 1_500.0):
        baseband, _ = coherent_detector(tone(hertz), RATE, CARRIER)
        assert np.abs(baseband[50:-50]).max() < 2e-3


@pytest.mark.parametrize("speed", [-3.5, -1.2, -0.4, 0.5, 1.5, 3.0])
def test_a_constant_speed_appears_at_twice_the_speed_over_the_wavelength(speed: float) -> None:
    slow = np.arange(-PAD, round(SECONDS * RATE / SLOW) + PAD) * SLOW / RATE
    ranges = 20.0 - speed * slow[None]
    sound = on_carrier(echo_envelope(ranges, np.array([400.0]), CARRIER), CARRIER)
    profile = shift_profile(sound, RATE, SETTING)
    expected = bin_of(2 * speed * CARRIER / SPEED_OF_SOUND)
    assert profile.shape == (FRAMES, BINS)
    assert np.abs(profile[2:-2].argmax(1) - expected).max() <= 1


def test_the_envelope_is_the_delayed_carrier_written_out() -> None:
    slow = np.arange(-PAD, round(SECONDS * RATE / SLOW) + PAD) * SLOW / RATE
    sound = on_carrier(echo_envelope(2.0 - 0.8 * slow[None], np.array([3.0]), CARRIER), CARRIER)
    at = 2.0 - 0.8 * TIMES
    delayed = 3.0 / np.maximum(at, 0.3) ** 2 * np.cos(2 * np.pi * CARRIER * (TIMES - 2 * at / SPEED_OF_SOUND))
    early = TIMES < 2.0  # later it is nearer than the model's 0.3 m
    assert np.abs(sound - tone(CARRIER, 8.0) - delayed)[early].max() < 0.02 * np.abs(delayed[early]).max()


def test_the_loudspeaker_itself_leaves_nothing() -> None:
    moving = tone(CARRIER + 117.0, 1e-3)
    profile = shift_profile(moving + tone(CARRIER, 1.0), RATE, SETTING)
    assert set(profile[2:-2].argmax(1)) == {bin_of(117.0)}


def test_a_take_of_seven_seconds_gives_two_maps_and_stereo_the_first_channel() -> None:
    long = np.tile(tone(CARRIER + 200.0, 0.3), 3)[: 7 * RATE]
    stereo = np.stack([long, np.zeros_like(long)], 1)
    maps = ultrasound_maps((stereo * 32767).astype(np.int16), RATE, SETTING)
    assert [m.shape for m in maps] == [(FRAMES, BINS)] * 2
    assert maps[0].dtype == np.uint8


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (np.array([0, 128, 255], np.uint8), [-1.0, 0.0, 127 / 128]),
        (np.array([-32767, 0, 32767], np.int16), [-1.0, 0.0, 1.0]),
        (np.array([0.5, -0.5], np.float32), [0.5, -0.5]),
    ],
)
def test_every_kind_of_wav_samples_is_read_on_one_scale(samples: np.ndarray, expected: list[float]) -> None:
    assert one_channel(samples).tolist() == expected


def test_wav_files_are_read_and_others_refused(tmp_path: Path) -> None:
    path = tmp_path / "room_1.wav"
    scipy_part("io.wavfile").write(path, 44_100, np.arange(5, dtype=np.int16))
    samples, rate = read_audio(path)
    assert (samples.tolist(), rate) == ([0, 1, 2, 3, 4], 44_100)
    path.write_bytes(b"mp3, really")
    with pytest.raises(PmsflError, match=r"room_1\.wav cannot be read as WAV"):
        read_audio(path)


def test_a_rate_below_twice_the_carrier_is_refused() -> None:
    with pytest.raises(PmsflError, match=r"rate = 16000 Hz .* record with at least 41102"):
        coherent_detector(np.zeros(16_000), 16_000, CARRIER)
    with pytest.raises(PmsflError, match="NaN"):
        one_channel(np.array([np.nan]))


def test_without_scipy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.signal", None)
    with pytest.raises(PmsflError, match=r"pip install 'pmsfl\[sensors\]'"):
        coherent_detector(tone(CARRIER), RATE, CARRIER)
