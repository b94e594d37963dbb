"""What is settled in this process before anything else: which libraries may talk, and which are installed at all."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from triptych.errors import UserError

EXTRAS = {
    "wandb": {"wandb": "wandb"},
    "sweep": {"optuna": "optuna"},
    "joblib": {"hydra_plugins.hydra_joblib_launcher": "hydra-joblib-launcher"},
    "slurm": {"hydra_plugins.hydra_submitit_launcher": "hydra-submitit-launcher"},
    "ray": {"hydra_plugins.hydra_ray_launcher": "hydra-ray-launcher", "ray": "ray"},
    "translation": {"babel": "babel", "num2words": "num2words", "sacrebleu": "sacrebleu"},
    "vision": {"torchvision": "torchvision", "mlxtend": "mlxtend", "sklearn": "scikit-learn"},
    "dev": {"vit_pytorch": "vit-pytorch"},
}
"""Each extra of pyproject.toml, with the modules it brings and the packages that these come in."""

_EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}


def silence_lightning() -> None:
    """Lightning's advice for other programs is not for our users."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning.*")
    warnings.filterwarnings("ignore", module="lightning_fabric.*")
    warnings.filterwarnings("ignore", category=FutureWarning)


@contextmanager
def needs(user: str, *modules: str) -> Iterator[None]:
    """Around imports of optional modules: where one is missing, a sentence says which, for what, and how to get it.

    Args:
        user: What needs them, in the words of the command line, such as "task=vit".
        modules: Names of optional modules, as they stand in ``EXTRAS``.

    Raises:
        UserError: For a module that is not installed, or that is and fails when it is imported.
    """
    try:
        yield
    except Exception as error:  # a library built for another torch fails with nearly anything
        require(user, *modules)
        names = " and ".join(_package(module) for module in modules)
        raise UserError(
            f"{user} needs {names}, which cannot be imported here ({' '.join(str(error).split())[:200]}): "
            f'pip install --upgrade "triptych[{_EXTRA_OF[modules[0]]}]"'
        ) from error


def require(user: str, *modules: str) -> None:
    """Raise UserError, with the sentence of `needs`, unless all of the optional modules are installed.

    Imports none of them, so it may stand where work begins that needs them only later.
    """
    missing = [module for module in modules if not installed(module)]
    if missing:
        names = " and ".join(_package(module) for module in missing)
        raise lacking(user, names, f"triptych[{_EXTRA_OF[missing[0]]}]")


def lacking(user: str, package: str, requirement: str) -> UserError:
    """The error for a package that ``user`` needs and that is not installed; ``requirement`` is what pip is to get."""
    return UserError(f'{user} needs {package}: pip install "{requirement}"')


def installed(module: str) -> bool:
    """Whether a module could be imported, found out without importing it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it lies in
        return False


def _package(module: str) -> str:
    return EXTRAS[_EXTRA_OF[module]][module]
