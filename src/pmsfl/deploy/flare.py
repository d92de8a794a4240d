"""The two roles as NVIDIA FLARE runs them: a thin shell around `ServerSide` and `SiteSide`.

A job names these two classes and carries no code: every host runs the pmsfl that is installed on it.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import CollabCallError

from pmsfl.deploy import secret
from pmsfl.deploy.host import SiteConfig, run_folder
from pmsfl.deploy.line import JobOver
from pmsfl.deploy.server import ServerSide
from pmsfl.deploy.settings import Patience
from pmsfl.deploy.site import SiteSide
from pmsfl.engine.plan import Keys
from pmsfl.recipe import Recipe

CALL_SECONDS = 60.0  # of one call; the server holds none longer than Patience.hold_seconds


def _quiet() -> None:
    """FLARE logs every call at INFO: thousands of lines per round."""
    for name in ("nvflare.collab", "nvflare.fuel.f3"):
        logging.getLogger(name).setLevel(logging.WARNING)


class FlareServer:
    """A job of some rounds on the server."""

    def __init__(
        self,
        run: str,
        recipe: str,
        sites: list[str],
        rounds: int,
        patience: dict[str, Any],
        secure_sums: bool = False,
    ) -> None:
        self.run, self.recipe, self.sites, self.rounds, self.patience = run, recipe, sites, rounds, patience
        self.secure_sums = secure_sums
        self._side: ServerSide | None = None
        self._ready = threading.Event()

    @collab.main  # type: ignore[untyped-decorator]
    def play(self) -> int:
        """Play the job; the number of rounds the run then has."""
        _quiet()
        log = logging.getLogger("pmsfl.deploy")
        kit = Path(collab.workspace.get_root_dir())
        folder, patience = run_folder(kit, self.run), Patience(**self.patience)
        recipe = Recipe.from_toml(self.recipe, "the job's recipe")
        self._side = side = ServerSide(
            folder, recipe, self.sites, patience, note=log.info, secure_sums=self.secure_sums, kit=kit
        )
        self._ready.set()
        # Sites call us from here on. No result is expected: FLARE would hold the job open for a site that has died.
        collab.clients(expect_result=False, optional=True).take_part(self.recipe)
        rounds = side.play(self.rounds, lambda: bool(collab.is_aborted))
        log.info("job over after round %d of %d", rounds, recipe.turns)
        return rounds

    @collab.publish  # type: ignore[untyped-decorator]
    def request(self, data: bytes) -> bytes:
        """One call of a site; FLARE knows from its certificate which."""
        self._ready.wait(CALL_SECONDS / 2)
        if self._side is None:
            raise RuntimeError("the server is not ready")
        return self._side.handle(collab.caller, bytes(data))


class FlareSite:
    """A site's part of a job."""

    @collab.publish  # type: ignore[untyped-decorator]
    def take_part(self, recipe: str) -> str:
        """Take part until the job is over; why it ended."""
        _quiet()
        log = logging.getLogger("pmsfl.deploy")
        try:
            return self._play(recipe, Path(collab.workspace.get_root_dir()), log)
        except Exception as e:  # whatever is wrong here must not end the job of the others
            log.error("this site takes no part: %s", e)
            return f"failed: {e!r}"

    def _play(self, recipe: str, root: Path, log: logging.Logger) -> str:
        config = SiteConfig.read(root)
        keys = None
        if config.repeat_simulation:
            log.warning("masks come from the run's seed: the server can recompute them. For tests only")
            keys = Keys.of_seed(Recipe.from_toml(recipe).seed)
        side = SiteSide(
            root / "pmsfl",
            config.data,
            config.depth,
            note=log.info,
            keys=keys,
            secure_sums=config.secure_sums,
            kit=root,
            cohort=secret.load(root / secret.COHORT) if (root / secret.COHORT).exists() else None,
        )
        server = collab.server(timeout=CALL_SECONDS)

        def call(data: bytes) -> bytes:
            if collab.is_aborted:
                raise JobOver("the job was aborted")
            try:
                return bytes(server.request(data))
            except CollabCallError as e:
                if "shutting down" in str(e):  # FLARE closes the job before the last site has asked
                    raise JobOver("the job is over") from None
                raise ConnectionError(str(e)) from e  # to be tried again

        return side.play(recipe, call)
