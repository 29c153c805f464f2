"""A user's program that prints all it can see of how it was started."""

import json
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    hidden = ("PYTHONPATH", "CBTRACE_RECORD", "CBTRACE_RECORD_MAIN", "_")
    seen = {
        "argv": sys.argv,
        "orig_argv": getattr(sys, "orig_argv", None),
        "name": __name__,
        "file": globals().get("__file__"),
        "package": __package__,
        "path": sys.path,
        "flags": str(sys.flags),
        "warnings": sys.warnoptions,
        "options": str(sys._xoptions),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "folder": str(Path.cwd()),
        "environment": {key: value for key, value in os.environ.items() if key not in hidden},
        "signals": {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGINT", "SIGTERM", "SIGPIPE")},
        "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
        "stdin": sys.stdin.read(),
        "tty": [os.isatty(number) for number in (0, 1, 2)],
        "group": os.getpgid(0) == os.getpid(),
    }
    print(json.dumps(seen, indent=1, default=str))


if __name__ == "__main__":
    main()
