"""Writes the vendored Vega bundle again: ``python -m cbtrace.templates.vendor_vega``.

It comes from vl-convert, a tool for development only. A test compares the vendored file with what the
installed vl-convert writes.
"""

from __future__ import annotations

from pathlib import Path

BUNDLE = Path(__file__).parent / "assets" / "vendor" / "vega.js"


def main() -> None:
    """Write the bundle: Vega, Vega-Lite and Vega-Embed as one classic script."""
    import vl_convert

    # vl-convert's stub asks for a snippet; without one the bundle sets the usual globals, which is what pages use.
    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    BUNDLE.write_text(bundle, encoding="utf-8")


if __name__ == "__main__":
    main()
