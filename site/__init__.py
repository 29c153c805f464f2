"""Turns traces into analysis and static pages. Needs neither torch nor transformers.

>>> from cbtrace.site import build_site
>>> build_site([Path("a.cbt"), Path("b.cbt")], Path("site"))
"""

from cbtrace.site.build import BuildReport, BuiltRun, build_site

__all__ = ["BuildReport", "BuiltRun", "build_site"]
