"""What lies beyond this machine: a Ray cluster to run things on, and storage to keep files in.

Ray and fsspec are imported when they are used, and never by anything that works on one machine.
"""
