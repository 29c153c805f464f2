"""Watches a running continuous-batching engine and writes a trace. Importing it imports neither torch nor Transformers.

>>> from cbtrace.recorder import record
>>> with record("run.cbt", name="baseline"):
...     model.generate_batch(inputs)
"""

from cbtrace.recorder.errors import RecordError
from cbtrace.recorder.session import Recording, attach, record
from cbtrace.recorder.sink import RecordingStopped

__all__ = ["RecordError", "Recording", "RecordingStopped", "attach", "record"]
