"""Recorded rounds: both executors keep the same, nothing else is kept, and what does not fit is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.distributed import check_shareable
from pmsfl.engine.reference import ReferenceExecutor
from pmsfl.engine.state import State
from pmsfl.engine.transcribe import RoundTape, Transcriber
from pmsfl.errors import PmsflError
from pmsfl.tensorfile import read_tensors
from pmsfl.wire.ledger import Ledger
from tests.conftest import play, tiny_recipe, tiny_world
from tests.engine.recorded import played, recording
from tests.engine.test_agreement import assert_agree

KEPT = {
    *("start.shared", "start.plain", "smashed", "gradient", "labels"),
    *("upload.values", "upload.contributes", "upload.plain"),
}


def recorded(folder: Path, kind: type[CohortExecutor] | type[ReferenceExecutor], **changes: Any) -> State:
    """The state before the last round of three; the rounds of the recipe are recorded in `folder`."""
    wanted: dict[str, Any] = {"record": True, "record_rounds": "1,3", "record_clients": "all"}
    world = tiny_world(**(wanted | changes))
    executor = kind(world, Ledger())
    executor.transcriber = Transcriber(world, folder)
    state = before = State.initial(world)
    for _ in range(3):
        before, state = state, executor.round(state)[0]
    return before


@pytest.mark.parametrize("method", ["pm-sfl", "splitfed", "splitfed-pm"])
@pytest.mark.parametrize("depths", ["2", "1:1"])
def test_executors_keep_the_same(tmp_path: Path, method: str, depths: str) -> None:
    before = recorded(tmp_path / "a", CohortExecutor, method=method, depths=depths)
    recorded(tmp_path / "b", ReferenceExecutor, method=method, depths=depths)
    names = sorted(f.name for f in (tmp_path / "a").iterdir())
    assert names == sorted(f.name for f in (tmp_path / "b").iterdir())
    assert len(names) == 6  # two rounds of three clients
    for name in names:
        ours, about = read_tensors(tmp_path / "a" / name)
        theirs, other = read_tensors(tmp_path / "b" / name)
        assert about == other
        assert ours.keys() == theirs.keys() == KEPT
        for key in KEPT:
            assert ours[key].dtype == theirs[key].dtype
            assert torch.allclose(ours[key].double(), theirs[key].double(), atol=1e-9), (name, key)
        if name.startswith("round-000003"):
            assert torch.equal(ours["start.shared"], before.shared[: len(ours["start.shared"])])


def test_what_stays_personal_is_not_kept(tmp_path: Path) -> None:
    recorded(tmp_path, CohortExecutor, personal_ratio=0.5)
    for file in tmp_path.glob("round-000003*"):
        kept, _ = read_tensors(file)
        assert not kept["upload.contributes"].all()
        assert not kept["upload.values"][~kept["upload.contributes"]].any()


def test_labels_that_stay_are_not_kept(tmp_path: Path) -> None:
    recorded(tmp_path, CohortExecutor, labels="u-shape")
    assert all("labels" not in read_tensors(file)[0] for file in tmp_path.iterdir())


def test_halves_on_the_wire_are_kept_as_halves(tmp_path: Path) -> None:
    recorded(tmp_path, CohortExecutor, cut_codec="bf16", dtype="float32")
    kept, _ = read_tensors(next(tmp_path.iterdir()))
    assert kept["smashed"].dtype == torch.bfloat16


def test_the_first_client_alone_is_the_default(tmp_path: Path) -> None:
    recorded(tmp_path, CohortExecutor, record_clients="first", record_rounds="last")
    world = tiny_world()
    assert [f.name for f in tmp_path.iterdir()] == [f"round-000003-client-{world.plan(2).clients[0]:06d}.safetensors"]


def test_steps_past_the_limit_are_left_out_and_named(tmp_path: Path) -> None:
    world, notes = tiny_world(), list[str]()
    plan = world.plan(0)
    client, q = plan.clients[0], torch.zeros(6, 8, 2, 2)
    tape = RoundTape(world, tmp_path / "transcript", plan, 2 * (2 * q.numel() * 8 + 6 * 8) + 10, notes.append)
    tape.open(client)
    for _ in range(plan.steps[0]):
        tape.step(client, q, torch.zeros(6, dtype=torch.int64), q)
    tape.close()
    kept, _ = read_tensors(next((tmp_path / "transcript").iterdir()))
    assert len(kept["smashed"]) == 2
    assert notes == [
        f"record: round 1, client {client}: steps 3 to {plan.steps[0]} left out, record_mb = 1024 is full; raise it, "
        "or record fewer rounds or clients"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"record_rounds": "0"}, "rounds 1 to 3"),
        ({"record_rounds": "first"}, "last, all, or numbers"),
        ({"record_clients": "5"}, "take 0 to 4"),
        ({"record_clients": "x"}, "first, all, or numbers"),
    ],
)
def test_what_there_is_not_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(PmsflError, match=message):
        Transcriber(tiny_world(**change), tmp_path)


def test_clients_that_do_not_take_part_are_mentioned(tmp_path: Path) -> None:
    absent = next(c for c in range(5) if c not in tiny_world().plan(2).clients)
    world, notes = tiny_world(record_clients=str(absent)), list[str]()
    assert Transcriber(world, tmp_path, notes.append).of_round(world.plan(2)) is None
    assert notes == ["record: round 3: none of record_clients takes part"]


def test_several_processes_do_not_record() -> None:
    with pytest.raises(PmsflError, match="no process sees all"):
        check_shareable(tiny_recipe(record=True))


def test_recorded_rounds_do_not_play_from_recordings_and_others_still_do(tmp_path: Path) -> None:
    """On a GPU steps are replayed: a round that is transcribed in between is played as it is, to the same end."""
    world = tiny_world(record_rounds="2")
    executor, recorder, _ = recording(world, None)
    executor.transcriber = Transcriber(world, tmp_path)
    steps: list[int] = []
    replay = recorder.step

    def counted(active: dict[int, int]) -> None:
        steps.append(int(recorder.server.plan.round))
        replay(active)

    recorder.step = counted  # type: ignore[method-assign]
    state, _ = played(executor, rounds=3)
    assert set(steps) == {0, 2}
    assert_agree(state, play(world, CohortExecutor, 3)[0])
    (file,) = tmp_path.iterdir()
    assert len(read_tensors(file)[0]["smashed"]) == world.plan(1).steps[0]


@pytest.mark.parametrize(("cut", "gradient"), [("bf16", "fp32"), ("fp16", "bf16"), ("int4", "fp16")])
def test_each_message_is_kept_exactly_as_its_own_codec_leaves_it(tmp_path: Path, cut: str, gradient: str) -> None:
    codecs = {"dtype": "float32", "cut_codec": cut, "gradient_codec": gradient}
    recorded(tmp_path / "a", CohortExecutor, **codecs)
    recorded(tmp_path / "b", ReferenceExecutor, **codecs)
    kept_as = {"bf16": torch.bfloat16, "fp16": torch.float16}
    for file in sorted((tmp_path / "a").glob("round-000001-*")):
        ours, theirs = (read_tensors(tmp_path / folder / file.name)[0] for folder in ("a", "b"))
        for name, codec in (("smashed", cut), ("gradient", gradient)):
            assert ours[name].dtype == theirs[name].dtype == kept_as.get(codec, torch.float32), name
        if gradient == "fp32":
            assert not torch.equal(ours["gradient"], ours["gradient"].bfloat16().float())
