"""Pictures, texts and pages to every configured dashboard; each gets what it can show."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger

from triptych.environment import needs


def picture(loggers: Iterable[Logger], name: str, image: np.ndarray, step: int, caption: str) -> None:
    """An RGB image, H W 3 of uint8, with its caption where the dashboard has room for one."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(name, image, step, dataformats="HWC")
        elif isinstance(logger, WandbLogger):
            with needs("logger=wandb", "wandb"):
                import wandb
            shown = wandb.Image(image, caption=caption)
            logger.experiment.log({name: shown, "trainer/global_step": step})


def text(loggers: Iterable[Logger], name: str, content: str, step: int) -> None:
    """A text as it is, line breaks and all."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            # Indented by four spaces Markdown shows it verbatim, whatever it holds.
            logger.experiment.add_text(name, "\n".join("    " + line for line in content.split("\n")), step)
        elif isinstance(logger, WandbLogger):
            logger.log_text(name, columns=["step", "text"], data=[[str(step), content]])


def page(loggers: Iterable[Logger], name: str, path: Path, step: int) -> None:
    """An HTML page, where the dashboard can show one (W&B; TensorBoard cannot)."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            with needs("logger=wandb", "wandb"):
                import wandb
            logger.experiment.log({name: wandb.Html(str(path)), "trainer/global_step": step})


def close(loggers: Iterable[Logger], finished: bool) -> None:
    """End the run in every dashboard, as finished or as failed."""
    for logger in loggers:
        logger.finalize("success" if finished else "failed")
        if isinstance(logger, WandbLogger):
            # Left open, the next run of this process would be logged into this one.
            logger.experiment.finish(exit_code=0 if finished else 1)
