"""Keys of a secure sum are signed by the sites' kits: a server cannot put its own in their place."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from pmsfl.deploy.frames import Answer, Op, Request, Status
from pmsfl.deploy.line import Call
from pmsfl.deploy.rehearse import rehearse
from pmsfl.deploy.secure import Authority, Identity, SecureClient, SecureError, SecureServer, Session
from pmsfl.deploy.secure.session import PROOF_BYTES, PUBLIC_BYTES, Kind

from .helpers import NAMES, recipe, server_of, sites_of, three

x509 = pytest.importorskip("cryptography.x509")

from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: E402


def make_kits(path: Path, days: int = 1) -> Path:
    """Kits as `pmsfl deploy init` makes them, as far as identities need them: an authority, a certificate per site."""
    now = datetime.datetime.now(datetime.UTC)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()

    def named(name: str) -> Any:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])

    def issued(name: str, key: Any, signer: Any) -> bytes:
        builder = x509.CertificateBuilder().subject_name(named(name)).issuer_name(named("authority"))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=10))
        builder = builder.not_valid_after(now + datetime.timedelta(days=days))
        out: bytes = builder.sign(signer, hashes.SHA256()).public_bytes(pem)
        return out

    root = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for name in (*NAMES, "server"):
        startup = path / name / "startup"
        startup.mkdir(parents=True)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain)
        (startup / "rootCA.pem").write_bytes(issued("authority", root, root))
        (startup / "client.crt").write_bytes(issued(name, key, root))
        (startup / "client.key").write_bytes(private)
    return path


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kits(tmp_path_factory.mktemp("kits"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kits(tmp_path_factory.mktemp("foreign"))


def played(path: Path, kits: Path, meddle: Any = lambda r, answer: answer) -> tuple[Any, list[str]]:
    """One round with signed keys, in which a server changes what it tells b; b's notes."""
    wanted, notes = recipe(rounds=1, eval_every=9), list[str]()
    server = server_of(path, wanted, three(), secure_sums=True, kit=kits / "server")
    server.recipe = wanted.replace(rounds=9)
    sites = {
        n: sites_of(path, wanted, three(), kit=kits / n, note=notes.append if n == "b" else print)[n] for n in NAMES
    }

    def wrap(site: str, call: Call) -> Call:
        if site != "b":
            return call
        return lambda data: meddle(Request.decode(data), Answer.decode(call(data))).encode()

    rehearse(server, sites, 1, wrap)
    return server, notes


def test_signed_keys_change_nothing_of_the_result(tmp_path: Path, kits: Path) -> None:
    server, _ = played(tmp_path / "signed", kits)
    plain = server_of(tmp_path / "plain", recipe(rounds=1, eval_every=9), three())
    plain.recipe = server.recipe
    rehearse(plain, sites_of(tmp_path / "plain", recipe(rounds=1, eval_every=9), three()), 1)
    assert torch.equal(server.state.shared, plain.state.shared)  # type: ignore[union-attr]


def test_a_server_that_puts_its_own_keys_on_the_roster_is_found_out(tmp_path: Path, kits: Path) -> None:
    """Without signatures it could read what b seals for c, and with that b's secrets."""

    def change(r: Request, answer: Answer) -> Answer:
        if r.op != Op.SECURE or r.step != Kind.KEYS or answer.status != Status.OK:
            return answer
        each = 4 + PUBLIC_BYTES + PROOF_BYTES
        at = len(answer.wire) - each + 4  # of c, the last one
        own = bytes(range(32)) + bytes(range(1, 33)) + bytes(32)
        return Answer(answer.status, answer.info, answer.wire[:at] + own + answer.wire[at + PUBLIC_BYTES :])

    server, notes = played(tmp_path, kits, change)
    assert any("the keys of client 2 are not signed by a site" in n for n in notes)
    assert server.books.directory.metrics()[0]["sites"]["b"] == "late"


def test_only_the_sites_own_certificate_of_this_authority_proves_its_keys(kits: Path, foreign: Path) -> None:
    statement = b"these are my keys"
    b = Identity(kits / "b", NAMES)
    proof = b.prove(statement)
    assert len(proof) == PROOF_BYTES
    for checker in (b, Authority(kits / "server", NAMES)):
        checker.check(1, statement, proof)
        with pytest.raises(SecureError, match=r"client 0 \(a\) are signed by 'b'"):
            checker.check(0, statement, proof)
        with pytest.raises(SecureError, match="not signed by a site"):
            checker.check(1, statement + b"!", proof)
        with pytest.raises(SecureError, match="not signed by a site"):
            checker.check(1, statement, Identity(foreign / "b", NAMES).prove(statement))
        for damaged in (bytes(PROOF_BYTES), b"\xff" * PROOF_BYTES, proof[:-4][::-1] + proof[-4:]):
            with pytest.raises(SecureError, match="without a certificate"):
                checker.check(1, statement, damaged)


def test_a_certificate_that_has_run_out_proves_nothing(tmp_path: Path) -> None:
    old = make_kits(tmp_path, days=-1)
    b = Identity(old / "b", NAMES)
    with pytest.raises(SecureError, match="not valid today"):
        b.check(1, b"keys", b.prove(b"keys"))


def test_the_server_leaves_out_whoever_cannot_prove_its_keys(kits: Path, foreign: Path) -> None:
    """The others would have to refuse a roster with such keys, and one site could stop them all."""
    session = Session(7, 2, (0, 1, 2), 5, 2, signed=True)
    server = SecureServer(session, Authority(kits / "server", NAMES))
    good = SecureClient(session, 0, identity=Identity(kits / "a", NAMES))
    server.take_keys(0, good.keys())
    bad = SecureClient(session, 1, identity=Identity(foreign / "b", NAMES))
    with pytest.raises(SecureError, match="not signed by a site"):
        server.take_keys(1, bad.keys())


def test_signed_and_unsigned_sessions_do_not_mix(kits: Path) -> None:
    signed, plain = (Session(7, 2, (0, 1, 2), 5, 2, signed=s) for s in (True, False))
    assert signed.id != plain.id
    with pytest.raises(SecureError, match="an identity goes with"):
        SecureClient(signed, 0)
    with pytest.raises(SecureError, match="an identity goes with"):
        SecureClient(plain, 0, identity=Identity(kits / "a", NAMES))
