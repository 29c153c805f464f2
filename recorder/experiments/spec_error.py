"""What is wrong with a specification, and where in it; the reader of the file it came from adds the line."""

from __future__ import annotations

from cbtrace.traces.errors import UsageError, declare
from cbtrace.traces.schema import Severity

Path = tuple[str | int, ...]
"""Where something stands in a document: keys and positions from the top, such as ``("variants", 1, "set")``."""


class SpecError(UsageError):
    """A specification asks for something that cannot be had. The text says what to do instead.

    Attributes:
        at: where it stands in the document; empty when it is the document as a whole.
    """

    slug = "plan-invalid"

    def __init__(self, text: str, *, at: Path = (), slug: str | None = None) -> None:
        super().__init__(text, slug=slug)
        self.at = at

    def under(self, *above: str | int) -> SpecError:
        """The same error, seen from further up in the document."""
        return SpecError(str(self), at=(*above, *self.at), slug=self.slug)


declare(
    "plan-invalid",
    Severity.BROKEN,
    "A plan or workload asks for something that does not exist or does not fit together.",
    "Correct the line that the message names; `cbtrace plan init` writes a plan that is correct.",
)
