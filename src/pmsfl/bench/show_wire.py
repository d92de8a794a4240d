"""`pmsfl bench wire` for people."""

from __future__ import annotations

from typing import Any, TextIO

from pmsfl.report.console import count, number, percent, say, table

SPEEDS = ("mb_s_encode", "mb_s_decode")


def show_wire(result: dict[str, Any], stream: TextIO) -> None:
    """Bits, ratios and speeds of every codec."""
    say(
        f"{result['recipe']}, {result['model']}, round {result['round'] + 1}, {result['device']}: {result['source']}",
        stream,
    )
    mask, indices = result["mask"], result["indices"]
    head, packed = mask["header_bits_per_parameter"], mask["packed_bits_per_parameter"]
    rows = [
        ("mask, packed", number(packed + head, 4), number(32 / (packed + head), 1), *_speeds(mask, "_packed"), ""),
        ("mask, entropy", number(mask["bits_per_parameter"] + head, 4), number(mask["ratio"], 1), *_speeds(mask), ""),
    ]
    rows += [
        (f"θ, {name}", number(c["bits_per_parameter"], 4), number(c["ratio"], 1), *_speeds(c), _error(c["max_error"]))
        for name, c in result["theta"].items()
    ]
    for title, part in (("smashed data", "tensors"), ("gradient", "gradients")):
        rows += [
            (
                f"{title}, {name}",
                number(c["bits_per_value"], 4),
                number(c["ratio"], 2),
                *_speeds(c),
                _error(c["max_error"]),
            )
            for name, c in result[part].items()
        ]
    headers = ("message, codec", "bits each", "fp32 / it", "MB/s encode", "MB/s decode", "largest error")
    table(f"on the wire, {count(result['parameters'])} parameters", headers, rows, stream)
    say(
        f"Coded masks take {number(mask['bits_per_parameter'], 4)} bits per parameter, "
        f"{percent(100 * (mask['over_cross_entropy'] - 1))} over their cross-entropy against θ "
        f"({number(mask['cross_entropy'], 4)}), and {number(head, 4)} of headers; "
        f"θ itself has {number(mask['entropy'], 4)} bits.",
        stream,
    )
    say(_about_indices(indices), stream)


def _about_indices(indices: dict[str, Any]) -> str:
    if indices["indices"]:
        text = (
            f"{count(indices['indices'])} new personal indices take {number(indices['bits_per_index'])} bits each "
            f"({number(indices['entropy_per_index'])} if they fell anywhere), "
            f"{percent(100 * indices['of_packed_mask'])} of the packed mask in this round"
        )
    else:
        text = "No new personal indices in this round"
    if "of_mask_in_run" in indices:
        text += f"; over the whole run {percent(100 * indices['of_mask_in_run'])} of the masks' bytes"
    if "of_mask_in_last_quarter" in indices:
        text += f", in its last quarter {percent(100 * indices['of_mask_in_last_quarter'])}"
    return text + "."


def _speeds(of: dict[str, float], suffix: str = "") -> tuple[str, str]:
    return number(of[SPEEDS[0] + suffix], 0), number(of[SPEEDS[1] + suffix], 0)


def _error(value: float) -> str:
    return f"{value:.2g}"
