"""HTTP: the table of calls, bodies, envelopes, files, and what is served without a call."""
