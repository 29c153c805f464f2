"""Experiments: the same workload under one changed setting at a time, each run in a process of its own."""
