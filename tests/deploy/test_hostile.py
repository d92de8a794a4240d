"""Bad and hostile peers: everything they send is refused with a reason, and nothing of the server's has changed."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pmsfl.deploy.data import SiteData
from pmsfl.deploy.frames import MAX_JSON, Answer, Op, Request, Status
from pmsfl.deploy.line import Call
from pmsfl.deploy.rehearse import rehearse
from pmsfl.deploy.roster import Facts
from pmsfl.deploy.server import ServerSide
from pmsfl.deploy.settings import Guard, Patience
from pmsfl.deploy.site import SiteSide
from pmsfl.engine.client import Finished
from pmsfl.engine.plan import Keys
from pmsfl.engine.protocol import Wire
from pmsfl.engine.rows import tensors
from pmsfl.wire.codecs import Codec
from pmsfl.wire.masks import encode_indices
from pmsfl.wire.messages import Kind, Message, split
from pmsfl.wire.tensors import decode_tensor, encode_tensor

from .helpers import NAMES, data_of, recipe, server_of, sites_of, three

AT_ONCE = Patience(2, 60.0, 5.0, 60.0, 600.0, 1e-9, 64)  # nothing is held: a test asks again by itself


class Peer:
    """A site by hand: its requests one at a time, on the server's own thread."""

    def __init__(self, server: ServerSide, name: str, data: SiteData) -> None:
        self.server, self.name, self.data = server, name, data
        self.client = NAMES.index(name)

    def send(self, request: Request | bytes, name: str | None = None) -> Answer:
        data = request if isinstance(request, bytes) else request.encode()
        return Answer.decode(self.server.handle(name or self.name, data))

    def hello(self) -> Answer:
        return self.send(Request(Op.HELLO, info=self.data.facts(None).as_dict() | {"session": self.name}))

    def begin(self, state_round: int = 0) -> Answer:
        request = Request(Op.NEXT, step=1, info={"round": state_round, "personal": 0})
        return self.send(request)

    def step(self, smashed: Tensor, labels: Tensor, step: int = 0, round_: int = 0) -> Request:
        w = self.server.world
        assert w is not None
        data = Wire(w).write_step(round_, self.client, step, smashed, labels)
        return Request(Op.STEP, round_, step, wire=data)


