"""The trace format: schema, writer, reader, recovery. Imports nothing else of cbtrace."""
