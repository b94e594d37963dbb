"""Measurements, each a pair run side by side in one process so that a noisy machine disturbs both alike."""

import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from torch import nn

from triptych import hardware
from triptych.attention import Attend, AttentionMask
from triptych.callbacks.progress import ProgressCallback
from triptych.commands.cli import CONF
from triptych.config import build
from triptych.environment import needs, silence_lightning
from triptych.errors import UserError
from triptych.explain.methods.rollout import rollout
from triptych.inference.measuring import measure
from triptych.maps.capture import capture, probing
from triptych.maps.taking import take_maps
from triptych.models.charlm import CharLM
from triptych.models.sampling import generate
from triptych.models.vit import ViT
from triptych.runs.metrics_file import MetricsFile
from triptych.tasks.base import Task

WARM_UP = 20  # steps or calls that are run and not counted

Row = tuple[str, float, str, float, float]  # what, its milliseconds, against what, its milliseconds, their ratio


def run(config: DictConfig) -> None:
    """Run the benchmarks that ``bench`` names and print a table of medians."""
    names = [name for name in BENCHMARKS if name not in LONG] if config.bench == "all" else [config.bench]
    for name in names:
        if name not in BENCHMARKS:
            raise UserError(f"bench={name} is not a benchmark; there are: all, {', '.join(BENCHMARKS)}")
    silence_lightning()
    silence_lightning()
    build.check(config)
    build.resolve_auto(config, None)
    pl.seed_everything(config.seed, verbose=False)
    device = hardware.accelerator()
    data = instantiate(config.data)
    data.open()
    console = Console(highlight=False, markup=False)
    title = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, {device.type}, torch "
    table = Table(title=title + torch.__version__, title_justify="left")
    for column in ("bench", "what", "ms", "against", "ms", "ratio"):
        table.add_column(column, justify="right" if column in ("ms", "ratio") else "left")
    for name in names:
        for what, ours, against, theirs, ratio in BENCHMARKS[name](config, data, device):
            table.add_row(name, what, f"{ours:,.2f}", against, f"{theirs:,.2f}", f"{ratio:.2f}")
    console.print(table)


def loop(config: DictConfig, data: Any, device: torch.device) -> list[Row]:
    """A training step in Lightning's loop, logging included, against a bare loop on the same model."""
    steps, ours, theirs = config.steps, [], []
    for _ in range(config.repeats):
        ours.append(_lightning_loop(config, data, steps))
        theirs.append(_bare_loop(config, data, device, steps))
    return [_row("Lightning step", ours, "bare PyTorch step", theirs)]


def attention(config: DictConfig, data: Any, device: torch.device) -> list[Row]:
    """Causal attention forward and backward: flash against naive, at growing lengths."""
    rows = []
    for length in (256, 512, 1024, 2048):
        q, k, v = (torch.randn(1, 4, length, 64, device=device, requires_grad=True) for _ in range(3))
        mask = AttentionMask(causal=True)

        def both(attend: Attend, q=q, k=k, v=v, mask=mask) -> None:  # type: ignore[no-untyped-def]
            attend(q, k, v, mask).sum().backward()

        flash, naive = Attend(backend="flash"), Attend(backend="naive")
        ours, theirs = _paired(lambda: both(flash), lambda: both(naive), config.repeats, device, calls=10)  # noqa: B023
        rows.append(_row(f"flash, {length} positions", ours, "naive", theirs))
    return rows


def decoding(config: DictConfig, data: Any, device: torch.device) -> list[Row]:
    """256 characters drawn with the cache, against recomputing every position each time."""
    model = _model(config, data).to(device).eval()
    if not isinstance(model, CharLM) or model.context < 320:
        raise UserError("bench=decoding needs task=charlm with model.context of 320 or more: leave experiment out")
    prompt = data.ids["validation"][:16].tolist()

    def draw(cached: bool) -> None:
        for _ in generate(model, prompt, length=256, cached=cached, generator=torch.Generator().manual_seed(0)):
            pass

    ours, theirs = _paired(lambda: draw(True), lambda: draw(False), config.repeats, device, calls=1, warm_up=1)
    return [_row("256 characters, cached", ours, "recomputed", theirs)]


def optimizers(config: DictConfig, data: Any, device: torch.device) -> list[Row]:
    """One step of the configured optimizer against torch.optim.Muon (where torch has it) and AdamW."""
    model = _model(config, data).to(device)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    configured = instantiate(config.optimizer)(model)
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and name.startswith("blocks")]
    rivals: dict[str, torch.optim.Optimizer] = {"AdamW, fused": torch.optim.AdamW(model.parameters(), fused=True)}
    if hasattr(torch.optim, "Muon"):
        rivals["torch.optim.Muon (matrices only)"] = torch.optim.Muon(matrices)
    rows = []
    for name, rival in rivals.items():
        ours, theirs = _paired(configured.step, rival.step, config.repeats, device, calls=10)
        rows.append(_row(type(configured).__name__, ours, name, theirs))
    return rows


