"""Reads plans: one file says what is held fixed, what is changed, one variable at a time, and how often it is repeated.

A plan is a TOML file. Everything in it is checked before anything runs, and a mistake is told with its line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from cbtrace.recorder.experiments.plan_checks import check_plan
from cbtrace.recorder.experiments.plan_messages import explained, syntax_error
from cbtrace.recorder.experiments.plan_spec import Plan
from cbtrace.recorder.experiments.spec_error import Path as At
from cbtrace.recorder.experiments.spec_error import SpecError
from cbtrace.recorder.experiments.toml_lines import TomlLines
from cbtrace.recorder.experiments.workload import WorkloadSpec
from cbtrace.traces.errors import declare
from cbtrace.traces.schema import Severity


def read_plan(path: Path) -> Plan:
    """Read and check a plan.

    Raises:
        SpecError: it is missing or wrong; the message names the line and what to do.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read ({error.strerror}): name a plan, or write one with cbtrace plan init.",
            slug="plan-not-found",
        ) from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not a text in UTF-8: save it as one.") from error
    try:
        return parse_plan(text, path.parent)
    except SpecError as error:
        line = TomlLines(text).line_of(error.at)
        raise SpecError(f"{path}, line {line}: {error}", at=error.at, slug=error.slug) from error
    except RecursionError:
        raise SpecError(f"{path}, line 1: It is nested too deeply: write it as cbtrace plan init does.") from None
    except msgspec.DecodeError as error:
        raise SpecError(f"{path}{syntax_error(str(error), text)}: correct the TOML.", slug="plan-invalid") from error


def parse_plan(text: str, folder: Path) -> Plan:
    """Make a plan of the text of one. File names in it are relative to ``folder``.

    Raises:
        SpecError: something in it is wrong; ``at`` says where.
        msgspec.DecodeError: it is no TOML.
    """
    raw = msgspec.toml.decode(text.encode())
    workloads = raw.pop("workloads", {})
    plan: Plan = _convert(raw, Plan, ())
    if not isinstance(workloads, dict):
        raise SpecError("workloads must be tables such as [workloads.chat].", at=("workloads",))
    named = {name: _convert(spec, WorkloadSpec, ("workloads", name)) for name, spec in workloads.items()}
    plan = msgspec.structs.replace(plan, workloads=named)
    check_plan(plan, folder)
    return plan


def _convert(raw: Any, kind: Any, at: At) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise explained(str(error), at).under(*at) from None


declare(
    "plan-not-found",
    Severity.BROKEN,
    "There is no plan of that name that can be read.",
    "Write one with `cbtrace plan init -o plan.toml`.",
)
