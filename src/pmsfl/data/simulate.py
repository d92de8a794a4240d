"""A whole made-up set: every subject performs every activity twelve times, recorded raw and put through the chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from pmsfl.data.maps import SECONDS
from pmsfl.data.motion.activities import ACTIVITY_NAMES
from pmsfl.data.motion.echo import RATE, radar_cube, ultrasound_audio
from pmsfl.data.motion.people import ROOMS, Take
from pmsfl.data.optional import scipy_part
from pmsfl.data.radar import RadarSetting, radar_maps
from pmsfl.data.recordings import SUFFIXES, Maps, Setting, TakeFile, check_sensor, collect, write_setting
from pmsfl.data.sensors import SensorSet
from pmsfl.data.ultrasound import UltrasoundSetting, ultrasound_maps
from pmsfl.errors import PmsflError


@dataclass(frozen=True)
class Plan:
    """What to make up. activities: the first so many of the seventeen."""

    sensor: str
    subjects: int = 10
    variance: float = 1.0
    seed: int = 0
    activities: int = len(ACTIVITY_NAMES)
    repetitions: int = 12

    def check(self) -> None:
        """PmsflError where there is no such set."""
        check_sensor(self.sensor)
        if self.subjects < 1 or self.seed < 0 or not 0.0 <= self.variance <= 5.0:
            raise PmsflError(
                f"subjects = {self.subjects}, seed = {self.seed}, variance = {self.variance}: there must be at least "
                "1 subject, a seed of at least 0, and a variance between 0 (all alike) and 5"
            )
        if not 1 <= self.activities <= len(ACTIVITY_NAMES) or self.repetitions < 1:
            raise PmsflError(
                f"activities = {self.activities}, repetitions = {self.repetitions}: there are 1 to "
                f"{len(ACTIVITY_NAMES)} activities, repeated at least once"
            )

    @property
    def label(self) -> str:
        """What a set made by this plan says about itself."""
        return f"{self.subjects} subjects, variance {self.variance:g}, seed {self.seed}"

    @property
    def setting(self) -> Setting:
        """What the sensor is set to."""
        return RadarSetting() if self.sensor == "mmhar" else UltrasoundSetting()

    def takes(self) -> list[Take]:
        """Every take, in the order of the set."""
        keys = product(range(self.subjects), range(self.activities), range(self.repetitions))
        return [Take(self.seed, s, a, r, self.variance) for s, a, r in keys]


def simulate(
    plan: Plan, raw: Path | None = None, jobs: int = 1, tick: Callable[[int, int], None] | None = None
) -> SensorSet:
    """Make up the set; with `raw` the recordings are written there, too. The same plan gives the same set for any
    number of jobs."""
    plan.check()
    scipy_part("signal")
    if raw is not None:
        write_setting(raw, plan.setting, plan.label)
    takes = plan.takes()
    maps: list[Maps] = []
    for done, found in enumerate(_all(partial(simulate_take, setting=plan.setting, raw=raw), takes, jobs), 1):
        maps.append(found)
        if tick:
            tick(done, len(takes))
    files = [file_of(take, plan.sensor, raw or Path()) for take in takes]
    return collect(plan.sensor, files, maps, ACTIVITY_NAMES[: plan.activities], plan.label)


def simulate_take(take: Take, setting: Setting, raw: Path | None = None) -> Maps:
    """The maps of one take, from its raw signal on; the signal is kept below `raw` where that is given."""
    if isinstance(setting, RadarSetting):
        cube = radar_cube(take, SECONDS, setting)
        if raw is not None:
            np.save(_place(take, "mmhar", raw), cube)
        return radar_maps(cube, setting)
    audio = ultrasound_audio(take, SECONDS, setting)
    if raw is not None:
        scipy_part("io.wavfile").write(_place(take, "sonichar", raw), RATE, audio)
    return ultrasound_maps(audio, RATE, setting)


def file_of(take: Take, sensor: str, raw: Path) -> TakeFile:
    """Where a take's recording lies and what is known about it; rooms take turns, so take 4 is the last of each."""
    subject, activity, room = f"subject-{take.subject:02d}", ACTIVITY_NAMES[take.activity], f"room-{take.room}"
    number = take.repetition // ROOMS + 1
    path = raw / subject / activity / f"{room}_{number}{SUFFIXES[sensor]}"
    return TakeFile(path, subject, activity, room, number)


def _place(take: Take, sensor: str, raw: Path) -> Path:
    path = file_of(take, sensor, raw).path
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _all(work: Callable[[Take], Maps], takes: list[Take], jobs: int) -> Iterator[Maps]:
    if jobs <= 1:
        yield from map(work, takes)
        return
    # spawned, not forked: whoever calls this may have threads
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, takes, chunksize=16)
