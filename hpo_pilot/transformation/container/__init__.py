"""Container runtimes: the command line that runs a command inside an image."""

from hpo_pilot.transformation.container.choice import RUNTIMES, choose_runtime
from hpo_pilot.transformation.container.runtime import ContainerRuntime, Inside

__all__ = ["RUNTIMES", "ContainerRuntime", "Inside", "choose_runtime"]
