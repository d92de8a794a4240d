"""A grid of images as a PNG file, by hand: machines that train need not have a drawing library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

GAP = 2  # pixels between images
ZOOM = 2


def grid(rows: Sequence[Tensor]) -> Tensor:
    """Rows of images [n, C, H, W] in [0, 1], one under the other, as one uint8 picture [H', W', 3]."""
    lines = []
    for images in rows:
        shown = images.detach().float().cpu().clamp(0.0, 1.0)
        shown = shown if shown.shape[1] == 3 else shown[:, :1].expand(-1, 3, -1, -1)
        shown = F.interpolate(shown, scale_factor=ZOOM, mode="nearest")
        lines.append(torch.cat(list(F.pad(shown, (0, GAP, 0, GAP), value=1.0)), 2))
    whole = torch.cat(lines, 1)
    return (whole * 255.0).round().to(torch.uint8).permute(1, 2, 0)


def write_png(path: Path, picture: Tensor, about: str = "") -> None:
    """Write a uint8 picture [H, W, 3]; `about` becomes its description."""
    h, w, _ = picture.shape
    raw = np.concatenate((np.zeros((h, 1), np.uint8), picture.numpy().reshape(h, -1)), 1).tobytes()
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)),
        (b"tEXt", b"Description\0" + about.encode("latin-1", "replace")),
        (b"IDAT", zlib.compress(raw, 9)),
        (b"IEND", b""),
    ]
    chunks = (struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
