"""Traces in other formats: Chrome JSON for Perfetto, tables as Parquet and CSV."""
