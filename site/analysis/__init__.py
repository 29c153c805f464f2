"""Pure analysis of one trace: columns in, dataclasses out. No HTML and no charts."""
