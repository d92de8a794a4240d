"""The entropy coder behind `mask_codec` and `theta_codec`: ANS from the library `constriction`.

A stack of 32-bit words, little endian, without the zero bytes at its end. Every model is made of whole numbers that
both sides have, divided once, so the words are the same on every machine. Exactly one sequence of words decodes to
given symbols and leaves the stack empty: nothing can be hidden in a payload, or written in two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pmsfl.errors import PmsflError
from pmsfl.wire.codecs import WireError

Symbols = npt.NDArray[np.int32]
Model = tuple[int, Any]  # how many symbols in a row, and the library's model of each
_WORD = np.dtype("<u4")


def library(key: str = "an entropy codec") -> Any:
    """The module `constriction`; PmsflError naming the recipe's `key` where it is not installed."""
    try:
        import constriction  # type: ignore[import-untyped]
    except ImportError:
        raise PmsflError(
            f"{key} needs the library constriction, which is not installed: pip install 'pmsfl[wire]', or take "
            "mask_codec = 'packed' and theta_codec = 'native'"
        ) from None
    return constriction


@cache
def bernoulli(ones: int, of: int) -> Any:
    """The model of a bit that is 1 with probability ones / of."""
    return library().stream.model.Bernoulli(ones / of, perfect=False)


def categorical(frequencies: npt.NDArray[np.int64]) -> Any:
    """The model of symbols 0..m-1 (m > 1) with these frequencies, all positive."""
    return library().stream.model.Categorical(frequencies / frequencies.sum(), perfect=False)


def encode(symbols: Symbols, models: Sequence[Model]) -> bytes:
    """The words of symbols, of which the first few follow the first model, and so on."""
    coder = library().stream.stack.AnsCoder()
    end = len(symbols)
    for count, model in reversed(models):  # a stack: what is to come out first goes in last
        coder.encode_reverse(symbols[end - count : end], model)
        end -= count
    words: bytes = coder.get_compressed().astype(_WORD, copy=False).tobytes()
    return words.rstrip(b"\0")


def decode(words: bytes | memoryview, models: Sequence[Model]) -> Symbols:
    """The symbols that `encode` wrote; WireError unless these are its words and no others."""
    if len(words) and words[-1] == 0:
        raise WireError("coded words end in a zero byte, which no encoder writes")
    padded = bytes(words) + bytes(-len(words) % _WORD.itemsize)
    # frombuffer refuses an empty buffer
    stack = np.frombuffer(padded, dtype=_WORD).astype(np.uint32) if padded else np.empty(0, dtype=np.uint32)
    coder = library().stream.stack.AnsCoder(stack)
    parts = [coder.decode(model, count) for count, model in models]
    if not coder.is_empty():
        raise WireError("coded words do not belong to these values: something is left over after the last")
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
