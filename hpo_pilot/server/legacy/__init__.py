"""The calls of `/server/panda`, which released Pilot 3s make; one implementation with the new API."""
