"""MapRecord: the numbers of one attention map and where they come from; saved as safetensors plus JSON."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from triptych.files import write_text, written_whole
from triptych.maps.labels import shortened

NO_SOFTMAX = ("linear", "delta", "hard")  # operations whose weights come about otherwise; ``score`` says how


@dataclass(frozen=True, kw_only=True)
class MapRecord:
    """One attention operation on one example: some heads of one layer, with full provenance.

    Rows are queries, columns keys. ``weights`` are after softmax (each row sums to 1, or to 0 where nothing
    was visible); ``scores`` are before it (``-inf`` where the mask forbids), present only when they were
    asked for. Padding has been cut away.
    """

    weights: Tensor  # H T S
    scores: Tensor | None = None  # H T S
    visible: Tensor | None = None  # T S, bool: which keys the mask let each query see
    task: str
    site: str  # the Attend module's name in the model, e.g. "blocks.0.attention.attend"
    layer: int  # depth, counted from 0, among the sites of the same stack
    heads: tuple[int, ...]  # which heads the first axis holds
    kind: Literal["self", "cross"]
    causal: bool
    mask: str  # in words: "causal", "causal, window 16", "key padding", "none"
    score: str  # how a query meets a key, e.g. "scaled dot product"
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    example: str  # which probe example
    step: int  # parameter updates before this forward pass
    checkpoint: str | None  # file the weights came from; None while training
    data: str  # fingerprint of the data set
    backend: str  # the backend that ran the model, e.g. "flash"
    kernel: str  # what ran inside it, e.g. "flash_attention"
    dtype: str  # of the captured tensors, e.g. "float32"
    capture_error: float  # max |weights @ value - the backend's own context|
    picture: Tensor | None = None  # H W 1 or H W 3, bytes: where positions are patches, the picture they are of
    grid: tuple[int, int] | None = None  # rows and columns of patches, which are the last positions, row by row
    outcome: str | None = None  # what the model made of the example, in words

    def __post_init__(self) -> None:
        heads, queries, keys = self.weights.shape
        if heads != len(self.heads) or queries != len(self.query_labels) or keys != len(self.key_labels):
            raise ValueError(
                f"weights have shape {tuple(self.weights.shape)} but there are {len(self.heads)} heads, "
                f"{len(self.query_labels)} query labels and {len(self.key_labels)} key labels"
            )
        if self.scores is not None and self.scores.shape != self.weights.shape:
            raise ValueError(f"scores {tuple(self.scores.shape)}, but weights {tuple(self.weights.shape)}")
        if self.visible is not None and self.visible.shape != self.weights.shape[1:]:
            raise ValueError(f"visible {tuple(self.visible.shape)}, but weights {tuple(self.weights.shape)}")
        if self.grid is not None and (self.picture is None or self.grid[0] * self.grid[1] > min(queries, keys)):
            raise ValueError(
                f"a grid of {self.grid} patches needs a picture and as many positions, of {queries} x {keys}"
            )

    @property
    def operation(self) -> str:
        """Which operation this is, in words: "causal self-attention", "cross-attention"."""
        if self.kind == "cross":
            return "cross-attention"
        return f"{'causal' if self.causal else 'bidirectional'} self-attention"

    @property
    def masked(self) -> Tensor:
        """Where the mask forbade a look (bool, H T S): not the same as a weight that came out as 0.

        Taken from ``visible``, else from the scores' ``-inf``, else from ``causal`` (last query at last key).
        """
        if self.visible is not None:
            return ~self.visible.bool().expand(self.weights.shape)
        if self.scores is not None:
            return torch.isneginf(self.scores)
        queries, keys = self.weights.shape[1:]
        future = torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)
        # Guessed from a flag, so never hide a weight that is there.
        return (future if self.causal else torch.zeros_like(future)) & (self.weights.cpu() == 0)

    @property
    def stage(self) -> str:
        """What the weights are, in words: of which step of attention."""
        return "weights, without a softmax" if self.backend in NO_SOFTMAX else "weights after softmax"

    def caption(self, head: int | None = None) -> str:
        """The sentence that stands under every picture of this record."""
        which = f"head {head}" if head is not None else f"{len(self.heads)} heads"
        source = f"checkpoint {self.checkpoint}" if self.checkpoint else f"step {self.step}"
        return (
            f"{self.task}, {self.operation}, layer {self.layer}, {which}: {self.stage} "
            f"({self.score}; mask: {self.mask}); rows are queries, columns keys; {shortened(self.example)}, {source}, "
            f"data {self.data[:12]}, backend {self.backend} ({self.kernel}), {self.dtype}, "
            f"capture error {self.capture_error:.1e}"
        )


def save(records: list[MapRecord], path: Path | str) -> Path:
    """Write records to ``path`` (.safetensors, the tensors) and beside it ``.json`` (everything else).

    Both files appear whole or not at all. Returns the path of the tensors.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    described: list[dict[str, Any]] = []
    for index, record in enumerate(records):
        entry: dict[str, Any] = {}
        for field in fields(record):
            content = getattr(record, field.name)
            if isinstance(content, Tensor):
                # A copy: layers share one mask, and safetensors refuses tensors that share memory.
                tensors[f"{index}.{field.name}"] = content.detach().cpu().contiguous().clone()
            else:
                entry[field.name] = content
        described.append(entry)
    with written_whole(path) as temporary:
        save_file(tensors, temporary)
    write_text(path.with_suffix(".json"), json.dumps(described, ensure_ascii=False, indent=1))
    return path


def load(path: Path | str) -> list[MapRecord]:
    """Read back what ``save`` wrote."""
    path = Path(path)
    described = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    tensors: dict[str, Tensor] = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
            tensors[name] = file.get_tensor(name)
    records = []
    for index, entry in enumerate(described):
        for name in ("heads", "query_labels", "key_labels", "grid"):
            entry[name] = tuple(entry[name]) if entry.get(name) is not None else None
        for name in ("weights", "scores", "visible", "picture"):
            if f"{index}.{name}" in tensors:
                entry[name] = tensors[f"{index}.{name}"]
        records.append(MapRecord(**entry))
    return records
