"""Templates, styles, scripts and texts of the pages: data for :mod:`cbtrace.site`, with no logic of their own."""
