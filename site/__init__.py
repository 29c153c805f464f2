"""Turns traces into analysis and static pages. Needs neither torch nor transformers.

>>> from cbtrace.site.build import build_site
>>> build_site([Path("a.cbt"), Path("b.cbt")], Path("site"))
"""