class Scene:
    """A round that waits for its first step, or for its uploads."""

    def __init__(self, path: Path, **changes: Any) -> None:
        wanted = recipe(**({"eval_every": 9} | changes))
        federation = three(sizes=(12, 12, 12))
        self.notes: list[str] = []
        self.server = server_of(path, wanted, federation, AT_ONCE, note=self.notes.append)
        self.server._open(3)
        self.peers = [Peer(self.server, n, data_of(federation, k)) for k, n in enumerate(NAMES)]
        for _ in (1, 2):
            for peer in self.peers:
                peer.hello()
        for _ in (1, 2):
            self.starts = [peer.begin() for peer in self.peers]
        assert [a.info["do"] for a in self.starts] == ["round"] * 3
        assert self.server.world is not None
        self.world = self.server.world
        self.shape = (wanted.batch, *self.world.smashed_shapes[2])

    @property
    def a(self) -> Peer:
        return self.peers[0]

    def batch(self, seed: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        smashed = torch.randn(self.shape, generator=g, dtype=torch.float64)
        return smashed, torch.randint(0, 4, (self.shape[0],), generator=g)

    def to_the_upload(self) -> None:
        """All steps of all three."""
        for step in range(2):
            for _ in (1, 2):
                for k, peer in enumerate(self.peers):
                    answer = peer.send(peer.step(*self.batch(10 * step + k), step))
            assert answer.status == Status.OK

    def finished(self, k: int, bits: Tensor | None = None) -> Finished:
        p = self.world.masked_size(2)
        assert self.server.state is not None
        theta = self.server.state.shared[:p]
        g = torch.Generator().manual_seed(k)
        drawn = torch.rand(p, generator=g, dtype=torch.float64) < theta
        values = (drawn if bits is None else bits).double().unsqueeze(0)
        whole, none = torch.ones(1, p, dtype=torch.bool), torch.zeros(1, p, dtype=torch.bool)
        plain = self.server.state.plain[self.world.plain_view(2).sent].unsqueeze(0)
        return Finished(values, whole, none, plain, [], None, None, None)

    def upload(self, k: int, bits: Tensor | None = None) -> Request:
        return Request(Op.FINISH, 0, wire=Wire(self.world).write_finish(0, k, self.finished(k, bits), 0))

    def everything(self) -> list[Tensor]:
        """All that a message could have changed."""
        live, state = self.server.live, self.server.state
        assert live is not None
        assert state is not None
        found = [t.clone() for t in (*state.to_tensors().values(), *tensors(live.server.rows))]
        found += [live.uploads.values.clone(), live.uploads.contributes.clone(), live.uploads.plain.clone()]
        found += [t.clone() for pair in live.inbox.values() for t in pair]
        return found

    def refuses(self, request: Request | bytes, match: str, name: str | None = None) -> None:
        before = self.everything()
        taken = dict(self.server.live.taken) if self.server.live else {}
        answer = self.a.send(request, name)
        assert answer.status == Status.REFUSED
        assert match in answer.reason
        after = self.everything()
        assert len(before) == len(after)
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
        assert self.server.live is not None
        assert self.server.live.taken == taken


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def with_kind(data: bytes, kind: Kind, change: Callable[[Message], Message]) -> bytes:
    return b"".join((change(m) if m.kind == kind else m).encode() for m in split(data))


def forged(m: Message, **changes: Any) -> Message:
    return Message(**(m.__dict__ | changes))


def test_values_that_are_no_numbers_or_too_large_are_refused(scene: Scene) -> None:
    for value, match in ((float("nan"), "not finite"), (float("inf"), "not finite"), (1e9, "at most")):
        smashed, labels = scene.batch(0)
        smashed[1, 0] = value
        scene.refuses(scene.a.step(smashed, labels), match)


def test_wrong_shapes_codecs_labels_and_counts_are_refused(scene: Scene) -> None:
    smashed, labels = scene.batch(0)
    scene.refuses(scene.a.step(smashed[:-1], labels[:-1]), "expected")
    scene.refuses(scene.a.step(smashed[:, :, 1:], labels), "expected")
    scene.refuses(scene.a.step(smashed, labels[:-1]), "wrong count")
    scene.refuses(scene.a.step(smashed, labels + 4), "a class that does not exist")
    good = scene.a.step(smashed, labels)
    half = with_kind(
        good.wire, Kind.SMASHED, lambda m: forged(m, codec=Codec.BF16, payload=encode_tensor(smashed, Codec.BF16))
    )
    scene.refuses(Request(Op.STEP, wire=half), "expected FP64")
    signed = with_kind(
        good.wire, Kind.LABELS, lambda m: forged(m, codec=Codec.INT64, payload=encode_tensor(labels - 9, Codec.INT64))
    )
    scene.refuses(Request(Op.STEP, wire=signed), "is not the run's")
    scene.refuses(Request(Op.STEP, wire=good.wire[: len(good.wire) // 2]), "truncated")
    scene.refuses(Request(Op.STEP, wire=good.wire + good.wire), "expected SMASHED, LABELS")
    scene.refuses(Request(Op.STEP), "expected SMASHED, LABELS")


def test_an_oversized_message_is_refused_before_anything_is_allocated(scene: Scene) -> None:
    good = scene.a.step(*scene.batch(0))
    huge = bytearray(good.wire)
    struct.pack_into("<Q", huge, 24, 1 << 62)  # the declared payload
    scene.refuses(Request(Op.STEP, wire=bytes(huge)), "exceeds the limit")
    wide = Message(Kind.SMASHED, Codec.FP64, (0, 2**31), b"", Wire(scene.world).run, 0, 0, 0).encode()
    scene.refuses(Request(Op.STEP, wire=wide), "expected")
    scene.refuses(good.encode() + bytes(scene.server.limit), "exceeds the limit")
    frame = bytearray(good.encode())
    struct.pack_into("<I", frame, 20, MAX_JSON + 1)
    scene.refuses(bytes(frame), "at most")


def test_replayed_misplaced_and_out_of_order_messages_are_refused(scene: Scene) -> None:
    a, b, _ = scene.peers
    smashed, labels = scene.batch(0)
    scene.refuses(a.step(smashed, labels, step=1), "out of order")
    scene.refuses(a.step(smashed, labels, round_=1), "not under way")
    scene.refuses(Request(Op.STEP, 0, 0, wire=b.step(smashed, labels).wire), "replayed or misplaced")
    other = with_kind(a.step(smashed, labels).wire, Kind.SMASHED, lambda m: forged(m, run=m.run ^ 1))
    scene.refuses(Request(Op.STEP, wire=other), "replayed or misplaced")
    assert a.send(a.step(smashed, labels)).status == Status.WAIT  # it counts
    scene.refuses(a.step(smashed + 1.0, labels), "with other content")
    for peer in scene.peers[1:]:
        peer.send(peer.step(*scene.batch(1)))
    first = a.send(a.step(smashed, labels))
    assert first.status == Status.OK
    assert a.send(a.step(smashed, labels)) == first  # a retry, not a second step
    scene.refuses(a.step(smashed + 1.0, labels), "out of order")
    scene.refuses(Request(Op.FINISH, 0, wire=b""), "comes after 1 of 2 steps")
    scene.refuses(Request(Op.SUMS, 0), "no evaluation")
    scene.refuses(Request(Op.REPORT, 0), "no evaluation")


def test_a_name_that_is_not_on_the_list_is_refused(scene: Scene) -> None:
    scene.refuses(scene.a.step(*scene.batch(0)), "not one of this run", "mallory")


def test_a_site_cannot_speak_for_another(scene: Scene) -> None:
    """The name comes from the certificate: what b's messages say in a's name is misplaced."""
    scene.refuses(scene.peers[1].step(*scene.batch(0)), "replayed or misplaced", "a")


def test_masks_of_a_wrong_length_or_with_trailing_bits_are_refused(scene: Scene) -> None:
    scene.to_the_upload()
    good = scene.upload(0)

    def cut(m: Message) -> Message:
        return forged(m, shape=(m.shape[0] - 8,), payload=m.payload[:-1])

    def trailing(m: Message) -> Message:
        return forged(m, shape=(m.shape[0] + 3,))

    scene.refuses(Request(Op.FINISH, wire=with_kind(good.wire, Kind.MASK, cut)), "expected (324,)")
    p = scene.world.masked_size(2)
    assert p % 8 == 4

    def dirty(m: Message) -> Message:
        return forged(m, payload=m.payload[:-1] + bytes([m.payload[-1] | 0x80]))

    scene.refuses(Request(Op.FINISH, wire=with_kind(good.wire, Kind.MASK, dirty)), "beyond the")
    # One coordinate becomes personal: the mask must have one bit less.
    first = Message(
        Kind.PERSONAL, Codec.INDICES, (p,), encode_indices(torch.tensor([0]), p), Wire(scene.world).run, 0, 0
    ).encode()
    scene.refuses(Request(Op.FINISH, wire=first + good.wire), "expected")
    outside = Message(Kind.PERSONAL, Codec.INDICES, (p,), b"\x00\xff\xff\x7f", Wire(scene.world).run, 0, 0).encode()
    scene.refuses(Request(Op.FINISH, wire=outside + good.wire), "out of range")
    scene.refuses(Request(Op.FINISH, wire=with_kind(good.wire, Kind.MASK, trailing)), "expected")


def test_a_mask_that_is_always_zero_or_one_is_flagged_by_its_distance(scene: Scene) -> None:
    scene.to_the_upload()
    p = scene.world.masked_size(2)
    scene.refuses(scene.upload(0, torch.zeros(p, dtype=torch.bool)), "standard deviations")
    scene.refuses(scene.upload(0, torch.ones(p, dtype=torch.bool)), "standard deviations")
    assert scene.a.send(scene.upload(0)).status == Status.WAIT  # an honest one is taken
    assert abs(scene.server.mask_scores["a"]) < 4.0
    assert any("standard deviations" in r for r in scene.server.status()["sites"]["a"]["refused"])


def test_norms_that_are_no_numbers_are_refused_with_the_whole_upload(scene: Scene) -> None:
    scene.to_the_upload()
    size = scene.world.plain_view(2).sent.numel()
    for value, match in ((float("nan"), "not finite"), (1e7, "at most")):
        bad = encode_tensor(torch.full((size,), value, dtype=torch.float64), Codec.FP64)
        wire = with_kind(scene.upload(0).wire, Kind.NORMS, lambda m, bad=bad: forged(m, payload=bad))  # type: ignore[misc]
        scene.refuses(Request(Op.FINISH, wire=wire), match)
    scene.refuses(Request(Op.FINISH, 0, 0, {"entropy": [0.5, 2.0]}, scene.upload(0).wire), "must lie in 0..1")
    scene.refuses(Request(Op.FINISH, 0, 0, {"trips": [[1.0]]}, scene.upload(0).wire), "pair of numbers")


def test_an_enrolment_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    server = server_of(tmp_path, recipe(), three(), AT_ONCE)
    server._open(1)
    facts = data_of(three(), 0).facts(None).as_dict() | {"session": "x"}
    for change, match in (
        ({"train": -1}, "whole number"),
        ({"mean": [float(10**30)], "squares": [-1.0]}, "negative"),
        ({"shape": [8]}, "do not go together"),
        ({"depth": 0}, "whole number"),
        ({"train": 10**9}, "steps a round"),
    ):
        answer = Answer.decode(server.handle("a", Request(Op.HELLO, info=facts | change).encode()))
        assert answer.status == Status.REFUSED
        assert match in answer.reason
    assert server.roster.facts == {}
    assert Facts.read(facts).train == 17


# --- fuzz


def mutations(seeds: list[bytes], count: int) -> Iterator[bytes]:
    """Damaged frames: bits flipped, bytes cut, doubled and moved; in half of them the checksum is made good again."""
    rng = random.Random(7)
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        kind = rng.randrange(6)
        if kind == 0:
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[rng.randrange(len(data)) :]
        elif kind == 2:
            at = rng.randrange(len(data))
            data[at:at] = rng.randbytes(rng.randint(1, 64))
        elif kind == 3:
            data = bytearray(rng.randbytes(rng.randint(0, 200)))
        elif kind == 4:
            at = rng.randrange(len(data))
            del data[at : at + rng.randint(1, 16)]
        else:  # a header field of the first wire message, set to anything; the frame itself stays sound
            request = Request.decode(bytes(data))
            if not request.wire:
                continue
            wire = bytearray(request.wire)
            at = rng.choice([0, 4, 5, 6, 7, 8, 12, 16, 20, 24, 32])
            before = bytes(wire)
            wire[at : at + 1] = bytes([rng.randrange(256)])
            if bytes(wire) == before:
                continue
            data = bytearray(Request(request.op, request.round, request.step, request.info, bytes(wire)).encode())
        yield bytes(data)


def test_ten_thousand_damaged_messages_are_all_refused_and_change_nothing(scene: Scene) -> None:
    good = [
        scene.a.step(*scene.batch(0)).encode(),
        scene.upload(0).encode(),
        Request(Op.SUMS, 0, 3, {"draw": 0, "mode": 0, "index": 0}, scene.a.step(*scene.batch(1)).wire).encode(),
        Request(Op.REPORT, 0, 1, {"right": [[1]]}).encode(),
        Request(Op.HELLO, info=scene.a.data.facts(None).as_dict()).encode(),
    ]
    before, refused = scene.everything(), 0
    roster, totals = scene.server.roster.as_dict(), scene.server.books.totals.ledger.as_dict()
    for data in mutations(good, 12_500):
        if data in good:
            continue
        answer = Answer.decode(scene.server.handle("a", data))
        assert answer.status == Status.REFUSED, data
        assert answer.reason
        assert "cannot be handled" not in answer.reason, answer.reason
        refused += 1
    assert refused >= 10_000
    assert all(torch.equal(x, y) for x, y in zip(before, scene.everything(), strict=True))
    assert scene.server.roster.as_dict() == roster
    assert scene.server.books.totals.ledger.as_dict() == totals
    # And the round goes on as if nothing had happened.
    scene.to_the_upload()


# --- a hostile server


def meddled(
    path: Path, change: Callable[[Answer, Request], Answer], upload_draw: str = "independent", **more: Any
) -> tuple[list[str], dict[str, str]]:
    """Site b's notes when a server changes what it tells b."""
    wanted, federation = recipe(rounds=1, eval_every=9, upload_draw=upload_draw), three()
    quick = Patience(2, 1.0, 1.0, 1.0, 2.0, 0.3, 64)
    server, sites = server_of(path, wanted, federation, quick), sites_of(path, wanted, federation)
    notes: list[str] = []
    sites["b"] = SiteSide(path / "b", data_of(federation, 1), keys=Keys.of_seed(0), note=notes.append, **more)

    def wrap(site: str, call: Call) -> Call:
        if site != "b":
            return call
        return lambda data: change(Answer.decode(call(data)), Request.decode(data)).encode()

    return notes, rehearse(server, sites, 1, wrap)


def with_tensor(answer: Answer, kind: Kind, change: Callable[[Tensor], Tensor]) -> Answer:
    def one(m: Message) -> Message:
        return forged(m, payload=encode_tensor(change(decode_tensor(m.payload, m.shape, m.codec)), m.codec))

    return Answer(answer.status, answer.info, with_kind(answer.wire, kind, one))


def test_theta_of_zero_and_one_is_clamped_by_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    start = SiteSide._start

    def watched(self: SiteSide, answer: Answer) -> tuple[Tensor, Tensor]:
        out = start(self, answer)
        seen.append(out[0])
        return out

    monkeypatch.setattr(SiteSide, "_start", watched)

    def change(answer: Answer, r: Request) -> Answer:
        return with_tensor(answer, Kind.THETA, lambda t: (t > 0.5).double()) if r.op == Op.NEXT else answer

    notes, _ = meddled(tmp_path, change)
    assert any("outside [0.01, 0.99]: clamped" in n for n in notes)
    assert all(float(t.min()) >= 0.01 and float(t.max()) <= 0.99 for t in seen)


def test_huge_gradients_are_clipped_by_the_site(tmp_path: Path) -> None:
    def change(answer: Answer, r: Request) -> Answer:
        return with_tensor(answer, Kind.GRADIENT, lambda t: t * 1e9) if r.op == Op.STEP else answer

    notes, ended = meddled(tmp_path, change)
    assert any("clipped to 10" in n for n in notes)
    assert ended["b"] == "the job is over"


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"frozen": "0" * 64}, "not those of the recipe's seed"),
        ({"recipe": recipe(rounds=1, eval_every=9, seed=1).to_toml()}, "not the one that was offered"),
        ({"recipe": recipe(rounds=1, eval_every=9, model="os:system").to_toml()}, "code from elsewhere"),
        ({"run": "../../etc"}, "letters, digits"),
        ({"client": 99}, "cannot be read"),
    ],
)
def test_another_manifest_is_refused_by_the_site(tmp_path: Path, changed: dict[str, Any], match: str) -> None:
    def change(answer: Answer, r: Request) -> Answer:
        if r.op != Op.HELLO or answer.status != Status.OK:
            return answer
        return Answer(answer.status, answer.info | changed)

    notes, ended = meddled(tmp_path, change)
    assert match in ended["b"] or any(match in n for n in notes)


