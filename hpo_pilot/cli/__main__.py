"""``python -m hpo_pilot.cli`` is the command `hpo-pilot`."""

from hpo_pilot.cli.main import main

main()
