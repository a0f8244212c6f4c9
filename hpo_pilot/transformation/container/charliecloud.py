"""Charliecloud's ch-run."""

import os
import pwd
import subprocess
from pathlib import Path
from typing import List, Mapping, Sequence

from hpo_pilot.transformation.container.runtime import (
    AS_IT_IS,
    IMAGE_PATH,
    TMP,
    ContainerRuntime,
    Inside,
    library_path,
    mounts,
    own_tmp,
    without_environment,
)
from hpo_pilot.transformation.failure import ExitCode, TransformationFailure

#: What the image's recipe set (ENV), as ch-image keeps it; ch-run's own option for it fails where there is none.
_WITH_ITS_ENVIRONMENT = """\
if [ -f /ch/environment ]; then while IFS= read -r said; do
    value=${said#*=}; case $value in "'"*"'") value=${value#?}; value=${value%?} ;; esac
    [ -z "$said" ] || export "${said%%=*}=$value"
done < /ch/environment; fi
exec "$@"
"""


class Charliecloud(ContainerRuntime):
    """Charliecloud on an unpacked root or a .sqfs file.

    The environment passes by itself but for PATH, and so do the devices of GPUs; their libraries must be in the image
    (`ch-fromhost --nvidia` puts them there). It binds nothing read-only: what may not be written must say so itself.
    """

    name = "charliecloud"
    programs = ("ch-run",)

    def can_run(self, image: str) -> bool:
        """Folders and squashfs files; not the machine's own root, which cannot be mounted over itself."""
        folder = Path(image)
        is_image = image.endswith(".sqfs") or (folder.is_dir() and folder.resolve() != Path("/"))
        return super().can_run(image) and is_image

    def makes_mount_points(self, image: str, binds: Sequence[Path]) -> bool:
        """See ContainerRuntime."""
        lacking = _lacking(image, [str(path) for path in binds]) if Path(image).is_dir() else []
        return bool(lacking) and not _has_write_fake(self.program() or "ch-run")

    def wrap(
        self,
        argv: Sequence[str],
        image: str,
        binds: Sequence[Path],
        env: Mapping[str, str],
        workdir: Path,
        inside: Inside = AS_IT_IS,
    ) -> List[str]:
        """See ContainerRuntime. An old ch-run gets empty folders in the image for what it is to bind there."""
        program = self.program() or "ch-run"
        paths = [path for path, _ in mounts(binds, inside)]
        words = without_environment(env)
        # It refuses to start without it.
        more = ["USER=" + _user()] if "USER" not in env else []
        if not inside.shares_tmp:
            more.append("TMPDIR=" + own_tmp(workdir, paths))  # it binds that as /tmp, and unsets the variable
        words = [*(words or ["env"] if more else words), *more, program]
        if _has_write_fake(program):
            words.append("--write-fake")
        else:
            _make_mount_points(image, paths)
        for path in paths:
            words += ["--bind", "%s:%s" % (path, path)]
        words += ["--env-no-expand", "--set-env=PATH=" + IMAGE_PATH]
        begin = ["/bin/sh", "-c", _WITH_ITS_ENVIRONMENT, "sh"]
        libraries = library_path(env, inside)
        if libraries:  # before those that the image names
            begin += ["env", "LD_LIBRARY_PATH=" + libraries]
        return [*words, "--cd", str(workdir), image, "--", *begin, *argv]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user that the machine has no name for
        return str(os.getuid())


def _has_write_fake(program: str) -> bool:
    """Whether it can make mount points in memory, over the image; 0.31, which Debian 12 has, cannot."""
    try:
        said = subprocess.run(
            [program, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TransformationFailure(ExitCode.NO_CONTAINER_RUNTIME, "%s cannot be run: %s" % (program, error)) from error
    return b"--write-fake" in said.stdout


def _lacking(image: str, paths: Sequence[str]) -> List[str]:
    """Those that are not in the image; those of /tmp are in what ch-run binds there."""
    return [path for path in paths if Path(TMP) not in Path(path).parents and not Path(image + path).exists()]


def _make_mount_points(image: str, paths: Sequence[str]) -> None:
    """Makes the folders in an unpacked image that it lacks."""
    for path in _lacking(image, paths):
        try:
            Path(image + path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TransformationFailure(
                ExitCode.NO_CONTAINER_RUNTIME,
                "this ch-run needs the folder %s in the image, which cannot be made (%s): make it when the image is "
                "built, or use a ch-run that has --write-fake" % (path, error),
            ) from error
