"""Pictures of records, as matrices or over the picture whose patches they are of."""

from triptych.maps.record import MapRecord
from triptych.pictures import images, render


def overview(records: list[MapRecord]) -> render.Picture:
    """All layers and heads of one moment: over the picture where positions are patches of one, else as matrices."""
    return (render if records[0].grid is None else images).overview(records)


def sheet(record: MapRecord) -> render.Picture:
    """All heads of one layer: over the picture where positions are patches of one, else as matrices."""
    return (render if record.grid is None else images).sheet(record)
