"""What lies in a kit's folder on each host beside FLARE's own files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pmsfl.errors import PmsflError

CONFIG = Path("local") / "pmsfl.json"


@dataclass(frozen=True)
class SiteConfig:
    """What a site says of itself: it never leaves the site."""

    data: str
    depth: int | None = None
    repeat_simulation: bool = False  # for tests: keys of the recipe's seed instead of the site's secret
    secure_sums: bool = False  # take part in no run without them

    @staticmethod
    def read(kit: Path) -> SiteConfig:
        """The configuration in a kit."""
        file = kit / CONFIG
        if not file.is_file():
            raise PmsflError(f"{file} is missing: start this site with `pmsfl deploy site KIT --data PATH`")
        try:
            return SiteConfig(**json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as e:
            raise PmsflError(f"{file} is damaged: {e}") from None

    def write(self, kit: Path) -> None:
        """Put the configuration into a kit, for its owner's eyes."""
        (kit / CONFIG).parent.mkdir(exist_ok=True)
        temporary = (kit / CONFIG).with_suffix(".tmp")
        temporary.touch(0o600)
        temporary.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        temporary.replace(kit / CONFIG)


def site_name(kit: Path) -> str:
    """The name that a site's kit was made for."""
    content = json.loads((kit / "startup" / "fed_client.json").read_text(encoding="utf-8"))
    return str(content["client"]["fqsn"])


def runs_folder(kit: Path) -> Path:
    """Where a server's kit keeps its runs."""
    return kit / "pmsfl" / "runs"


def run_folder(kit: Path, run: str) -> Path:
    """One run of a server's kit; made on the way, but for itself."""
    runs_folder(kit).mkdir(parents=True, exist_ok=True)
    return runs_folder(kit) / run
