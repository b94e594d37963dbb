"""Maps of one example as records: of every attention site, or of chosen layers and heads."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from triptych.data.batches import Probe
from triptych.errors import UserError
from triptych.maps.capture import capture, choose_heads, choose_sites, probing
from triptych.maps.record import MapRecord
from triptych.tasks.base import Task


def check_choice(model: nn.Module, maps: Mapping[str, Any]) -> None:
    """Raise UserError for numbers of ``conf/maps`` out of range, and for layers or heads that ``model`` lacks."""
    for name, least in (("every_n_steps", 0), ("probes", 0), ("length", 1)):
        if maps[name] < least:
            raise UserError(f"maps.{name}={maps[name]}; it must be at least {least}")
    for name in ("layers", "heads"):
        if maps[name] is not None and not len(maps[name]):
            raise UserError(f"maps.{name}=[] chooses none; use null for all, or maps=none for no maps")
    for site in choose_sites(model, maps["layers"]):
        heads = getattr(model.get_submodule(site.name.rpartition(".")[0]), "heads", None)
        if heads is not None:
            choose_heads(heads, maps["heads"])


def take_maps(
    task: Task,
    probe: Probe,
    *,
    layers: Sequence[int | str] | None,
    heads: Sequence[int] | None,
    scores: bool,
    step: int,
    checkpoint: str | None,
    fingerprint: str,
) -> list[MapRecord]:
    """Records of one probe: one per attention site, all chosen heads, in float32 and eval mode."""
    batch = task.transfer_batch_to_device(probe.batch, task.device, 0)
    with probing(task.model) as model, capture(model, layers, heads, scores=scores) as maps:
        outcome = task.outcome(task.logits(model, batch), probe)
    records = []
    for site, captured in maps.items():
        weights, score, visible = captured.example(0)
        query, key = (tuple(probe.labels[stream]) for stream in task.streams(site, captured.kind))  # type: ignore[arg-type]
        records.append(
            MapRecord(
                weights=weights,
                scores=score,
                visible=visible,
                task=task.name,
                site=site,
                layer=captured.layer,
                heads=captured.heads,
                kind=captured.kind,  # type: ignore[arg-type]
                causal=captured.mask.causal,
                mask=captured.mask.describe(),
                score=captured.score,
                query_labels=query,
                key_labels=key,
                example=probe.example,
                step=step,
                checkpoint=checkpoint,
                data=fingerprint,
                backend=captured.backend,
                kernel=captured.kernel,
                dtype=str(weights.dtype).removeprefix("torch."),
                capture_error=captured.error,
                picture=probe.picture,
                grid=probe.grid,
                outcome=outcome,
            )
        )
    return records
