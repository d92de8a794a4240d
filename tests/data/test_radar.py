"""The radar chain against physics: ranges and speeds go in, bins come out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pmsfl.data.maps import BINS, FRAMES, SECONDS, as_bytes, segments
from pmsfl.data.motion.echo import beat_signal
from pmsfl.data.radar import (
    LIGHT,
    RadarSetting,
    complex_cube,
    radar_maps,
    range_profile,
    read_cube,
    time_doppler,
    without_clutter,
)
from pmsfl.errors import PmsflError

SETTING = RadarSetting()
CHIRPS = round(SECONDS * SETTING.chirp_hz)
SECONDS_AT = np.arange(CHIRPS) / SETTING.chirp_hz


def beat_of(*ranges: np.ndarray) -> np.ndarray:
    """Beat signal [chirps, 1, samples] of scatterers of equal strength."""
    return beat_signal(np.stack(ranges), np.ones(len(ranges)), SETTING)[:, None]


def bin_of(shift_hz: float, rate: float) -> int:
    """The column that holds a Doppler shift: rest in the middle of column 32, BINS columns over the whole rate."""
    return round(BINS // 2 + shift_hz / (rate / BINS))


@pytest.mark.parametrize("speed", [-0.9, -0.3, 0.25, 1.0])
def test_a_constant_speed_appears_at_twice_the_speed_over_the_wavelength(speed: float) -> None:
    power = time_doppler(beat_of(3.5 - speed * (SECONDS_AT - 1.5)), SETTING)
    shift = 2 * speed * SETTING.carrier_hz / LIGHT
    assert power.shape == (FRAMES, BINS)
    assert np.abs(power[4:-4].argmax(1) - bin_of(shift, SETTING.chirp_hz)).max() <= 1


@pytest.mark.parametrize("speed", [-3.4, -2.0, 2.0, 3.4])
def test_fast_motion_keeps_its_sign_up_to_the_largest_speed(speed: float) -> None:
    short = SECONDS_AT % 0.25  # jumps back before it leaves the room; most frames see no jump
    power = time_doppler(beat_of(3.0 - speed * short), SETTING)
    expected = bin_of(2 * speed * SETTING.carrier_hz / LIGHT, SETTING.chirp_hz)
    assert abs(speed) < SETTING.largest_speed
    assert np.abs(np.median(power.argmax(1)) - expected) <= 1


@pytest.mark.parametrize("metres", [0.8, 2.0, 3.7, 5.4])
def test_a_scatterer_appears_in_the_bin_of_its_range(metres: float) -> None:
    profile = np.abs(range_profile(beat_of(np.full(8, metres)))[:, 0])
    assert set(profile.argmax(1)) == {round(metres / SETTING.metres_per_bin)}


def test_two_speeds_at_once_are_two_lines() -> None:
    power = time_doppler(beat_of(4.0 - 0.9 * SECONDS_AT, 2.0 + 0.5 * SECONDS_AT), SETTING).mean(0)
    shifts = [bin_of(2 * v * SETTING.carrier_hz / LIGHT, SETTING.chirp_hz) for v in (0.9, -0.5)]
    assert sorted(np.argsort(power)[-2:]) == sorted(shifts)


def test_what_stands_still_is_removed_whatever_its_strength() -> None:
    still, moving = np.full(CHIRPS, 2.0), 3.0 - 0.5 * SECONDS_AT
    both = beat_signal(np.stack([still, moving]), np.array([1000.0, 1.0]), SETTING)[:, None]
    alone = beat_of(moving)
    left, wanted = without_clutter(range_profile(both)), without_clutter(range_profile(alone))
    assert np.abs(left - wanted).max() < 0.05 * np.abs(wanted).max()


def test_both_layouts_of_a_cube_give_the_same_map() -> None:
    beat = beat_of(3.0 - 0.6 * SECONDS_AT) * 1000
    pairs = np.rint(np.stack([beat.real, beat.imag], -1)).astype(np.int16)
    (from_pairs,), (from_complex,) = radar_maps(pairs, SETTING), radar_maps(pairs[..., 0] + 1j * pairs[..., 1], SETTING)
    assert from_pairs.dtype == np.uint8
    assert np.array_equal(from_pairs, from_complex)


def test_a_second_receiver_adds_its_power() -> None:
    beat = beat_of(3.0 - 0.6 * SECONDS_AT)
    turned = np.concatenate([beat, 1j * beat], axis=1)
    assert np.allclose(time_doppler(turned, SETTING), 2 * time_doppler(beat, SETTING), rtol=1e-4)


def test_a_take_gives_a_map_per_whole_segment_and_a_short_one_is_refused() -> None:
    samples = np.arange(70)
    assert [len(piece) for piece in segments(samples, 10.0, "x")] == [30, 30]
    with pytest.raises(PmsflError, match=r"take\.npy is 2\.90 s long"):
        segments(samples[:29], 10.0, "take.npy")


def test_the_map_counts_decibels_above_its_noise() -> None:
    power = np.ones((FRAMES, BINS))
    power[3, 5], power[4, 5] = 10**2.25, 10**9.0
    assert as_bytes(power)[3, 5] == 128
    assert as_bytes(power)[4, 5] == 255
    assert as_bytes(7e6 * power).tolist() == as_bytes(power).tolist()
    assert as_bytes(np.zeros((FRAMES, BINS))).max() == 0


@pytest.mark.parametrize("cube", [np.zeros((9, 1, 16, 2), np.int16), np.zeros((9, 32)), np.zeros((9, 1, 31), complex)])
def test_a_cube_of_another_layout_is_refused_with_its_shape(cube: np.ndarray) -> None:
    with pytest.raises(PmsflError, match=r"t\.npy.*receivers, 32, 2"):
        complex_cube(cube, SETTING, "t.npy")


def test_samples_that_are_no_numbers_and_files_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match="NaN"):
        complex_cube(np.full((2, 1, 32), np.nan, complex), SETTING)
    (tmp_path / "a_1.npy").write_bytes(b"not an array")
    with pytest.raises(PmsflError, match=r"a_1\.npy cannot be read"):
        read_cube(tmp_path / "a_1.npy")
