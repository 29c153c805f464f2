"""What the documents say about exports is what the code exports: every table, column, code and key, and no others."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cbtrace.site.analysis.summary import SUMMARY_SCHEMA, summarize, summary_json
from cbtrace.traces import columns
from cbtrace.traces.export.tables import TABLES
from cbtrace.traces.schema import AdmissionStop, EndReason, EventKind, RequestFlag, StepFlag
from trace_builder import eventful

DOCS = Path(__file__).parent.parent / "docs"
EXPORTS = (DOCS / "exports.md").read_text(encoding="utf-8")
SUMMARY = (DOCS / "summary-schema.md").read_text(encoding="utf-8")
CLASSES = {
    "steps": columns.Steps,
    "step_requests": columns.StepRequests,
    "requests": columns.Requests,
    "tokens": columns.Tokens,
    "admissions": columns.Admissions,
    "events": columns.Events,
    "memory": columns.MemorySamples,
    "gpu": columns.GpuSamples,
}
CODES = {
    "steps.stop": AdmissionStop,
    "steps.flags": StepFlag,
    "requests.end_reason": EndReason,
    "requests.flags": RequestFlag,
    "events.kind": EventKind,
}


def rows(text: str) -> list[list[str]]:
    """Rows of Markdown tables, as cells, without their heads."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]


@pytest.mark.parametrize("table", TABLES)
def test_every_column_has_a_row_with_its_meaning_and_unit(table: str) -> None:
    section = EXPORTS.partition(f"\n### {table}\n")[2].partition("\n### ")[0]
    listed = rows(section)
    assert [row[0] for row in listed] == [f"`{field.name}`" for field in fields(CLASSES[table])]
    for name, unit, meaning in listed:
        assert meaning
        if name.endswith("_ns`"):
            assert unit == "ns"
        assert (unit == "code") == (name.strip("`") in {"stop", "flags", "end_reason", "kind", "throttle"})


def test_no_table_is_documented_that_is_not_exported() -> None:
    assert re.findall(r"\n### (\w+)\n", EXPORTS) == [*TABLES, "Codes"]


@pytest.mark.parametrize("column", CODES)
def test_codes_are_those_of_the_schema(column: str) -> None:
    (values,) = [row[1] for row in rows(EXPORTS) if row[0] == f"`{column}`"]
    expected = [f"{int(code)} {(code.name or '').lower().replace('_', ' ')}" for code in CODES[column]]
    assert values.split(", ") == expected


def keys(value: Any, prefix: str = "") -> list[str]:
    found = []
    for key, part in value.items():
        opened = isinstance(part, dict) and not key.endswith("_ms") and key != "tags"
        found += [f"{prefix}{key}"] if not opened else keys(part, f"{prefix}{key}.")
    return found


def test_every_key_of_the_summary_has_a_row(tmp_path: Path) -> None:
    found = summary_json(summarize(eventful(tmp_path / "run.cbt").close()))
    listed = [row[0].strip("`") for row in rows(SUMMARY)]
    assert [key for key in listed if key != "kv"] == keys(found)
    assert f"This is schema {SUMMARY_SCHEMA}:" in SUMMARY
    assert all(row[2] for row in rows(SUMMARY))


def test_every_key_of_a_distribution_is_described(tmp_path: Path) -> None:
    found = summary_json(summarize(eventful(tmp_path / "run.cbt").close()))["ttft_ms"]
    paragraph = SUMMARY.partition("A *distribution*")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", paragraph)) - {"null"} == found.keys()
