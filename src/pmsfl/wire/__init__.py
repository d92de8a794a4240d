"""What travels between clients and server: messages, payload codecs, and the count of every byte."""

from __future__ import annotations

from pmsfl.wire.codecs import Codec, WireError
from pmsfl.wire.coded_masks import decode_bits, encode_bits
from pmsfl.wire.ledger import Ledger, LedgerError
from pmsfl.wire.masks import decode_indices, encode_indices, pack_bits, unpack_bits
from pmsfl.wire.messages import Direction, Kind, Message, decode, length, split
from pmsfl.wire.tensors import decode_tensor, encode_tensor, label_codec, payload_bytes, round_trip
from pmsfl.wire.units import decode_unit, encode_unit

__all__ = [
    "Codec",
    "Direction",
    "Kind",
    "Ledger",
    "LedgerError",
    "Message",
    "WireError",
    "decode",
    "decode_bits",
    "decode_indices",
    "decode_tensor",
    "decode_unit",
    "encode_bits",
    "encode_indices",
    "encode_tensor",
    "encode_unit",
    "label_codec",
    "length",
    "pack_bits",
    "payload_bytes",
    "round_trip",
    "split",
    "unpack_bits",
]
