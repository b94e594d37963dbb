"""From a configuration to data, model, task and trainer, refusing what does not fit together before any work."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.utils import get_class, get_method, instantiate
from lightning_fabric.plugins.environments import LightningEnvironment
from omegaconf import DictConfig, ListConfig, OmegaConf
from torch import nn

from triptych import hardware
from triptych.config import validate
from triptych.config.callbacks import check_callbacks, watchable
from triptych.environment import needs, require
from triptych.errors import UserError
from triptych.models.blocks import parameter_count
from triptych.tasks.base import Task

WHOLE_NUMBERS = {  # and the least they may be
    "seed": 0,
    "validations": 1,
    "checkpoint_every": 1,
    "explain.examples": 0,
    "explain.seconds": 1,
    "trainer.max_steps": 1,
    "trainer.accumulate_grad_batches": 1,
    "trainer.log_every_n_steps": 1,
}


@dataclass(frozen=True)
class Plan:
    """What ``auto`` settings came to on this machine, and numbers derived from the configuration."""

    device: torch.device
    validation_every: int  # training batches between two validations
    processes: int  # that train together on each machine


def check(config: DictConfig) -> type[Task]:
    """The task's class, once task, data, model, recipe and watched metric are known to belong together.

    Raises UserError otherwise. Touches no data.
    """
    task: type[Task] = get_class(config.task._target_)
    require(f"task={task.name}", *task.optional_modules)
    for part, expected in (("data", task.data_class), ("model", task.model_classes)):
        chosen = get_class(config[part]._target_)
        if not issubclass(chosen, expected):
            raise UserError(
                f"task={task.name} does not go with {part}={chosen.__name__}: leave out {part}=, or choose another task"
            )
    recipe = config.get("recipe")
    if recipe is not None and recipe.task != task.name:
        raise UserError(f"experiment={recipe.name} is a recipe for task={recipe.task}, not {task.name}")
    check_callbacks(config, task)
    metrics = watchable(config, task)
    if config.watch.metric not in metrics:
        raise UserError(
            f"watch.metric={config.watch.metric} is not a metric of task={task.name}; it has: {', '.join(metrics)}"
        )
    if config.watch.mode not in ("min", "max"):
        raise UserError(f"watch.mode={config.watch.mode}; it must be min or max")
    for key, least in WHOLE_NUMBERS.items():
        number = OmegaConf.select(config, key)
        if type(number) is not int or not least <= number < 2**32:
            raise UserError(f"{key}={number}; it must be a whole number of at least {least}")
    stop = config.early_stopping
    if stop is not None and (type(stop) is not int or stop < 1):
        raise UserError(f"early_stopping={stop}; it must be null, or a whole number of at least 1")
    ema = config.ema
    if ema is not None and (type(ema) is not float or not 0 < ema < 1):
        raise UserError(f"ema={ema}; it must be null, or a number between 0 and 1 such as 0.99")
    for part in ("data", "model", "attention", "optimizer", "scheduler"):
        validate.check(config[part], get_method(config[part]._target_), part)
    if config.compile not in (True, False, "auto"):
        raise UserError(f"compile={config.compile}; it must be true, false or auto")
    _device(config.trainer.accelerator)
    _check_processes(config)
    _check_precision(config)
    for name, logger in (config.get("logger") or {}).items():
        if name == "wandb":
            _check_wandb(logger)
    clip = config.trainer.gradient_clip_val
    if clip is not None and (isinstance(clip, bool | str) or clip < 0):
        raise UserError(f"trainer.gradient_clip_val={clip}; it must be a number above 0, or null for no clipping")
    # Lightning judges its other options: once here, so that a mistake leaves no folder behind.
    trial = config.copy()
    if trial.trainer.precision == "auto":
        trial.trainer.precision = "32-true"
    build_trainer(trial, None, logger=False, callbacks=[], enable_checkpointing=False, max_epochs=-1)
    return task


def resolve_auto(config: DictConfig, stored: DictConfig | None) -> Plan:
    """Replace ``auto`` in the configuration by what it means here, or by what it meant when the run began."""
    device = _device(config.trainer.accelerator)
    for key in ("trainer.precision", "compile"):
        if stored is not None and OmegaConf.select(config, key) == "auto":
            OmegaConf.update(config, key, OmegaConf.select(stored, key))
    if config.trainer.precision == "auto":
        config.trainer.precision = hardware.precision(config.model.get("width", 0), device)
    max_steps, accumulate = config.trainer.max_steps, config.trainer.accumulate_grad_batches
    every = max(1, max_steps // config.validations) * accumulate
    return Plan(device=device, validation_every=every, processes=processes(config))


def processes(config: DictConfig) -> int:
    """How many processes train together on this machine."""
    devices = config.trainer.devices
    if "strategy" not in config.trainer:
        return 1
    if devices in ("auto", -1):
        return max(1, torch.cuda.device_count()) if _device(config.trainer.accelerator).type == "cuda" else 1
    return len(devices) if isinstance(devices, ListConfig) else devices


def rendezvous(config: DictConfig) -> dict[str, Any]:
    """Where the processes are and meet, as arguments of ``launch.world``."""
    nodes, port = config.trainer.get("num_nodes", 1), config.trainer.get("port")
    return {"nodes": nodes, "port": port, "device": _device(config.trainer.accelerator)}


def alone(config: DictConfig) -> DictConfig:
    """The same for one process."""
    found = config.copy()
    found.trainer = {
        key: value for key, value in config.trainer.items() if key not in ("strategy", "num_nodes", "port")
    }
    if isinstance(config.trainer.devices, ListConfig):
        found.trainer.devices = config.trainer.devices[:1]
    elif "strategy" in config.trainer:
        found.trainer.devices = 1
    return found


def sharded(config: DictConfig) -> bool:
    """Whether every process keeps only a part of the model's parameters."""
    return "strategy" in config.trainer and "ModelParallel" in config.trainer.strategy._target_


