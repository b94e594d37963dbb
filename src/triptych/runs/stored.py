"""Configurations that earlier versions stored in run folders, brought to the settings of today."""

from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf

from triptych.errors import UserError

MOVED = {
    "triptych.attention.delta.DeltaAttend": "triptych.attention.operators.delta.DeltaAttend",
    "triptych.attention.hard.HardAttend": "triptych.attention.operators.hard.HardAttend",
    "triptych.attention.linear.LinearAttend": "triptych.attention.operators.linear.LinearAttend",
    "triptych.attention.positional.PositionalAttend": "triptych.attention.operators.positional.PositionalAttend",
    "triptych.tasks.optimizers.adamw": "triptych.training.optimizers.adamw",
    "triptych.tasks.optimizers.muon": "triptych.training.optimizers.muon",
    "triptych.tasks.schedules.warmup_cosine": "triptych.training.schedules.warmup_cosine",
    "triptych.tasks.schedules.warmup_stable_decay": "triptych.training.schedules.warmup_stable_decay",
}
"""What version 1 called things, and what they are called now."""
RENAMED = {
    "data.vocabulary": "data.vocab_size",
    "data.longest": "data.max_length",
    "data.ratio": "data.max_length_ratio",
}
"""Settings up to version 2, and what they are called now."""
CALLBACKS = {
    "maps": {
        "_target_": "triptych.callbacks.maps.MapsCallback",
        **{name: f"${{maps.{name}}}" for name in ("every_n_steps", "probes", "length", "layers", "heads", "scores")},
    },
    "samples": {
        "_target_": "triptych.callbacks.samples.SamplesCallback",
        "every_n_steps": "${maps.every_n_steps}",
        "options": "${sample}",
    },
    "tables": {"_target_": "triptych.callbacks.tables.TablesCallback"},
    "heads": {"_target_": "triptych.callbacks.head_tables.HeadTablesCallback"},
    "alignment": {"_target_": "triptych.callbacks.aligning.AlignmentCallback"},
    "explanations": {
        "_target_": "triptych.callbacks.explanations.ExplanationsCallback",
        "examples": "${explain.examples}",
        "seconds": "${explain.seconds}",
    },
}
"""What hung on every trainer up to version 3."""
WHERE = {"alignment": "translation", "explanations": "explain"}
"""Those of them that not every run had: the name of the task, or the settings, that brought each."""
KEY = "settings_version"  # in a stored config.yaml; where it is missing, version 1


def version() -> int:
    """The version of the settings that are stored now."""
    return 1 + len(STEPS)


def upgrade(stored: DictConfig) -> DictConfig:
    """A stored configuration as this version would have stored it, without its version. ``stored`` stays as it is.

    Raises UserError for one that a newer version has stored.
    """
    config = stored.copy()
    OmegaConf.set_struct(config, False)
    since = config.pop(KEY, 1)
    if type(since) is not int or not 1 <= since <= version():
        raise UserError(
            f"the configuration of this run has {KEY}={since}, and this triptych knows 1 to {version()}: use the newer "
            "triptych that the run was made with"
        )
    for step in STEPS[since - 1 :]:
        step(config)
    return config


def _to_2(config: DictConfig) -> None:
    """Modules moved into rooms; shares of train give way to a split only where that is said; own rules for files."""
    for part in config.values():
        if isinstance(part, DictConfig) and part.get("_target_") in MOVED:
            part["_target_"] = MOVED[part["_target_"]]
    data, task = config.get("data"), config.get("task")
    if data is not None:
        for name, value in (data.get("splits") or {}).items():
            if isinstance(value, int | float):
                data.splits[name] = f"{name} or {value}"
        if str(data.get("_target_", "")).endswith(".ImageData"):
            data.setdefault("layout", "auto")
            data.setdefault("pixel_range", None)
        else:
            data.setdefault("cast", False)
    if task is not None and task.get("name") == "translation":
        task.setdefault("bleu_tokenizer", "auto")


def _to_3(config: DictConfig) -> None:
    """Settings have the field's own names."""
    for old, new in RENAMED.items():
        part, _, name = old.rpartition(".")
        node = OmegaConf.select(config, part)
        if isinstance(node, DictConfig) and name in node:
            node[new.rpartition(".")[2]] = node.pop(name)


def _to_4(config: DictConfig) -> None:
    """Callbacks are listed, which was left to the code."""
    task = config.get("task")
    if "maps" in config and "sample" in config and task is not None:  # of a run, not of a part of one
        listed = {
            name: settings
            for name, settings in CALLBACKS.items()
            if name not in WHERE or (WHERE[name] in (task.get("name"), *config))
        }
        config.setdefault("callbacks", OmegaConf.create(listed))


STEPS: tuple[Callable[[DictConfig], None], ...] = (_to_2, _to_3, _to_4)
"""What leads from each version to the next; the first from version 1 to 2."""
