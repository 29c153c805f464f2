"""Plans that come with cbtrace, to start from."""

from __future__ import annotations

from importlib.resources import files

from cbtrace.traces.errors import UsageError, declare
from cbtrace.traces.schema import Severity

_FOLDER = files("cbtrace.recorder.experiments") / "plans"


def template_names() -> list[str]:
    """Names of the plans, sorted."""
    return sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml"))


def template_text(name: str) -> str:
    """The text of a plan.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in template_names():
        raise UsageError(f"There is no template {name!r}: name one of {', '.join(template_names())}.")
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


declare(
    "plan-exists", Severity.BROKEN, "The file for the new plan exists.", "Name another file, or allow replacing it."
)