def _check_processes(config: DictConfig) -> None:
    """Raise UserError for processes that cannot train together, or not this model."""
    devices, device = config.trainer.devices, _device(config.trainer.accelerator)
    listed = isinstance(devices, ListConfig)
    if "strategy" not in config.trainer:
        if devices not in (1, "auto") and not (listed and len(devices) == 1):
            raise UserError(
                f"trainer.devices={devices}: one process trains; use 1, a list of one such as [0], or trainer=ddp"
            )
        return
    if not listed and devices not in ("auto", -1) and (type(devices) is not int or devices < 1):
        raise UserError(f"trainer.devices={devices}; it must be a number of processes, auto, or a list of GPUs")
    for key, least in (("num_nodes", 1), ("port", 1)):
        number = config.trainer.get(key)
        if number is not None and (type(number) is not int or not least <= number < 65536):
            raise UserError(f"trainer.{key}={number}; it must be a whole number from {least} to 65535")
    if sharded(config):
        if device.type != "cuda":
            raise UserError(
                f"trainer=fsdp shares a model among GPUs, and this would run on {device.type}: use trainer=ddp"
            )
        if config.optimizer._target_.endswith(".muon"):
            raise UserError("trainer=fsdp splits the matrices that optimizer=muon needs whole: use optimizer=adamw")
        if config.compile is True:
            raise UserError("compile=true: trainer=fsdp trains without; use compile=false, or trainer=ddp")
        if config.ema is not None:
            raise UserError(
                f"ema={config.ema}: trainer=fsdp keeps no average of the weights; use trainer=ddp, or ema=null"
            )
    together = processes(config) * config.trainer.num_nodes
    batch = config.data.get("batch_size")
    if batch is not None and batch < together:
        raise UserError(f"data.batch_size={batch} is less than one example for each of {together} processes")


def _check_precision(config: DictConfig) -> None:
    """Raise UserError for a precision in which training would go wrong, or not be what it says."""
    precision, device = hardware.full_name(config.trainer.precision), _device(config.trainer.accelerator)
    asked = f"trainer.precision={config.trainer.precision}"
    if precision == "16-true":
        raise UserError(f"{asked}: small gradients are 0 in float16 without a loss scale; use 16-mixed or bf16-mixed")
    if precision == "16-mixed" and device.type == "cpu":
        raise UserError(f"{asked} is for GPUs: use bf16-mixed or 32-true on a CPU")
    if precision == "64-true" and device.type == "mps":
        raise UserError(f"{asked}: mps has no float64; use 32-true, or trainer.accelerator=cpu")
    if sharded(config) and hardware.parameter_dtype(precision) != torch.float32:
        raise UserError(f"{asked}: trainer=fsdp keeps parameters in float32; use 32-true, bf16-mixed, or trainer=ddp")


def resolve_compile(config: DictConfig, model: nn.Module, positions_per_step: int, plan: Plan) -> bool:
    """Whether to compile; replaces ``compile=auto`` in the configuration by the answer."""
    if config.compile == "auto" and sharded(config):
        config.compile = False
    if config.compile == "auto":
        positions = positions_per_step * config.trainer.max_steps * config.trainer.accumulate_grad_batches
        config.compile = hardware.compile_pays(parameter_count(model), positions, plan.device)
    return config.compile


def build_data(config: DictConfig) -> Any:
    """The data module, nothing read yet."""
    pathless = config.copy()
    pathless.data.path = None
    data = instantiate(pathless.data)
    data.path = config.data.path  # Hydra would take a ``${`` in it for an interpolation
    return data


