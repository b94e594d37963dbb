"""What starts the trials of a sweep elsewhere than in this process, and whether it is installed."""

from triptych.environment import EXTRAS, require


def check(target: str) -> None:
    """Raise UserError when the launcher ``target`` is not installed. target: its class, as Hydra is configured."""
    for modules in EXTRAS.values():
        for module in modules:
            if target.startswith(module + "."):
                require("this hydra/launcher", module)
