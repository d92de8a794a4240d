"""The messages of a round, written and read, and what each costs.

`reference` sends these bytes; `cohort` computes on the tensors and counts the same lengths. A deployment sends
them over a network.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from pmsfl.engine.client import Finished
from pmsfl.engine.world import World
from pmsfl.wire.codecs import Codec
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.masks import decode_indices, encode_indices, pack_bits, unpack_bits
from pmsfl.wire.messages import Direction, Kind, Message, WireError, length, split
from pmsfl.wire.tensors import decode_tensor, encode_tensor


class Wire:
    """Writes, reads and counts the messages of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.run = zlib.crc32(world.recipe.to_toml().encode())
        self.shared_kind = Kind.WEIGHTS if world.method.trains == "weights" else Kind.THETA
        self.sends_shared = world.method.uploads != "nothing"

    def _tensor(self, kind: Kind, t: Tensor, codec: Codec, round_: int, client: int, step: int = 0) -> bytes:
        payload = encode_tensor(t, codec)
        return Message(kind, codec, tuple(t.shape), payload, self.run, round_, client, step).encode()

    def _read(self, data: bytes, kinds: list[Kind]) -> list[Message]:
        messages = split(data)
        _expect(messages, kinds)
        return messages

    def _floats(self, m: Message, shape: tuple[int, ...]) -> Tensor:
        if m.shape != shape:
            raise WireError(f"{m.kind.name}: shape {m.shape}, expected {shape}")
        out = decode_tensor(m.payload, m.shape, m.codec, self.world.dtype)
        if not torch.isfinite(out).all():
            raise WireError(
                f"{m.kind.name} of client {m.client} in round {m.round + 1} is not finite; if training diverged, start "
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
        if self.sends_shared:
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
                plain = self._floats(m, (size,))
            else:
                shared = self._floats(m, (self.world.masked_size(depth),))
        return shared, plain

    def start_bytes(self, depth: int) -> dict[Kind, int]:
        """Encoded lengths of `write_start`."""
        w, out = self.world, {}
        if self.sends_shared:
            out[self.shared_kind] = length(self.shared_kind, (w.masked_size(depth),), w.codec)
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
            return self._floats(smashed, smashed.shape), torch.zeros(smashed.shape[0], dtype=torch.int64)
        smashed, labels = self._read(data, [Kind.SMASHED, Kind.LABELS])
        if labels.codec != self.world.label_codec:
            raise WireError(f"LABELS of client {labels.client}: codec {labels.codec.name} is not the run's")
        y = decode_tensor(labels.payload, labels.shape, labels.codec)
        if labels.shape != smashed.shape[:1] or (y.numel() and int(y.max()) >= self.world.federation.classes):
            raise WireError(f"LABELS of client {labels.client}: wrong count, or a class that does not exist")
        return self._floats(smashed, smashed.shape), y.to(self.world.device)

    def write_gradient(self, round_: int, client: int, step: int, gradient: Tensor) -> bytes:
        """dL/dq [B, ...] of one client."""
        return self._tensor(Kind.GRADIENT, gradient, self.world.cut_codec, round_, client, step)

    def read_gradient(self, data: bytes, shape: tuple[int, ...]) -> Tensor:
        """dL/dq as the client receives it."""
        return self._floats(self._read(data, [Kind.GRADIENT])[0], shape)

    def write_features(self, round_: int, client: int, step: int, features: Tensor, up: bool) -> bytes:
        """The U-shape's middle: features [B, ...] down, or their gradient up."""
        kind = Kind.FEATURE_GRADIENT if up else Kind.FEATURES
        return self._tensor(kind, features, self.world.cut_codec, round_, client, step)

    def read_features(self, data: bytes, shape: tuple[int, ...], up: bool) -> Tensor:
        """Features, or their gradient, as the other side receives them."""
        return self._floats(self._read(data, [Kind.FEATURE_GRADIENT if up else Kind.FEATURES])[0], shape)

    def feature_bytes(self, shape: tuple[int, ...]) -> int:
        """Encoded length of either; shape [B, ...]."""
        return length(Kind.FEATURES, shape, self.world.cut_codec)

    def step_bytes(self, shape: tuple[int, ...]) -> dict[Kind, int]:
        """Encoded lengths of one client's step; shape [B, ...] of its smashed data."""
        w = self.world
        costs = {
            Kind.SMASHED: length(Kind.SMASHED, shape, w.cut_codec),
            Kind.GRADIENT: length(Kind.GRADIENT, shape, w.cut_codec),
        }
        return costs if w.u_shape else costs | {Kind.LABELS: length(Kind.LABELS, shape[:1], w.label_codec)}

    # --- end of a round: indices of new personal coordinates, the upload, norms

    def write_finish(self, round_: int, client: int, done: Finished, i: int) -> bytes:
        """What client i of `done` uploads."""
        w, out = self.world, b""
        size = done.values.shape[1]
        new = done.fresh[i].nonzero().squeeze(1)
        if len(new) and self.sends_shared:
            payload = encode_indices(new.cpu(), size)
            out += Message(Kind.PERSONAL, Codec.INDICES, (size,), payload, self.run, round_, client).encode()
        values = done.values[i][done.contributes[i]]
        if w.method.uploads == "bits":
            payload = pack_bits(values.cpu() > 0.5)
            shape = (len(values),)
            out += Message(Kind.MASK, Codec.PACKED_BITS, shape, payload, self.run, round_, client).encode()
        elif self.sends_shared:
            out += self._tensor(self.shared_kind, values, w.codec, round_, client)
        if done.plain.shape[1]:
            out += self._tensor(Kind.NORMS, done.plain[i], w.codec, round_, client)
        return out

    def read_finish(self, data: bytes, depth: int, personal: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """values [P_d], contributes [P_d], shared norms and the client's whole personal set [P_d].

        personal: what the server remembers of the client's set; it only grows.
        """
        w = self.world
        p, q = w.masked_size(depth), self.norms_size(depth)
        personal = personal.clone()
        value_kinds = {"bits": [Kind.MASK], "nothing": []}.get(w.method.uploads, [self.shared_kind])
        kinds = value_kinds + [Kind.NORMS] * (q > 0)
        messages = split(data)
        if messages and messages[0].kind == Kind.PERSONAL and self.sends_shared:
            first = messages.pop(0)
            personal[decode_indices(first.payload, p).to(w.device)] = True
        _expect(messages, kinds)
        values = torch.zeros(p, dtype=w.dtype, device=w.device)
        plain = torch.zeros(q, dtype=w.dtype, device=w.device)
        count = int((~personal).sum())
        for m in messages:
            if m.kind == Kind.MASK:
                values[~personal] = unpack_bits(m.payload, count).to(w.device, w.dtype)
            elif m.kind == self.shared_kind:
                values[~personal] = self._floats(m, (count,))
            else:
                plain = self._floats(m, (q,))
        return values, ~personal, plain, personal

    def finish_bytes(self, done: Finished, i: int) -> dict[Kind, int]:
        """Encoded lengths of `write_finish`."""
        out: dict[Kind, int] = {}
        space = done.values.shape[1]
        new = done.fresh[i].nonzero().squeeze(1)
        if len(new) and self.sends_shared:
            header = length(Kind.PERSONAL, (0,), Codec.PACKED_BITS)
            out[Kind.PERSONAL] = header + len(encode_indices(new.cpu(), space))
        return out | self.upload_bytes(int(done.contributes[i].sum()), done.plain.shape[1])

    def upload_bytes(self, coordinates: int, norms: int) -> dict[Kind, int]:
        """Encoded lengths of an upload of so many coordinates and norms, without new personal indices."""
        w, out = self.world, {}
        if w.method.uploads == "bits":
            out[Kind.MASK] = length(Kind.MASK, (coordinates,), Codec.PACKED_BITS)
        elif self.sends_shared:
            out[self.shared_kind] = length(self.shared_kind, (coordinates,), w.codec)
        if norms:
            out[Kind.NORMS] = length(Kind.NORMS, (norms,), w.codec)
        return out


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
