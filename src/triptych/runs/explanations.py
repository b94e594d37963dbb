"""The findings of an explanation, as explain.json in the folder that they are of."""

import json
from pathlib import Path
from typing import Any

from triptych.files import write_text

FILE = "explain.json"


def write(folder: Path, explained: dict[str, Any], **origin: Any) -> Path:
    """Keep it as ``folder``/explain.json. origin: task, step, checkpoint, split, data fingerprint."""
    path = folder / FILE
    text = json.dumps({**origin, **explained}, ensure_ascii=False, indent=1, allow_nan=False)
    write_text(path, text + "\n")
    return path
