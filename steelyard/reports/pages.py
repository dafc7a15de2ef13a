"""One HTML file with everything in it, from a template beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from steelyard.files import replacing


def write_page(target: Path, template: str, content: dict[str, Any]) -> Path:
    """Fill a template and write the page, atomically.

    Args:
        target: the page.
        template: name of the template; it extends `frame.html`, which wants title, lead and cards.
        content: what the template names; text is escaped unless it is `Markup`.

    Returns:
        `target`.

    Raises:
        OSError: no room to write.
    """
    environment = Environment(
        loader=PackageLoader("steelyard.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template(template).render(**content)
    with replacing(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target
