"""Reads searches of hpogrid, phpo and iDDS, and steers theirs (`steer`). Begin with `importing.py`."""
