"""What an engine would have done with other settings: its own scheduler replayed without weights, GPU or KV memory."""
