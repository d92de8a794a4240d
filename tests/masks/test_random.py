"""Keyed bits: pinned values, no shared keys, and draws that are as random as they claim."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pmsfl.engine.plan import Keys
from pmsfl.masks.random import Stream, fold, integers, normal, permutation, root, turned, uniform, words

KEY = root(0, Stream.FORWARD)
M64 = (1 << 64) - 1
relaxed = settings(deadline=None, max_examples=60)


def unsigned_words(key: int, n: int) -> list[int]:
    """SplitMix64 in Python's own integers."""
    out = []
    for i in range(1, n + 1):
        z = (key + i * 0x9E3779B97F4A7C15) & M64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
        out.append(z ^ (z >> 31))
    return out


# --- golden vectors: a changed bit would change every run there is


@pytest.mark.parametrize(
    ("seed", "frozen", "forward"),
    [
        (0, 3511956589636015800, 1968600375792979316),
        (1, -2621943943996639333, -145873219006005303),
        (2**63 - 1, 874380297830270793, -5420932595084707396),
        (-5, 2225830576377416045, -5356044518991774484),
        (2**70 + 3, -3611775683677246629, -9084055080188281994),
    ],
)
def test_root_keys_are_pinned(seed: int, frozen: int, forward: int) -> None:
    assert (int(root(seed, Stream.FROZEN)), int(root(seed, Stream.FORWARD))) == (frozen, forward)


def test_folds_are_pinned() -> None:
    expected = {
        0: 2008031019604486945,
        1: -5075852594226771771,
        -1: 2781853871577414253,
        2**40: -1479575663280469078,
        2**63 - 1: -7041096659806315568,
    }
    assert {d: int(fold(KEY, d)) for d in expected} == expected


def test_draws_are_pinned() -> None:
    assert words(KEY, 3).tolist() == [-776144107353697445, -2194790241098617145, 3025053569689992160]
    assert (uniform(KEY, 5) * 2**24).tolist() == [16071317, 15379347, 14781065, 8049326, 2751270]
    assert integers(KEY, 8, 10).tolist() == [9, 8, 1, 9, 4, 6, 0, 0]
    assert integers(KEY, 3, 2**31 - 1).tolist() == [2057128580, 1891976434, 352162584]
    assert permutation(KEY, 10).tolist() == [5, 1, 8, 3, 0, 9, 6, 7, 2, 4]
    assert [v.hex() for v in normal(KEY, 4).tolist()] == [
        "0x1.ba233919e61d3p+0",
        "0x1.2e1b2ac2fb822p+0",
        "-0x1.f4d6385028cd9p-1",
        "0x1.7169d8b7f7e47p+0",
    ]


def test_stream_numbers_are_part_of_every_recorded_run() -> None:
    names = "FROZEN SCORES SAMPLING BATCHES AUGMENT FORWARD UPLOAD EVALUATION SERVER DROPOUT ORDER CONTROL NOISE"
    assert [Stream[n] for n in names.split()] == list(range(1, 14))


@relaxed
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 40))
def test_words_are_splitmix64(key: int, n: int) -> None:
    assert [w & M64 for w in words(torch.tensor(key), n).tolist()] == unsigned_words(key & M64, n)


# --- shapes and prefixes


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_every_draw_has_the_length_asked_for(n: int) -> None:
    assert words(KEY, n).shape == uniform(KEY, n).shape == integers(KEY, n, 3).shape == (n,)
    assert permutation(KEY, n).tolist() == sorted(permutation(KEY, n).tolist(), key=lambda i: int(words(KEY, n)[i]))
    assert normal(KEY, n).shape == (n,)


@relaxed
@given(st.integers(0, 40), st.integers(0, 40))
def test_a_shorter_draw_is_a_prefix_of_a_longer_one(a: int, b: int) -> None:
    short, long = sorted((a, b))
    assert torch.equal(uniform(KEY, short), uniform(KEY, long)[:short])
    assert torch.equal(integers(KEY, short, 9), integers(KEY, long, 9)[:short])
    assert torch.equal(normal(KEY, short), normal(KEY, long)[:short])


def test_batched_keys_draw_what_single_keys_draw() -> None:
    keys = fold(KEY, torch.arange(6)).reshape(2, 3)
    draws: list[Callable[[Tensor], Tensor]] = [
        lambda k: words(k, 5),
        lambda k: uniform(k, 5, torch.float64),
        lambda k: integers(k, 5, 7),
        lambda k: permutation(k, 5),
    ]
    for draw in draws:
        single = torch.stack([draw(k) for k in keys.flatten()]).reshape(2, 3, 5)
        assert torch.equal(draw(keys), single)
        assert torch.equal(torch.func.vmap(torch.func.vmap(draw))(keys), single)


@given(st.integers(-(2**63), 2**63 - 1))
@relaxed
def test_folding_an_integer_or_a_tensor_is_the_same(data: int) -> None:
    assert torch.equal(fold(KEY, data), fold(KEY, torch.tensor(data)))


def test_seeds_count_modulo_two_to_the_64() -> None:
    assert torch.equal(root(-1, Stream.NOISE), root(2**64 - 1, Stream.NOISE))
    assert not torch.equal(root(-1, Stream.NOISE), root(1, Stream.NOISE))


