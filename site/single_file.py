"""Makes one HTML file of a page and all that it needs: nothing is loaded from beside it.

It works on pages as they are rendered. Whatever came from a trace is escaped in them, so that a tag, or a quote that
ends an attribute, is always one of our templates.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

_STYLE = re.compile(r'<link rel="stylesheet" href="([^"]*)">')
_SCRIPT = re.compile(r'<script(?: defer)? src="([^"]*)"></script>')
_POLICY = re.compile(r'(<meta http-equiv="Content-Security-Policy" content=")[^"]*(">)')
_MAIN = re.compile(r'<main id="main"[^>]*>(.*)</main>', re.DOTALL)
_CRUMB = re.compile(r'<p class="crumb">.*?</p>\n?', re.DOTALL)
_NAV_LINK = re.compile(r'<a href="([^"]*)"[^>]*>[^<]*</a>\n?')
_NAV = re.compile(r"<nav .*?</nav>", re.DOTALL)
_LINK = re.compile(r'(<a\b[^>]*?) href="([^"]*\.html)(#[^"]*)?"')
_HEADING = re.compile(r"(</?h)([1-5])\b")


def single_file(page: str, files: Mapping[str, str], appended: Sequence[str] = ()) -> str:
    """Return ``page`` with everything inside: style, scripts, data, and the main parts of the ``appended`` pages.

    ``files`` are texts by path relative to a site: the pages, their assets, and the data that ``page`` may ask for,
    which is all there from the start. Links to pages that are inside lead to their places in the file; links to others
    are plain text. The file's policy lets exactly the scripts and styles in it run.
    """
    html = files[page].replace("</main>", _appendix(files, appended) + "</main>")
    html = _CRUMB.sub("", html)
    html = _NAV.sub(lambda nav: _NAV_LINK.sub(partial(_inside_only, page, appended), nav[0]), html)
    html = _LINK.sub(partial(_local_link, page, appended), html)
    styles: list[str] = []
    scripts: list[str] = []
    linked = [_path(page, address) for address in _SCRIPT.findall(html)]
    bodies = {name: files[name] for name in linked}
    # What the page would load later stands behind the first script, which is the one that takes data.
    later = "".join(text for name, text in files.items() if name.endswith(".js") and name not in bodies)
    bodies[linked[0]] += "\n" + later

    html = _STYLE.sub(lambda found: _element("style", files[_path(page, found[1])], styles), html)
    html = _SCRIPT.sub(lambda found: _element("script", bodies[_path(page, found[1])], scripts), html)
    return _POLICY.sub(lambda found: found[1] + single_file_policy(scripts, styles) + found[2], html, count=1)


def single_file_policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """A policy under which these scripts and styles work inside a page, and nothing else does."""
    return (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _element(tag: str, text: str, made: list[str]) -> str:
    """An element with ``text`` inside, which is noted in ``made`` as a browser will see it."""
    safe = text.replace("</", "<\\/") if tag == "script" and f"</{tag}" in text else text
    made.append(safe)
    return f"<{tag}>{safe}</{tag}>"


def _path(page: str, address: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), address))


def _appendix(files: Mapping[str, str], appended: Sequence[str]) -> str:
    parts = []
    for name in appended:
        main = _MAIN.search(files[name])
        if main is None:
            raise ValueError(f"{name} has no main part")
        lower = _HEADING.sub(lambda found: f"{found[1]}{int(found[2]) + 1}", main[1])
        parts.append(f'<section class="appendix" id="{_anchor(name)}">{lower}</section>\n')
    return "".join(parts)


def _anchor(name: str) -> str:
    return f"page-{posixpath.basename(name).removesuffix('.html')}"


def _target(page: str, appended: Sequence[str], address: str) -> str | None:
    """Where in the file the page at ``address`` begins; ``None`` when it is not inside."""
    address, _, _ = address.partition("#")
    if not address or _path(page, address) == page:
        return "#main"
    # Appended pages lie at the root of the site, and so do the pages that they name.
    name = posixpath.basename(address)
    return f"#{_anchor(name)}" if name in appended else None


def _inside_only(page: str, appended: Sequence[str], link: re.Match[str]) -> str:
    return link[0] if _target(page, appended, link[1]) else ""


def _local_link(page: str, appended: Sequence[str], link: re.Match[str]) -> str:
    target = _target(page, appended, link[2])
    if target is None:
        return link[1]
    return f'{link[1]} href="{link[3] or target}"'
