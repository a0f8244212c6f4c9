"""What decides where a job may go and whose turn it is, as values in memory: needs, hardware, the board."""
