"""Secure aggregation: the server learns the sum of the clients' masks and nothing else about them.

Bonawitz et al. (2017): each pair of clients agrees on a random vector that one adds and the other subtracts; each
client adds one more of its own. Seeds of both are shared out (Shamir), so that the sum can be unmasked when clients
drop out. No network in here: clients and server give and take bytes.
"""

from __future__ import annotations

from pmsfl.deploy.secure.client import SecureClient
from pmsfl.deploy.secure.identity import Authority, Identity
from pmsfl.deploy.secure.server import SecureServer
from pmsfl.deploy.secure.session import SecureError, Session

__all__ = ["Authority", "Identity", "SecureClient", "SecureError", "SecureServer", "Session"]
