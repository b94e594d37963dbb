"""What starts the trials of a sweep elsewhere than in this process, and which extra that needs."""

from importlib.util import find_spec

from triptych.errors import UserError

EXTRAS = {  # the package of Hydra's launcher, and our extra that brings it
    "hydra_plugins.hydra_joblib_launcher": "joblib",
    "hydra_plugins.hydra_submitit_launcher": "slurm",
    "hydra_plugins.hydra_ray_launcher": "ray",
}


def check(target: str) -> None:
    """Raise UserError when the launcher ``target`` is not installed. target: its class, as Hydra is configured."""
    for package, extra in EXTRAS.items():
        if target.startswith(package + "."):
            try:
                found = find_spec(package)
            except ModuleNotFoundError:  # no launcher of any kind
                found = None
            if found is None:
                raise UserError(f'this hydra/launcher needs the extra: pip install "triptych[{extra}]"')
