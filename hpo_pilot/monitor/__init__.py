"""The monitor: web pages over searches, jobs and pilots."""