def test_uniforms_are_the_same_in_every_float_type() -> None:
    assert torch.equal(uniform(KEY, 1000).double(), uniform(KEY, 1000, torch.float64))


# --- independence


def test_no_two_keys_of_a_run_are_equal() -> None:
    keys = Keys.of_seed(0)
    clients = torch.arange(12)
    grid = [keys.client(s, clients, r, i) for s in Stream for r in range(8) for i in range(8)]
    shared = [keys.at(s, r) for s in Stream for r in range(8)]
    steps = [fold(keys.at(s, r), i) for s in Stream for r in range(8) for i in range(8)]
    every = torch.cat((*grid, torch.stack([*keys.roots.values(), *shared, *steps])))
    assert len(set(every.tolist())) == len(every)


def test_seeds_and_streams_never_share_a_root() -> None:
    roots = [int(root(seed, s)) for seed in range(-50, 200) for s in Stream]
    assert len(set(roots)) == len(roots)


def test_streams_clients_rounds_and_steps_are_uncorrelated() -> None:
    keys, n = Keys.of_seed(3), 20_000
    places = [(Stream.FORWARD, 0, 0, 0), (Stream.UPLOAD, 0, 0, 0), (Stream.FORWARD, 1, 0, 0)]
    places += [(Stream.FORWARD, 0, 1, 0), (Stream.FORWARD, 0, 0, 1)]
    drawn = torch.stack([uniform(keys.client(*p), n, torch.float64) for p in places])
    apart = torch.corrcoef(drawn) - torch.eye(len(places))
    assert apart.abs().max() < 4 / math.sqrt(n)


def test_neighbouring_keys_differ_in_half_of_their_bits() -> None:
    a, b = (words(fold(KEY, d), 2000) for d in (0, 1))
    flipped = sum(bin(w & M64).count("1") for w in (a ^ b).tolist()) / (2000 * 64)
    assert abs(flipped - 0.5) < 0.005


# --- distributions (fixed keys, so a test that passes goes on passing)


def chi_square(values: Tensor, bins: int) -> float:
    counts = torch.bincount(values, minlength=bins).double()
    expected = len(values) / bins
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_uniforms_and_integers_are_uniform(seed: int) -> None:
    key, bins = root(seed, Stream.NOISE), 100
    # chi-square with 99 degrees of freedom: mean 99, deviation 14; 160 is its 0.9999 quantile
    assert chi_square((uniform(key, 50_000, torch.float64) * bins).long(), bins) < 160
    assert chi_square(integers(key, 50_000, bins), bins) < 160
    pairs = uniform(key, 50_000, torch.float64).reshape(-1, 2)  # both uniforms of one word
    assert chi_square((pairs[:, 0] * 10).long() * 10 + (pairs[:, 1] * 10).long(), bins) < 160


def test_uniforms_lie_in_the_half_open_unit_interval() -> None:
    u = uniform(fold(KEY, torch.arange(50)), 2001)
    assert u.min() >= 0.0
    assert u.max() < 1.0


def test_every_permutation_is_one_and_all_orders_are_equally_likely() -> None:
    orders = permutation(fold(KEY, torch.arange(6000)), 3)
    assert torch.equal(orders.sort(1).values, torch.arange(3).expand(6000, 3))
    codes = orders[:, 0] * 3 + orders[:, 1]
    kinds = [a * 3 + b for a, b in itertools.permutations(range(3), 2)]
    counts = torch.tensor([int((codes == k).sum()) for k in kinds]).double()
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 26  # 5 degrees of freedom, 0.9999


def test_normals_are_the_inverse_distribution_function_of_their_words() -> None:
    n = 20_000
    p = torch.tensor([((w & M64) >> 11) + 0.5 for w in words(KEY, n).tolist()], dtype=torch.float64) * 2.0**-53
    torch.testing.assert_close(normal(KEY, n), torch.special.ndtri(p), rtol=2e-9, atol=1e-9)


def test_normals_have_the_moments_of_a_normal() -> None:
    z = normal(root(1, Stream.FROZEN), 200_000)
    n = math.sqrt(len(z))
    assert abs(float(z.mean())) < 4 / n
    assert abs(float((z**2).mean()) - 1.0) < 4 * math.sqrt(2) / n
    assert abs(float((z**3).mean())) < 4 * math.sqrt(15) / n
    assert abs(float((z**4).mean()) - 3.0) < 4 * math.sqrt(96) / n
    assert torch.isfinite(z).all()
    assert float(z.abs().max()) > 4.0


# --- the same chance for all, moved on


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_turned_uniforms_go_around_the_circle_exactly(dtype: torch.dtype) -> None:
    drawn = uniform(KEY, 4096, dtype)
    turns = torch.tensor([0.0, 0.25, 1.0 - 2.0**-24], dtype=dtype)
    moved = turned(drawn, turns)
    steps = (drawn.double() * 2**24).long() + (turns.double() * 2**24).long().unsqueeze(1)
    assert torch.equal((moved.double() * 2**24).long(), steps % 2**24)
    assert torch.equal(moved[0], drawn)
