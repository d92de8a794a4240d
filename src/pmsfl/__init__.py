"""pmsfl: split federated learning with probabilistic masks.

    import pmsfl
    run = pmsfl.run("demo")
    print(run.result["accuracy"])

What is named here is promised; everything else may change.
"""

from pmsfl._version import __version__
from pmsfl.api import run
from pmsfl.data.federation import Federation
from pmsfl.errors import PmsflError
from pmsfl.methods import METHODS
from pmsfl.models.split import SplitModel
from pmsfl.recipe import Recipe
from pmsfl.run import Listener, Progress, Run

__all__ = [
    "METHODS",
    "Federation",
    "Listener",
    "PmsflError",
    "Progress",
    "Recipe",
    "Run",
    "SplitModel",
    "__version__",
    "run",
]
