"""The single door to jinja2."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cbtrace.site import formats

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)
"""What the pages need, and all that they may do. Also meant as a header for whoever serves a site."""


_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
"""Control characters, and those that turn the direction of writing: a name of a trace could show what it is not."""


def seen(value: Any) -> Any:
    """A text with a replacement character for each one that cannot be seen; anything else as it is."""
    if not isinstance(value, str):
        return value
    text = _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", value)
    return Markup(text) if isinstance(value, Markup) else text


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The jinja2 environment: escapes everything, and a missing value is an error."""
    made = Environment(
        loader=PackageLoader("cbtrace.templates", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=seen,
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


def _seen_inside(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _seen_inside(value) for key, value in data.items()}
    return [_seen_inside(value) for value in data] if isinstance(data, (list, tuple)) else seen(data)


def canonical_json(data: Any) -> str:
    """JSON of the same bytes for the same data: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def data_script(key: str, data: Any) -> str:
    """A script that hands ``data`` to the page under ``key``: works from ``file://``, where ``fetch`` does not.

    It holds no ``<``, so that it can neither end a script nor begin a comment where it is put inside a page. Characters
    that cannot be seen are replaced, as in templates (:func:`seen`).
    """
    text = canonical_json(data)
    if "\\" in text:  # something is escaped: only then can there be a character that cannot be seen
        text = canonical_json(_seen_inside(data))
    return f"cbtrace.load({canonical_json(key)},{text});\n".replace("<", "\\u003c")
