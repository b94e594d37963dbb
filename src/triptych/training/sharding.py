"""One model split over several GPUs (``trainer=fsdp``): each process keeps a part of every parameter."""

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor


def mesh_of(trainer: pl.Trainer) -> DeviceMesh | None:
    """The processes that a model is to be split over; None where each keeps a whole copy."""
    return (
        trainer.strategy.device_mesh["data_parallel"] if isinstance(trainer.strategy, ModelParallelStrategy) else None
    )


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split ``model``, in place: every repeated block for itself, and the rest together (Zhao et al., 2304.11277)."""
    if isinstance(model, FSDPModule):
        return
    for blocks in [each for each in model.modules() if isinstance(each, nn.ModuleList)]:
        for block in blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def is_finite(parameter: torch.Tensor) -> bool:
    """Whether every number of it is, or of this process's part of it."""
    mine = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return bool(torch.isfinite(mine).all())


class GatherCallback(pl.Callback):
    """Puts a split model together in every process while it is looked at, and splits it again to train on.

    The first callback: those after it draw maps and samples in rank 0 alone, and decode sentences of different lengths
    in each process, so that no process may wait for another there. every_n_steps: when they do, besides validation,
    the middle and the end of the run.
    """

    def __init__(self, *, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps
        self._together = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._put_together(pl_module)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, at: int) -> None:
        if self._together:
            self._stay_together(pl_module, False)
            for module in _parts(pl_module):
                module.reshard()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if (self.every_n_steps and step % self.every_n_steps == 0) or step == trainer.max_steps // 2:
            self._put_together(pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._put_together(pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._put_together(pl_module)

    def _put_together(self, task: pl.LightningModule) -> None:
        self._stay_together(task, True)
        for module in _parts(task):
            module.unshard()

    def _stay_together(self, task: pl.LightningModule, so: bool) -> None:
        """Whether a forward or backward pass (maps take gradients) leaves the parts as they are, and says nothing."""
        self._together = so
        for module in _parts(task):
            module.set_reshard_after_forward(not so, recurse=False)
            module.set_reshard_after_backward(not so, recurse=False)
            module.set_requires_gradient_sync(not so, recurse=False)


def _parts(task: pl.LightningModule) -> list[FSDPModule]:
    return [module for module in task.modules() if isinstance(module, FSDPModule)]
