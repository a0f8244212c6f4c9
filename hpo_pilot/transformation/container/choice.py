"""Which container runtime runs an image here."""

from typing import Dict

from hpo_pilot.transformation.container.apptainer import Apptainer
from hpo_pilot.transformation.container.architecture import check_architecture
from hpo_pilot.transformation.container.charliecloud import Charliecloud
from hpo_pilot.transformation.container.no_container import NoContainer
from hpo_pilot.transformation.container.podman import Podman, PodmanHpc
from hpo_pilot.transformation.container.runtime import ContainerRuntime
from hpo_pilot.transformation.container.shifter import Shifter
from hpo_pilot.transformation.failure import ExitCode, TransformationFailure

#: By their names, in the order in which `auto` tries them: first those that need nothing set up.
RUNTIMES: Dict[str, ContainerRuntime] = {
    runtime.name: runtime for runtime in (NoContainer(), Apptainer(), Charliecloud(), Shifter(), PodmanHpc(), Podman())
}


def choose_runtime(name: str, image: str) -> ContainerRuntime:
    """The runtime for an image; without an image none is needed.

    Args:
        name: one of RUNTIMES, or `auto`: the first that can.
        image: file, folder or URL; empty: none.

    Raises:
        TransformationFailure: the image cannot be run here.
    """
    if not image:
        return RUNTIMES["none"]
    candidates = list(RUNTIMES.values()) if name == "auto" else [RUNTIMES[name]] if name in RUNTIMES else []
    for runtime in candidates:
        if runtime.can_run(image):
            check_architecture(image)
            return runtime
    tried = ", ".join(p for r in RUNTIMES.values() for p in r.programs) if name == "auto" else name
    raise TransformationFailure(
        ExitCode.NO_CONTAINER_RUNTIME,
        "the job wants the image %r, and nothing here can run it (tried: %s)" % (image, tried),
    )