def test_a_run_that_changed_since_enrolment_is_refused(tmp_path: Path) -> None:
    """The seed is pinned: other frozen weights under the same name of a run are not trained on."""
    wanted, federation = recipe(rounds=1, eval_every=9), three()
    quick = Patience(2, 1.0, 1.0, 1.0, 2.0, 0.3, 64)
    sites = sites_of(tmp_path, wanted, federation)
    rehearse(server_of(tmp_path, wanted, federation, quick), sites, 1)
    other = wanted.replace(seed=5)
    server = server_of(tmp_path / "other", other, federation, quick)
    notes: list[str] = []
    again = sites_of(tmp_path, other, federation, note=notes.append)
    with pytest.raises(Exception, match="too few sites"):
        rehearse(server, again, 1)
    assert sum("not what this site enrolled in" in n for n in notes) == 3


def test_more_steps_than_a_round_has_are_refused_by_the_site(tmp_path: Path) -> None:
    def change(answer: Answer, r: Request) -> Answer:
        return Answer(answer.status, answer.info | {"steps": 500}, answer.wire) if r.op == Op.NEXT else answer

    notes, _ = meddled(tmp_path, change)
    assert any("the server asks for 500 steps" in n for n in notes)


@pytest.mark.parametrize("turn", [1.0, -0.1, 0, "half", None])
def test_a_turn_that_is_none_is_refused_by_the_site(tmp_path: Path, turn: Any) -> None:
    def change(answer: Answer, r: Request) -> Answer:
        known = "turn" in answer.info
        return Answer(answer.status, answer.info | {"turn": turn}, answer.wire) if known else answer

    notes, _ = meddled(tmp_path, change, upload_draw="even")
    assert any("a number in [0, 1) is" in n for n in notes)


