"""What a decoder says of a plan, as a sentence with its place and what to do."""

from __future__ import annotations

import difflib
import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

from cbtrace.recorder.experiments.arrivals import Arrivals
from cbtrace.recorder.experiments.lengths import Lengths
from cbtrace.recorder.experiments.model_source import ModelSource
from cbtrace.recorder.experiments.plan_spec import Generation, Plan, Slos, TimeLimits, Variant
from cbtrace.recorder.experiments.prefixes import SharedPrefix
from cbtrace.recorder.experiments.settings import Settings
from cbtrace.recorder.experiments.spec_error import Path as At
from cbtrace.recorder.experiments.spec_error import SpecError
from cbtrace.recorder.experiments.workload import WorkloadSpec

_WHERE = re.compile(r"(.*?)(?: - at `(?:key in )?\$(.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def explained(message: str, above: At = ()) -> SpecError:
    """One sentence, with its place, of what the decoder says of the part of a plan that is ``above``."""
    parts = _WHERE.match(message)
    what, where = (parts[1], parts[2] or "") if parts is not None else (message, "")
    at: At = tuple(key or int(index) for key, index in _STEP.findall(where) if index != "...")
    name = ".".join(str(part) for part in (*above, *at) if isinstance(part, str)) or "the plan"
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what)
    missing = re.fullmatch(r"Object missing required field `(.*)`", what)
    if unknown is not None:
        near = difflib.get_close_matches(unknown[1], _KNOWN, 1)
        remedy = f"did you mean {near[0]}?" if near else "take it out."
        return SpecError(f"{name} has no key {unknown[1]!r}: {remedy}", at=(*at, unknown[1]))
    if missing is not None:
        return SpecError(f"{name} lacks {missing[1]!r}: add it.", at=at)
    what = what.replace("`", "").replace("Expected ", "must be ")
    if "matching regex" in what:
        what = 'must be a whole number above 0, or a share of the baseline\'s value such as "50%"'
    choices = _choices_at((*above, *at)) if what.startswith("Invalid") else []
    if choices:
        what += f" (name one of {', '.join(choices)})"
    return SpecError(f"{name}: {what[0].lower()}{what[1:]}: change its value.", at=at)


def _fields(*kinds: Any) -> list[str]:
    return sorted({name for kind in kinds for name in kind.__struct_encode_fields__})


def _choices_at(at: At) -> list[str]:
    """What may stand at a place where only some values may."""
    if at[-1:] == ("kind",) and "variants" not in at:
        parts = {"prompt_tokens": Lengths, "new_tokens": Lengths, "arrivals": Arrivals}
        union: Any = parts.get(str(at[-2]), WorkloadSpec) if len(at) > 1 else WorkloadSpec
        return sorted(str(kind.__struct_config__.tag) for kind in union.__args__)
    hints = {name: hint for kind in _STRUCTS for name, hint in get_type_hints(kind).items()}
    return [str(choice) for choice in _literals(hints.get(str(at[-1])))] if at else []


def _literals(hint: Any) -> list[Any]:
    """The values of all ``Literal`` in a type."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [value for part in get_args(hint) for value in _literals(part)]


_PARTS = (*WorkloadSpec.__args__, *Lengths.__args__, *Arrivals.__args__, SharedPrefix)
_STRUCTS = (*_PARTS, Plan, ModelSource, Generation, Settings, TimeLimits, Slos, Variant)
_KNOWN = _fields(*_STRUCTS)


def syntax_error(message: str, text: str) -> str:
    """Bring the parser's "(at line 3, column 5)" to the front, as in all other messages."""
    place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    if place is None:
        return f": {message}"
    line = place[1] or str(text.count("\n") + 1)
    return f", line {line}: {message[: place.start()]}"
