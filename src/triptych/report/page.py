"""What every HTML page here is made with: one file that opens offline, holds only our scripts, and fetches nothing."""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from triptych.errors import UserError
from triptych.files import written_whole

LIMIT = 8_000_000  # bytes of a whole page; plotly.js alone is 4.8 million


def render(template: str, content: dict[str, Any], *, scripts: Sequence[str], styles: Sequence[str]) -> bytes:
    """A page: ``template`` filled with ``content``, with plotly.js, then ``scripts`` in this order, and ``styles``."""
    codes = [plotly(), *(Markup(_asset(name)) for name in scripts)]
    style = Markup("\n".join(_asset(name) for name in styles))
    # The page may hold text from anywhere. Escaping is the first wall, this policy the second: no script but
    # these runs, and nothing is fetched.
    hashes = " ".join(f"'sha256-{_sha256(code)}'" for code in codes)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    text = _template(template).render(**content, scripts=codes, style=style, policy=Markup(policy))
    return text.encode("utf-8", errors="replace")  # a lone surrogate in a text must not cost the page


def write_whole(path: Path, page: bytes, what: str) -> None:
    """Write a page whole or not at all. Raises UserError, calling it ``what``, when it cannot be written."""
    try:
        with written_whole(path) as temporary:
            temporary.write_bytes(page)
    except OSError as error:
        raise UserError(f"{what} could not be written to {path}: {error.strerror}.") from error


def island(data: Any) -> Markup:
    """JSON that is safe inside <script type="application/json">; ASCII, so U+2028/9 are escaped as well."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


@cache
def plotly() -> Markup:
    """plotly.js itself."""
    from plotly.offline import get_plotlyjs  # 5 MB of text: only when a page is written

    return Markup(get_plotlyjs())


@cache
def _template(name: str) -> Any:
    environment = Environment(
        loader=PackageLoader("triptych.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


@cache
def _asset(name: str) -> str:
    return files("triptych.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
