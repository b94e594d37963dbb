"""What is settled in this process before anything else: which libraries may talk."""

import logging
import warnings


def silence_lightning() -> None:
    """Lightning's advice for other programs is not for our users."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning.*")
    warnings.filterwarnings("ignore", module="lightning_fabric.*")
    warnings.filterwarnings("ignore", category=FutureWarning)
