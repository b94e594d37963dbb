"""Map records -> the compact JSON that the report's viewer reads, kept below a number of bytes.

One entry per record. Numbers are float16 (three significant digits), little endian, base64, in the order
head, query, key, and only for cells that the mask lets the query see; ``masks`` says which those are (packed
bits). Labels, masks and pictures that repeat are stored once and referred to by their index.
"""

import base64
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from triptych.maps.labels import label, shortened
from triptych.maps.record import MapRecord, load

_Entry = dict[str, Any]
# Provenance that the page shows beside every map, under the record's own names
_FACTS = (
    *("task", "site", "layer", "kind", "operation", "causal", "mask", "score", "stage"),
    *("example", "step", "data", "backend", "kernel", "dtype"),
)


def pack(folder: Path, budget: int, notes: list[str]) -> dict[str, Any] | None:
    """The moments in ``folder`` (step-*.safetensors) as at most ``budget`` bytes of JSON; None without maps.

    Where that is not enough, moments between the first and the last are left out; then scores; then all but
    the last moment, and as many of its records as must be. ``notes`` says so.
    """
    labels: dict[tuple[str, ...], int] = {}
    masks: dict[str, int] = {}
    pictures: dict[str, int] = {}
    moments = []
    for path in sorted(folder.glob("step-*.safetensors")):
        try:
            moments.append([_entry(record, labels, masks, pictures) for record in load(path)])
        except Exception as error:  # whatever is wrong with one file, the page still comes out
            notes.append(f"maps/{path.name} could not be read ({type(error).__name__}).")
    tables = _tables(labels, masks, pictures)
    room = budget - len(json.dumps(tables)) - 40
    entries = _fitting([moment for moment in moments if moment], room, notes)
    return {"records": entries, **tables} if entries else None


def pack_runs(folders: Sequence[Path], budget: int, notes: list[str]) -> dict[str, Any] | None:
    """The last moment in each run's folder of maps, weights alone, as at most ``budget`` bytes; None without maps.

    A record's ``run`` says which folder it is from. Where there is too little room, later examples go first, then
    the maps of the last folders; ``notes`` says so.
    """
    labels: dict[tuple[str, ...], int] = {}
    masks: dict[str, int] = {}
    pictures: dict[str, int] = {}
    parts: dict[tuple[int, int], list[_Entry]] = {}  # by place of the example in its run, then by run
    for run, folder in enumerate(folders):
        records: list[MapRecord] = []
        for path in sorted(folder.glob("step-*.safetensors"), reverse=True):
            try:
                records = load(path)
                break
            except Exception:  # a killed run may have left its last moment without its second file: the one before
                notes.append(f"{path} could not be read; an earlier moment of that run is shown.")
        examples = list(dict.fromkeys(record.example for record in records))
        for record in records:
            entry = {**_entry(record, labels, masks, pictures), "scores": None, "run": run}
            parts.setdefault((examples.index(record.example), run), []).append(entry)
    tables = _tables(labels, masks, pictures)
    room = budget - len(json.dumps(tables)) - 40
    kept: list[_Entry] = []
    for key in sorted(parts):
        size = sum(len(json.dumps(entry)) + 2 for entry in parts[key])
        if size > room:
            break
        room -= size
        kept += parts.pop(key)
    if parts:
        runs = len({entry["run"] for entry in kept})
        of = len({run for _, run in parts} | {entry["run"] for entry in kept})
        notes.append(
            f"To keep this page small it holds maps of {runs} of {of} runs, and not of every example; all are in the "
            "runs' own reports."
        )
    return {"records": kept, **tables} if kept else None


def _tables(labels: dict[tuple[str, ...], int], masks: dict[str, int], pictures: dict[str, int]) -> dict[str, Any]:
    """What entries refer to by index."""
    return {
        "labels": [[label(token) for token in tokens] for tokens in labels],
        "masks": list(masks),
        "pictures": list(pictures),
    }


def _fitting(moments: list[list[_Entry]], room: int, notes: list[str]) -> list[_Entry]:
    """The entries that fit into ``room`` bytes, and a note on what was left out."""
    sizes = [sum(len(json.dumps(entry)) + 2 for entry in moment) for moment in moments]
    for count in range(len(moments), min(2, len(moments)) - 1, -1):
        chosen = np.linspace(0, len(moments) - 1, count).round().astype(int).tolist()
        if count and sum(sizes[i] for i in chosen) <= room:
            if count < len(moments):
                notes.append(
                    f"To keep this page small it holds {count} of {len(moments)} moments (the first, the "
                    "last, evenly spaced between); all are in maps/."
                )
            return [entry for i in chosen for entry in moments[i]]
    if any(entry["scores"] for moment in moments for entry in moment):
        notes.append("Scores before softmax were left out to keep this page small; they are in maps/.")
        return _fitting([[{**entry, "scores": None} for entry in moment] for moment in moments], room, notes)
    kept = []
    for entry in moments[-1] if moments else []:
        room -= len(json.dumps(entry)) + 2
        if room < 0:
            break
        kept.append(entry)
    if moments:
        notes.append(
            f"To keep this page small it holds {len(kept)} of the last moment's {len(moments[-1])} maps; all "
            "moments are in maps/."
        )
    return kept


def _entry(
    record: MapRecord, labels: dict[tuple[str, ...], int], masks: dict[str, int], pictures: dict[str, int]
) -> _Entry:
    visible = ~record.masked.cpu().numpy()
    return {name: getattr(record, name) for name in _FACTS} | {
        "title": shortened(record.example),
        "capture_error": record.capture_error if math.isfinite(record.capture_error) else None,
        "heads": list(record.heads),
        "checkpoint": Path(record.checkpoint).name if record.checkpoint else None,
        "shape": list(record.weights.shape),
        "queries": labels.setdefault(record.query_labels, len(labels)),
        "keys": labels.setdefault(record.key_labels, len(labels)),
        "visible": masks.setdefault(_base64(np.packbits(visible)), len(masks)),
        "weights": _half(record.weights, visible),
        "scores": None if record.scores is None else _half(record.scores, visible),
        "grid": None if record.grid is None else list(record.grid),
        "picture": None if record.picture is None else pictures.setdefault(_png(record.picture), len(pictures)),
        "outcome": record.outcome,
    }


def _half(values: Tensor, visible: npt.NDArray[np.bool_]) -> str:
    numbers = values.detach().float().cpu().numpy()[visible]
    with np.errstate(over="ignore"):
        return _base64(numbers.astype("<f2"))


def _png(picture: Tensor) -> str:
    """H W 1 or H W 3, bytes, as the address of an image."""
    pixels = picture.cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _base64(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