def test_a_round_is_not_played_again_and_again(tmp_path: Path) -> None:
    """Every time shows the server the same records once more; a resumed run needs it a few times, not more."""
    wanted, federation = recipe(rounds=1, eval_every=9), three()
    quick = Patience(2, 1.0, 1.0, 1.0, 2.0, 0.3, 64)
    notes: list[str] = []
    for attempt in range(3):
        server = server_of(tmp_path / str(attempt), wanted, federation, quick)
        sites = sites_of(tmp_path, wanted, federation)
        sites["b"] = SiteSide(
            tmp_path / "b", data_of(federation, 1), guard=Guard(repeats=2), note=notes.append, keys=Keys.of_seed(0)
        )
        rehearse(server, sites, 1)
        way = server.books.directory.metrics()[0]["sites"]["b"]
        assert way == ("late" if attempt == 2 else "in")
    assert any("would be played 3 times" in n for n in notes)


def test_a_wide_model_is_refused_by_a_small_site(tmp_path: Path) -> None:
    _, ended = meddled(tmp_path, lambda answer, r: answer, guard=Guard(max_width=2))
    assert "width = 4" in ended["b"]


def test_a_checksum_of_the_frame_is_zlibs(tmp_path: Path) -> None:
    data = Request(Op.STEP, 1, 2, {}, b"abc").encode()
    assert struct.unpack_from("<I", data, 16)[0] == zlib.crc32(b"abc", zlib.crc32(struct.pack("<BII", 3, 1, 2)))
