"""One file a page: chooses analysis and charts and hands plain dataclasses to a template."""