def maps(config: DictConfig, data: Any, device: torch.device) -> list[Row]:
    """A forward pass of one probe with every map captured and recorded, against the plain pass."""
    task = build.build_task(config, _model(config, data), compiled=False).to(device)
    (probe,) = data.probes(1, config.maps.length)

    def plain() -> None:
        with probing(task.model) as model:
            task.logits(model, probe.batch)

    def captured() -> None:
        take_maps(
            task, probe, layers=None, heads=None, scores=True, step=0, checkpoint=None, fingerprint=data.fingerprint
        )

    ours, theirs = _paired(captured, plain, config.repeats, device, calls=10)
    return [_row("capture and record", ours, "plain forward", theirs)]


def batches(config: DictConfig, data: Any, device: torch.device) -> list[Row]:
    """Making a training batch, augmentation included, against the whole step that waits for it."""
    model = _model(config, data).to(device)
    task = build.build_task(config, model, compiled=False).to(device)
    optimizer = task.optimizer(model)
    loader = iter(data.train_dataloader())

    def step() -> None:
        batch = task.transfer_batch_to_device(next(loader), device, 0)
        loss, _ = task.loss(task.logits(model, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    ours, theirs = _paired(lambda: next(loader), step, config.repeats, device, calls=5)
    return [_row(f"a batch of {config.data.batch_size}", ours, "a training step", theirs)]


def vit(config: DictConfig, data: Any, device: torch.device) -> list[Row]:
    """A step of our vision transformer (6 layers, width 192, 64 + 1 tokens, 128 images) against vit-pytorch's.

    Both eager, then both compiled.
    """
    with needs("bench=vit", "vit_pytorch"):
        from vit_pytorch import ViT as Theirs
    images, labels = torch.randn(128, 3, 32, 32, device=device), torch.randint(10, (128,), device=device)
    ours = _vit()
    sizes = {"dim": 192, "depth": 6, "heads": 6, "dim_head": 32, "mlp_dim": 768}
    theirs = Theirs(image_size=32, patch_size=4, num_classes=10, channels=3, **sizes)

    def stepper(model: nn.Module, dtype: torch.dtype, compiled: bool) -> Callable[[], None]:
        model = model.to(device).train()
        if compiled:
            model = cast(nn.Module, torch.compile(model))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step() -> None:
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = nn.functional.cross_entropy(model(images).float(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    rows = []
    for compiled, dtype in product((False, True), (torch.float32, torch.bfloat16)):
        pair = stepper(ours, dtype, compiled), stepper(theirs, dtype, compiled)
        milliseconds = _paired(*pair, config.repeats, device, calls=1, warm_up=2)
        name = f"{str(dtype).removeprefix('torch.')}, {'compiled' if compiled else 'eager'}"
        rows.append(_row(f"ViT, {name}", milliseconds[0], f"vit-pytorch, {name}", milliseconds[1]))
    return rows


def rollouts(config: DictConfig, data: Any, device: torch.device) -> list[Row]:
    """Capturing the weights of 64 images in all 6 layers and rolling them out, against the plain forward pass."""
    model, images = _vit().to(device).eval(), torch.randn(64, 3, 32, 32, device=device)

    @torch.no_grad()
    def captured() -> None:
        with capture(model) as maps:
            model(images)
        rollout([each.weights for each in maps.values()])

    @torch.no_grad()
    def plain() -> None:
        model(images)

    ours, theirs = _paired(captured, plain, config.repeats, device, calls=5)
    return [_row("capture and rollout, 64 images", ours, "plain forward", theirs)]


def _vit() -> ViT:
    """6 layers, width 192, 64 + 1 tokens."""
    return ViT(
        classes=10,
        channels=3,
        image_height=32,
        image_width=32,
        patch_size=4,
        stem="linear",
        pooling="cls",
        positions="learned",
        registers=0,
        depth=6,
        width=192,
        heads=6,
        kv_heads=None,
        feed_forward=768,
        activation="gelu",
        qk_norm=False,
        dropout=0.0,
        stochastic_depth=0.0,
        attention=partial(Attend, backend="flash"),
    )


def race(config: DictConfig, data: Any, device: torch.device) -> list[Row]:
    """A whole recipe, from the first update to its final validation loss, against 2,000 steps of plain AdamW.

    Not part of ``all``: minutes. The rival is the same model on the same batches of 12 windows.
    """
    ours, theirs, losses = [], [], []
    rival = config.copy()
    rival.optimizer = OmegaConf.load(CONF / "optimizer" / "adamw.yaml")
    rival.trainer.max_steps, rival.data.batch_size = 2000, 12
    rival_data = instantiate(rival.data)
    rival_data.open()
    for repeat in range(config.repeats):
        torch.manual_seed(config.seed + repeat)
        milliseconds, task = _whole_fit(config, data)
        ours.append(milliseconds)
        losses.append(measure(config, task, data, None)[0][config.watch.metric])
        theirs.append(_whole_fit(rival, rival_data)[0])
    what = f"{config.trainer.max_steps} steps to {config.watch.metric} {statistics.mean(losses):.3f}"
    return [_row(what, ours, "2,000 steps of AdamW", theirs)]


def _whole_fit(config: DictConfig, data: Any) -> tuple[float, Task]:
    """Milliseconds of a fit from its first batch to its last, in Lightning's loop, and what was trained."""
    task = build.build_task(config, _model(config, data), compiled=False)
    trainer = build.build_trainer(
        config,
        None,
        callbacks=[],
        logger=False,
        enable_checkpointing=False,
        max_epochs=-1,
        limit_val_batches=0,
    )
    started = time.perf_counter()
    trainer.fit(task, datamodule=data)
    return (time.perf_counter() - started) * 1e3, task


BENCHMARKS: dict[str, Callable[[DictConfig, Any, torch.device], list[Row]]] = {
    "loop": loop,
    "attention": attention,
    "decoding": decoding,
    "optimizers": optimizers,
    "maps": maps,
    "batches": batches,
    "vit": vit,
    "rollout": rollouts,
    "race": race,
}
LONG = ("race",)  # not part of "all"


def _model(config: DictConfig, data: Any) -> nn.Module:
    return build.build_model(config, data.sizes)


def _lightning_loop(config: DictConfig, data: Any, steps: int) -> float:
    """Milliseconds per step of a fit with the run's own callbacks and loggers; no validation, no maps."""
    task = build.build_task(config, _model(config, data), compiled=False)
    clock = _Clock(first=WARM_UP, last=WARM_UP + steps)
    live = ProgressCallback(
        unit=data.unit, console=Console(quiet=True, markup=False), log_every=config.trainer.log_every_n_steps
    )
    with TemporaryDirectory() as folder:
        path = Path(folder)
        loggers = [
            MetricsFile(path=path / "metrics.csv", resumed_at=None),
            *build.loggers(config, path, resumed_at=None),
        ]
        trainer = build.build_trainer(
            config,
            path,
            callbacks=[live, clock],
            logger=loggers,
            enable_checkpointing=False,
            max_epochs=-1,
            max_steps=WARM_UP + steps,
            limit_val_batches=0,
        )
        trainer.fit(task, datamodule=data)
    return clock.seconds / steps * 1e3


class _Clock(pl.Callback):
    """Wall time from the end of one step to the end of another."""

    def __init__(self, *, first: int, last: int) -> None:
        self.first, self.last, self.seconds = first, last, 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self.first:
            self.seconds = -time.perf_counter()
        elif trainer.global_step == self.last:
            self.seconds += time.perf_counter()


def _bare_loop(config: DictConfig, data: Any, device: torch.device, steps: int) -> float:
    """Milliseconds per step of the same training written as a plain loop."""
    model = _model(config, data).to(device)
    task: Task = build.build_task(config, model, compiled=False)
    optimizer = task.optimizer(model)
    scheduler = task.scheduler(optimizer)
    clip = config.trainer.gradient_clip_val
    loader = iter(data.train_dataloader())
    started = 0.0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            _wait(device)
            started = time.perf_counter()
        batch = task.transfer_batch_to_device(next(loader), device, 0)
        loss, _ = task.loss(task.logits(model, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
    _wait(device)
    return (time.perf_counter() - started) / steps * 1e3


def _paired(
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    repeats: int,
    device: torch.device,
    *,
    calls: int,
    warm_up: int = 3,
) -> tuple[list[float], list[float]]:
    """Milliseconds per call of both, alternating."""
    for _ in range(warm_up):
        ours()
        theirs()
    measured: tuple[list[float], list[float]] = ([], [])
    for function, into, _ in zip(cycle((ours, theirs)), cycle(measured), range(2 * repeats), strict=False):
        _wait(device)
        started = time.perf_counter()
        for _ in range(calls):
            function()
        _wait(device)
        into.append((time.perf_counter() - started) / calls * 1e3)
    return measured


def _row(what: str, ours: list[float], against: str, theirs: list[float]) -> Row:
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return what, statistics.median(ours), against, statistics.median(theirs), ratio


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
