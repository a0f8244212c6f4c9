"""The pilot: it pulls jobs from a PanDA server, runs them, and reports."""
