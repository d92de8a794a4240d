"""The messages of a round, written and read, and what each costs.

`reference` sends these bytes; `cohort` computes on the tensors and counts the same lengths. A deployment sends
them over a network.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from pmsfl.engine.client import Finished
from pmsfl.engine.plan import round_of
from pmsfl.engine.world import World
from pmsfl.wire.codecs import Codec, payload_bounds
from pmsfl.wire.coded_masks import decode_bits, encode_bits
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.masks import decode_indices, encode_indices, pack_bits, pack_counts, unpack_bits, unpack_counts
from pmsfl.wire.messages import Direction, Kind, Message, WireError, header_bytes, length, split
from pmsfl.wire.tensors import decode_tensor, encode_tensor
from pmsfl.wire.units import decode_unit, encode_unit, unit_round_trip


@dataclass(frozen=True)
class Start:
    """What clients of one depth begin a round with."""

    shared: Tensor  # [P_d] as they receive it: θ that went over the wire is what masks are coded against
    costs: dict[Kind, int]


class Wire:
    """Writes, reads and counts the messages of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.run = zlib.crc32(world.recipe.to_toml().encode())
        self.shared_kind = Kind.WEIGHTS if world.method.trains == "weights" else Kind.THETA
        self.sends_shared = world.method.uploads != "nothing"
        # What goes down is θ, which has codecs of its own, or weights.
        self.down_codec = world.theta_codec if self.shared_kind == Kind.THETA else world.codec
        self.codes_down = self.sends_shared and self.down_codec != world.codec

    def _tensor(self, kind: Kind, t: Tensor, codec: Codec, round_: int, client: int, step: int = 0) -> bytes:
        payload = encode_tensor(t, codec)
        return Message(kind, codec, tuple(t.shape), payload, self.run, round_, client, step).encode()

    def _read(self, data: bytes, kinds: list[Kind]) -> list[Message]:
        messages = split(data)
        _expect(messages, kinds)
        return messages

    def _floats(self, m: Message, shape: tuple[int, ...], codec: Codec) -> Tensor:
        _check(m, shape, codec)
        out = decode_tensor(m.payload, m.shape, m.codec, self.world.dtype)
        if not torch.isfinite(out).all():
            round_ = round_of(self.world.recipe, m.round) + 1
            raise WireError(
                f"{m.kind.name} of client {m.client} in round {round_} is not finite; if training diverged, start "
                "a new run with a lower lr_server, lr_client or lr_score"
            )
        return out.to(self.world.device)

    def norms_size(self, depth: int) -> int:
        """How many plain parameters travel between the server and a client of this depth."""
        return int(self.world.plain_view(depth).shared.sum())

    # --- start of a round: shared vector and norms go down

    def write_start(self, round_: int, client: int, shared: Tensor, plain: Tensor) -> bytes:
        """θ (or weights) and shared norms of the client's depth."""
        codec = self.world.codec
        out = b""
        if self.codes_down:
            payload = encode_unit(shared, self.down_codec)
            shape = tuple(shared.shape)
            out += Message(self.shared_kind, self.down_codec, shape, payload, self.run, round_, client).encode()
        elif self.sends_shared:
            out += self._tensor(self.shared_kind, shared, codec, round_, client)
        if plain.numel():
            out += self._tensor(Kind.NORMS, plain, codec, round_, client)
        return out

    def read_start(self, data: bytes, depth: int, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Shared vector and norms; a shared vector that is never sent is what the client began with: `shared`."""
        size = self.norms_size(depth)
        plain = torch.zeros(0, dtype=self.world.dtype, device=self.world.device)
        kinds = [self.shared_kind] * self.sends_shared + [Kind.NORMS] * (size > 0)
        for m in self._read(data, kinds):
            if m.kind == Kind.NORMS:
                plain = self._floats(m, (size,), self.world.codec)
            elif self.codes_down:
                _check(m, (self.world.masked_size(depth),), self.down_codec)
                shared = decode_unit(m.payload, m.shape[0], m.codec, self.world.dtype).to(self.world.device)
            else:
                shared = self._floats(m, (self.world.masked_size(depth),), self.world.codec)
        return shared, plain

    def start(self, shared: Tensor, depth: int) -> Start:
        """What `read_start` gives for what `write_start` wrote, and the encoded lengths."""
        if not self.codes_down:
            return Start(shared, self.start_bytes(depth))
        received, size = unit_round_trip(shared, self.down_codec)
        return Start(received, self.start_bytes(depth) | {self.shared_kind: header_bytes(1) + size})

    def start_bytes(self, depth: int) -> dict[Kind, int]:
        """Encoded lengths of `write_start`, the greatest where they depend on θ."""
        w, out = self.world, {}
        if self.sends_shared:
            out[self.shared_kind] = most_bytes((w.masked_size(depth),), self.down_codec)
        if size := self.norms_size(depth):
            out[Kind.NORMS] = length(Kind.NORMS, (size,), w.codec)
        return out

    # --- a step: smashed data and labels up, gradient down

    def write_step(self, round_: int, client: int, step: int, smashed: Tensor, labels: Tensor) -> bytes:
        """One client's smashed data [B, ...] and, unless they stay with it, its labels [B]."""
        w = self.world
        out = self._tensor(Kind.SMASHED, smashed, w.cut_codec, round_, client, step)
        if w.u_shape:
            return out
        return out + self._tensor(Kind.LABELS, labels, w.label_codec, round_, client, step)

    def read_step(self, data: bytes) -> tuple[Tensor, Tensor]:
        """Smashed data and labels (none in the U-shape); refuses labels out of range and what is not finite."""
        if self.world.u_shape:
            (smashed,) = self._read(data, [Kind.SMASHED])
            received = self._floats(smashed, smashed.shape, self.world.cut_codec)
            return received, torch.zeros(smashed.shape[0], dtype=torch.int64)
        smashed, labels = self._read(data, [Kind.SMASHED, Kind.LABELS])
        if labels.codec != self.world.label_codec:
            raise WireError(f"LABELS of client {labels.client}: codec {labels.codec.name} is not the run's")
        y = decode_tensor(labels.payload, labels.shape, labels.codec)
        if labels.shape != smashed.shape[:1] or (y.numel() and int(y.max()) >= self.world.federation.classes):
            raise WireError(f"LABELS of client {labels.client}: wrong count, or a class that does not exist")
        return self._floats(smashed, smashed.shape, self.world.cut_codec), y.to(self.world.device)

    def write_gradient(self, round_: int, client: int, step: int, gradient: Tensor) -> bytes:
        """dL/dq [B, ...] of one client."""
        return self._tensor(Kind.GRADIENT, gradient, self.world.gradient_codec, round_, client, step)

    def read_gradient(self, data: bytes, shape: tuple[int, ...]) -> Tensor:
        """dL/dq as the client receives it."""
        return self._floats(self._read(data, [Kind.GRADIENT])[0], shape, self.world.gradient_codec)

    def write_features(self, round_: int, client: int, step: int, features: Tensor, up: bool) -> bytes:
        """The U-shape's middle: features [B, ...] down, or their gradient up."""
        kind, codec = self._features(up)
        return self._tensor(kind, features, codec, round_, client, step)

    def read_features(self, data: bytes, shape: tuple[int, ...], up: bool) -> Tensor:
        """Features, or their gradient, as the other side receives them."""
        kind, codec = self._features(up)
        return self._floats(self._read(data, [kind])[0], shape, codec)

    def _features(self, up: bool) -> tuple[Kind, Codec]:
        w = self.world
        return (Kind.FEATURE_GRADIENT, w.gradient_codec) if up else (Kind.FEATURES, w.cut_codec)

    def feature_bytes(self, shape: tuple[int, ...], up: bool) -> int:
        """Encoded length of features [B, ...], or of their gradient."""
        kind, codec = self._features(up)
        return length(kind, shape, codec)

    def step_bytes(self, shape: tuple[int, ...]) -> dict[Kind, int]:
        """Encoded lengths of one client's step; shape [B, ...] of its smashed data."""
        w = self.world
        costs = {
            Kind.SMASHED: length(Kind.SMASHED, shape, w.cut_codec),
            Kind.GRADIENT: length(Kind.GRADIENT, shape, w.gradient_codec),
        }
        return costs if w.u_shape else costs | {Kind.LABELS: length(Kind.LABELS, shape[:1], w.label_codec)}

    # --- end of a round: indices of new personal coordinates, the upload, norms

    def write_finish(self, round_: int, client: int, done: Finished, i: int, theta: Tensor | None = None) -> bytes:
        """What client i of `done` uploads. theta [P_d]: what it received, where mask bits are coded against it."""
        w, out = self.world, b""
        if payload := self._new_indices(done, i):
            shape = (_still_shared(done, i),)
            out += Message(Kind.PERSONAL, Codec.INDICES, shape, payload, self.run, round_, client).encode()
        values = done.values[i][done.contributes[i]]
        if w.method.uploads == "bits":
            payload = self._mask_payload(done, i, theta)
            bits = self._mask_shape(len(values))
            out += Message(Kind.MASK, w.mask_codec, bits, payload, self.run, round_, client).encode()
        elif self.sends_shared:
            out += self._tensor(self.shared_kind, values, w.codec, round_, client)
        return out + self.write_norms(round_, client, done, i)

    def write_norms(self, round_: int, client: int, done: Finished, i: int) -> bytes:
        """The norms of client i of `done`, alone; nothing where it shares none."""
        if not done.plain.shape[1]:
            return b""
        return self._tensor(Kind.NORMS, done.plain[i], self.world.codec, round_, client)

    def read_norms(self, data: bytes, depth: int) -> Tensor:
        """What `write_norms` wrote: [q]."""
        q = self.norms_size(depth)
        messages = self._read(data, [Kind.NORMS] * (q > 0))
        if not messages:
            return torch.zeros(0, dtype=self.world.dtype, device=self.world.device)
        return self._floats(messages[0], (q,), self.world.codec)

    def _new_indices(self, done: Finished, i: int) -> bytes:
        """New personal coordinates, counted among those that were shared until now; nothing if there are none."""
        if not self.sends_shared or not bool(done.fresh[i].any()):
            return b""
        shared = done.contributes[i] | done.fresh[i]
        return encode_indices(done.fresh[i][shared].nonzero().squeeze(1).cpu(), _still_shared(done, i))

    def _mask_shape(self, coordinates: int) -> tuple[int, ...]:
        """Of a message of mask bits: the mean of several masks takes some a coordinate."""
        several = self.world.method.upload_masks
        return (coordinates,) if several == 1 else (several.bit_length(), coordinates)

    def _mask_payload(self, done: Finished, i: int, theta: Tensor | None) -> bytes:
        several = self.world.method.upload_masks
        if several > 1:
            counts = torch.round(several * done.values[i][done.contributes[i]]).long().cpu()
            return pack_counts(counts, several)
        bits = done.values[i][done.contributes[i]] > 0.5
        if self.world.mask_codec == Codec.PACKED_BITS:
            return pack_bits(bits)
        assert theta is not None
        return encode_bits(bits, theta[done.contributes[i]])

    def read_finish(
        self, data: bytes, depth: int, personal: Tensor, theta: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """values [P_d], contributes [P_d], shared norms and the client's whole personal set [P_d].

        personal: what the server remembers of the client's set; it only grows. theta: what it sent the client [P_d].
        """
        w = self.world
        p, q = w.masked_size(depth), self.norms_size(depth)
        personal = personal.clone()
        value_kinds = {"bits": [Kind.MASK], "nothing": []}.get(w.method.uploads, [self.shared_kind])
        kinds = value_kinds + [Kind.NORMS] * (q > 0)
        messages = split(data)
        if messages and messages[0].kind == Kind.PERSONAL and self.sends_shared:
            first = messages.pop(0)
            shared = (~personal).nonzero().squeeze(1)
            _check(first, (len(shared),), Codec.INDICES)
            personal[shared[decode_indices(first.payload, len(shared)).to(w.device)]] = True
        _expect(messages, kinds)
        values = torch.zeros(p, dtype=w.dtype, device=w.device)
        plain = torch.zeros(q, dtype=w.dtype, device=w.device)
        count = int((~personal).sum())
        for m in messages:
            if m.kind == Kind.MASK:
                _check(m, self._mask_shape(count), w.mask_codec)
                values[~personal] = self._bits(m, ~personal, theta).to(w.device, w.dtype)
            elif m.kind == self.shared_kind:
                values[~personal] = self._floats(m, (count,), w.codec)
            else:
                plain = self._floats(m, (q,), w.codec)
        return values, ~personal, plain, personal

    def _bits(self, m: Message, contributes: Tensor, theta: Tensor | None) -> Tensor:
        several = self.world.method.upload_masks
        if several > 1:
            counts = unpack_counts(m.payload, m.shape[1], several)
            return counts.to(self.world.dtype) / several
        if m.codec == Codec.PACKED_BITS:
            return unpack_bits(m.payload, m.shape[0])
        assert theta is not None
        return decode_bits(m.payload, theta[contributes])

    def finish_bytes(self, done: Finished, i: int, theta: Tensor | None = None) -> dict[Kind, int]:
        """Encoded lengths of `write_finish`."""
        w, out = self.world, dict[Kind, int]()
        if payload := self._new_indices(done, i):
            out[Kind.PERSONAL] = header_bytes(1) + len(payload)
        out |= self.upload_bytes(int(done.contributes[i].sum()), done.plain.shape[1])
        if w.method.uploads == "bits" and w.mask_codec != Codec.PACKED_BITS:
            out[Kind.MASK] = header_bytes(1) + len(self._mask_payload(done, i, theta))
        return out

    def upload_bytes(self, coordinates: int, norms: int) -> dict[Kind, int]:
        """Encoded lengths of an upload of so many coordinates and norms, without new personal indices; the greatest
        where they depend on the mask."""
        w, out = self.world, dict[Kind, int]()
        if w.method.uploads == "bits":
            out[Kind.MASK] = most_bytes(self._mask_shape(coordinates), w.mask_codec)
        elif self.sends_shared:
            out[self.shared_kind] = length(self.shared_kind, (coordinates,), w.codec)
        if norms:
            out[Kind.NORMS] = length(Kind.NORMS, (norms,), w.codec)
        return out

    @property
    def bounded(self) -> list[str]:
        """Which counts can only be bounded before a round is played, as the ledger names them."""
        coded = [f"{self.shared_kind.name.lower()}.down"] * (self.codes_down and self.down_codec == Codec.CODED_UNIT)
        bits = self.world.method.uploads == "bits" and self.world.mask_codec == Codec.CODED_BITS
        return coded + ["mask.up"] * bits


def most_bytes(shape: tuple[int, ...], codec: Codec) -> int:
    """The greatest encoded length of a message of this shape."""
    return header_bytes(len(shape)) + payload_bounds(shape, codec)[1]


def _still_shared(done: Finished, i: int) -> int:
    """How many coordinates client i shared until this round."""
    return int((done.contributes[i] | done.fresh[i]).sum())


def _check(m: Message, shape: tuple[int, ...], codec: Codec) -> None:
    """WireError where a message is not as the run's recipe has it."""
    if m.shape != shape:
        raise WireError(f"{m.kind.name}: shape {m.shape}, expected {shape}")
    if m.codec != codec:
        raise WireError(f"{m.kind.name} of client {m.client}: codec {m.codec.name} is not the run's, {codec.name}")


def _expect(messages: list[Message], kinds: list[Kind]) -> None:
    """Exactly these kinds in this order, or WireError."""
    if [m.kind for m in messages] != kinds:
        found = ", ".join(m.kind.name for m in messages)
        wanted = ", ".join(k.name for k in kinds)
        raise WireError(f"expected {wanted or 'nothing'}, got {found or 'nothing'}")


def count(ledger: Ledger, direction: Direction, costs: dict[Kind, int], clients: int = 1) -> None:
    """Enter the same costs for some clients."""
    for kind, size in costs.items():
        ledger.add(kind, direction, size * clients, clients)


def count_encoded(ledger: Ledger, direction: Direction, data: bytes) -> bytes:
    """Enter every message in `data` by its encoded length; returns the data."""
    for m in split(data):
        ledger.add(m.kind, direction, m.encoded_bytes)
    return data
