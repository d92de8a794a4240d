"""Who a client is to the other clients: the certificate of its kit signs its keys, so that a server, which relays them,
cannot put keys of its own in their place and read what clients seal for each other."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pmsfl.deploy.secure.primitives import check_library
from pmsfl.deploy.secure.session import PROOF_BYTES, SecureError

_LENGTHS = struct.Struct("<HH")


class Authority:
    """Checks proofs: a certificate in the client's name, issued by this federation's authority, and a signature."""

    def __init__(self, kit: Path, names: Sequence[str]) -> None:
        """kit: has startup/rootCA.pem. names: of the clients, by their numbers."""
        check_library()
        from cryptography.x509 import load_pem_x509_certificate

        self.names = tuple(names)
        self._root = load_pem_x509_certificate((kit / "startup" / "rootCA.pem").read_bytes())

    def check(self, client: int, statement: bytes, proof: bytes) -> None:
        """SecureError where a proof is not this client's, or of something else."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.hashes import SHA256

        certificate, signature = _opened(proof, client)
        try:
            certificate.verify_directly_issued_by(self._root)
            certificate.public_key().verify(signature, statement, _padding(), SHA256())
        except (InvalidSignature, ValueError, TypeError, AttributeError):
            raise SecureError(f"the keys of client {client} are not signed by a site of this federation") from None
        now = datetime.datetime.now(datetime.UTC)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise SecureError(f"the certificate of client {client} is not valid today")
        if (name := _name(certificate)) != self.names[client]:
            raise SecureError(f"the keys of client {client} ({self.names[client]}) are signed by {name!r}")


class Identity(Authority):
    """Also makes proofs, with a kit's own private key."""

    def __init__(self, kit: Path, names: Sequence[str]) -> None:
        """kit: has startup/client.crt and client.key, too."""
        super().__init__(kit, names)
        from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
        from cryptography.x509 import load_pem_x509_certificate

        own = load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())
        self._certificate = own.public_bytes(Encoding.DER)
        self._key: Any = load_pem_private_key((kit / "startup" / "client.key").read_bytes(), password=None)

    def prove(self, statement: bytes) -> bytes:
        """PROOF_BYTES: two lengths u16, the certificate (DER), the signature (RSA-PSS with SHA-256), zeros."""
        from cryptography.hazmat.primitives.hashes import SHA256

        signature: bytes = self._key.sign(statement, _padding(), SHA256())
        proof = _LENGTHS.pack(len(self._certificate), len(signature)) + self._certificate + signature
        if len(proof) > PROOF_BYTES:
            raise SecureError(f"this kit's certificate and a signature take {len(proof)} bytes, {PROOF_BYTES} at most")
        return proof.ljust(PROOF_BYTES, b"\0")


def _opened(proof: bytes, client: int) -> tuple[Any, bytes]:
    """Certificate and signature in a proof."""
    from cryptography.x509 import load_der_x509_certificate

    long, short = _LENGTHS.unpack_from(proof)
    end = _LENGTHS.size + long
    try:
        return load_der_x509_certificate(proof[_LENGTHS.size : end]), proof[end : end + short]
    except ValueError:
        raise SecureError(f"the keys of client {client} come without a certificate") from None


def _name(certificate: Any) -> str:
    from cryptography.x509.oid import NameOID

    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _padding() -> Any:
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
    from cryptography.hazmat.primitives.hashes import SHA256

    return PSS(MGF1(SHA256()), SHA256.digest_size)
