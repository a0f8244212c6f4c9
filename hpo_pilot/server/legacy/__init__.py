"""The calls of `/server/panda`, which released pilots and older clients make; one implementation with the new API."""
