"""What a stored configuration may name: a run's folder is data, and loading it runs no code that it brings along."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from triptych.errors import UserError

ALLOW = "TRIPTYCH_ALLOW"  # environment variable: modules that allow= names on a command line, with commas between
TARGETS = frozenset(
    {
        "pytorch_lightning.Trainer",
        "pytorch_lightning.loggers.TensorBoardLogger",
        "pytorch_lightning.loggers.WandbLogger",
        "pytorch_lightning.strategies.DDPStrategy",
        "pytorch_lightning.strategies.ModelParallelStrategy",
        "triptych.attention.Attend",
        "triptych.attention.operators.delta.DeltaAttend",
        "triptych.attention.operators.hard.HardAttend",
        "triptych.attention.operators.linear.LinearAttend",
        "triptych.attention.operators.positional.PositionalAttend",
        "triptych.callbacks.aligning.AlignmentCallback",
        "triptych.callbacks.explanations.ExplanationsCallback",
        "triptych.callbacks.head_tables.HeadTablesCallback",
        "triptych.callbacks.lengths.LengthTable",
        "triptych.callbacks.maps.MapsCallback",
        "triptych.callbacks.samples.SamplesCallback",
        "triptych.callbacks.tables.TablesCallback",
        "triptych.data.characters.CharacterData",
        "triptych.data.images.ImageData",
        "triptych.data.translation.TranslationData",
        "triptych.models.charlm.CharLM",
        "triptych.models.rnn_translator.RNNTranslator",
        "triptych.models.translator.Translator",
        "triptych.models.vit.ViT",
        "triptych.tasks.charlm.CharLMTask",
        "triptych.tasks.translation.TranslationTask",
        "triptych.tasks.vit.ViTTask",
        "triptych.training.optimizers.adamw",
        "triptych.training.optimizers.muon",
        "triptych.training.schedules.warmup_cosine",
        "triptych.training.schedules.warmup_stable_decay",
    }
)
"""Everything that a ``_target_`` of conf/ names and that a run needs to be loaded."""


def refuse_strangers(config: DictConfig, file: Path, allow: Collection[str] = ()) -> None:
    """Raise UserError, before anything is imported, for a ``_target_`` that is none of ours.

    allow: modules (or names in them) that a person trusts besides; those of ``allow=`` on a command line count too.
    """
    trusted = [*allow, *filter(None, os.environ.get(ALLOW, "").split(","))]
    for target in _targets(OmegaConf.to_container(config, resolve=True)):
        if target in TARGETS or any(target == module or str(target).startswith(f"{module}.") for module in trusted):
            continue
        raise UserError(
            f"{file} names {target}, which is none of triptych's own classes, so it is not loaded: that would run its "
            f"code; if you trust it, say allow={str(target).rpartition('.')[0] or target}"
        )


def _targets(contents: Any) -> Iterator[Any]:
    if isinstance(contents, dict):
        for key, value in contents.items():
            if key == "_target_":
                yield value
            yield from _targets(value)
    elif isinstance(contents, list):
        for value in contents:
            yield from _targets(value)
