"""The average of weights that have few bits keeps its own."""

from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from triptych.training.ema import EMACallback

pytestmark = pytest.mark.usefixtures("unchecked")  # a stand-in for Lightning's Trainer will do


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_small_steps_are_not_rounded_away(dtype: torch.dtype) -> None:
    """Weights at 1, then at 1.5: 200 updates later the average is 13 % short; in bfloat16 it would stand still."""
    module, averaged = pl.LightningModule(), EMACallback(decay=0.99)
    module.weight = torch.nn.Parameter(torch.ones(2, dtype=dtype))
    trainer: Any = SimpleNamespace(global_step=0)
    averaged.setup(trainer, module, "fit")
    expected = 1.0
    for step in range(1, 1201):
        trainer.global_step = step
        current = 1.0 if step <= 1000 else 1.5
        module.weight.data.fill_(current)
        averaged.on_train_batch_end(trainer, module, None, None, step - 1)
        expected += (current - expected) * (1 - min(0.99, step / (9 + step)))
    assert averaged._average_model is not None
    (found,) = averaged._average_model.parameters()
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found[0].item() == pytest.approx(expected, rel=1e-5)
    assert expected == pytest.approx(1.5 - 0.5 * 0.99**200)
    before = found.detach().clone()
    averaged.on_validation_epoch_start(trainer, module)
    assert torch.equal(module.weight, before.to(dtype))
    averaged.on_validation_epoch_end(trainer, module)
    assert torch.equal(found, before)
    assert module.weight[0].item() == 1.5
