"""The folder that ``cbtrace record`` puts on ``PYTHONPATH``, so that each Python of a recorded program starts in it."""