def build_model(config: DictConfig, sizes: dict[str, int]) -> nn.Module:
    """The model in its precision, its data-given sizes filled in. The same seed gives the same weights."""
    torch.manual_seed(config.seed)
    model = instantiate(config.model, **sizes, attention=instantiate(config.attention))
    return model.to(hardware.parameter_dtype(config.trainer.precision))


def check_attention(model: nn.Module, plan: Plan, precision: str, *, training: bool) -> None:
    """Raise UserError if any layer's backend cannot run, or train, on this device in this precision."""
    for module in model.modules():
        check_device = getattr(module, "check_device", None)
        if callable(check_device):
            check_device(plan.device, hardware.default_dtype(precision), training=training)


def build_task(config: DictConfig, model: nn.Module, *, compiled: bool) -> Task:
    """The LightningModule around a model."""
    more = {key: value for key, value in config.task.items() if key not in ("_target_", "name")}
    return get_class(config.task._target_)(
        model=model,
        optimizer=instantiate(config.optimizer),
        scheduler=partial(instantiate(config.scheduler), total_steps=config.trainer.max_steps),
        compiled=compiled,
        **more,
    )


def build_trainer(config: DictConfig, folder: Path | None, **more: Any) -> pl.Trainer:
    """Lightning's Trainer as configured, without the parts that triptych shows or decides by itself."""
    configured = config.trainer.copy()
    OmegaConf.set_struct(configured, False)
    configured.pop("port", None)
    if hardware.full_name(configured.precision).endswith("-true"):
        # `build_model` made the parameters so. Lightning would also convert what metrics are summed in, and torch's
        # default dtype while a step runs.
        configured.precision = "32-true"
    if sharded(config):  # Lightning's own "auto" is the number of machines
        configured.strategy.data_parallel_size = processes(config) * config.trainer.num_nodes
    fixed = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "plugins": [LightningEnvironment()],  # or Lightning would take a Slurm job for its own
        "default_root_dir": str(folder) if folder else None,
    }
    try:
        return instantiate(configured, **{**fixed, **more})
    except Exception as error:
        cause = error.__cause__ or error  # Lightning's own words are inside Hydra's
        raise UserError(f"trainer: {' '.join(str(cause).split())[:300]}") from error


def loggers(config: DictConfig, folder: Path, *, resumed_at: int | None) -> list[Any]:
    """The configured dashboards' loggers, writing into the run folder."""
    built = []
    for name, chosen in (config.get("logger") or {}).items():
        if name == "tensorboard":
            purge = {} if resumed_at is None else {"purge_step": resumed_at + 1}
            built.append(instantiate(chosen, save_dir=str(folder), **purge))
        elif name == "wandb":
            built.append(_wandb(chosen, folder))
        else:
            built.append(instantiate(chosen, save_dir=str(folder)))
    return built


def _check_wandb(configured: DictConfig) -> None:
    with needs("logger=wandb", "wandb"):
        import wandb
    if configured.mode not in ("auto", "online", "offline"):
        raise UserError(f"logger.wandb.mode={configured.mode}; it must be auto, online or offline")
    if configured.mode == "online" and not _has_account(wandb):
        raise UserError("logger.wandb.mode=online needs an account: run `wandb login`, or use mode=offline")


def _has_account(wandb: Any) -> bool:
    """Whether there are credentials here; asks neither the user nor the network."""
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except TypeError:  # before 0.31 there was no such question, and the key could just be read
        return bool(wandb.api.api_key)


def _wandb(configured: DictConfig, folder: Path) -> Any:
    with needs("logger=wandb", "wandb"):
        import wandb

    _check_wandb(configured)
    chosen = OmegaConf.to_container(configured, resolve=True)
    assert isinstance(chosen, dict)
    mode = chosen.pop("mode")
    offline = mode == "offline" or (mode == "auto" and not _has_account(wandb))
    # The run folder's name as id: a resumed run goes on in the same W&B run.
    more = {"mode": "offline"} if offline else {"id": folder.name, "resume": "allow"}
    settings = wandb.Settings(silent=True, console="off")
    return instantiate(chosen, save_dir=str(folder), name=folder.name, settings=settings, **more)


def _device(accelerator: str) -> torch.device:
    if accelerator == "auto":
        return hardware.accelerator()
    if accelerator not in ("cpu", "gpu", "cuda", "mps"):
        raise UserError(f"trainer.accelerator={accelerator}; it must be auto, cpu, gpu, cuda or mps")
    device = torch.device("cuda" if accelerator == "gpu" else accelerator)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"trainer.accelerator={accelerator}: torch finds no GPU here; use cpu or auto")
    return device
