"""A report is built on a laptop with neither torch nor transformers: a clean interpreter proves it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from site_runs import busy_run

HEAVY = ("torch", "transformers", "psutil", "pynvml", "cbtrace.recorder")


def loaded_after(code: str) -> set[str]:
    command = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_building_a_site_loads_nothing_heavy(tmp_path: Path) -> None:
    trace, out = tmp_path / "run.cbt", tmp_path / "site"
    busy_run(trace)
    loaded = loaded_after(
        "from pathlib import Path\nfrom cbtrace.site.build import build_site\n"
        f"build_site([Path({str(trace)!r})], Path({str(out)!r}))"
    )
    assert (out / "index.html").exists()
    assert not loaded.intersection(HEAVY)


def test_the_analysis_needs_neither_charts_nor_templates() -> None:
    loaded = loaded_after("import cbtrace.site.analysis.summary")
    assert not loaded.intersection({*HEAVY, "altair", "jinja2"})
