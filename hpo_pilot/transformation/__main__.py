"""`python -m hpo_pilot.transformation`, and what the executable file runs."""

import sys

from hpo_pilot.transformation.transformation import main

if __name__ == "__main__":
    sys.exit(main())
