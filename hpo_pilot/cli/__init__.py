"""The command line: one thin module per command group. What the commands do is in `hpo_pilot.steering` and below."""
