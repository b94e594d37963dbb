"""What is published arrives in TensorBoard as it was (W&B is read back in tests/test_run.py)."""

import io
from pathlib import Path

import numpy as np
from PIL import Image
from pytorch_lightning.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from triptych.loggers import publish
from triptych.runs.metrics_file import MetricsFile


def test_tensorboard_gets_pictures_and_texts_and_others_are_left_alone(tmp_path: Path) -> None:
    loggers = [
        MetricsFile(path=tmp_path / "metrics.csv", resumed_at=None),
        TensorBoardLogger(str(tmp_path), name="", version="tensorboard"),
    ]
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    text = "# no heading\n  <b>two</b>\n\n* no list"
    publish.picture(loggers, "maps/overview", image, 3, caption="what it shows")
    publish.text(loggers, "samples", text, 3)
    publish.page(loggers, "report", tmp_path / "report.html", 3)
    publish.close(loggers, True)

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (event,) = events.Images("maps/overview")
    assert event.step == 3
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(event.encoded_image_string))), image)
    (tensor,) = events.Tensors("samples/text_summary")
    shown = tensor.tensor_proto.string_val[0].decode()
    assert all(line.startswith("    ") for line in shown.split("\n"))  # verbatim in Markdown
    assert shown.replace("\n    ", "\n")[4:] == text
