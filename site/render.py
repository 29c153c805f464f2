"""The single door to jinja2."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cbtrace.site import formats

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)
"""What the pages need, and all that they may do. Also meant as a header for whoever serves a site."""


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The jinja2 environment: escapes everything, and a missing value is an error."""
    made = Environment(
        loader=PackageLoader("cbtrace.templates", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for name in ("number", "milliseconds", "from_ns", "seconds", "size", "percent", "instant", "fact"):
        made.filters[name] = getattr(formats, name)
    made.globals["csp"] = CONTENT_SECURITY_POLICY
    return made


def render(template: str, **context: Any) -> str:
    """Fill ``template``. The context is plain data: dataclasses, lists, strings and numbers."""
    return environment().get_template(template).render(**context)


def canonical_json(data: Any) -> str:
    """JSON of the same bytes for the same data: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def data_script(key: str, data: Any) -> str:
    """A script that hands ``data`` to the page under ``key``: works from ``file://``, where ``fetch`` does not.

    It holds no ``<``, so that it can neither end a script nor begin a comment where it is put inside a page.
    """
    return f"cbtrace.load({canonical_json(key)},{canonical_json(data)});\n".replace("<", "\\u003c")
