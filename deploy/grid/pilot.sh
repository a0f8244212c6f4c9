#!/bin/sh
# Starts our pilot on a worker node without pip. The first word is a folder of `make pilot` or the unpacked root of an image
# of containers/pilot, both usually on CVMFS; the other words are the pilot's options.
#
#   pilot.sh /cvmfs/hpo.example.org/pilot --server https://panda.example.org:25443 --queue SITE --token-file site.token
#   pilot.sh /cvmfs/unpacked.cern.ch/registry.example.org/me/hpo-pilot-pilot:0.1.0 --server …
set -eu
stop() { echo "pilot.sh: $1" >&2; exit 2; }
[ $# -gt 0 ] || stop "name the pilot's folder or image first, then the options of the pilot"
from=$1
shift
case $from in /*) ;; *) from=$PWD/$from ;; esac

if [ -d "$from/hpo_pilot" ]; then
    # No PYTHONPATH: payloads would get it too, and with it the pilot's libraries.
    start='import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module("hpo_pilot.pilot", None, "__main__", True)'
    for python in "${HPO_PILOT_PYTHON:-}" "$from/python/bin/python3" python3 python3.14 python3.13 python3.12 python3.11; do
        if "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            exec "$python" -I -c "$start" "$from" "$@"
        fi
    done
    stop "there is no Python 3.11 or later in PATH: name one in HPO_PILOT_PYTHON, or use an image"
fi

[ -d "$from/usr" ] || stop "$from is neither a folder of \`make pilot\` nor the root of an image; is CVMFS mounted?"
apptainer=$(command -v apptainer || command -v singularity) || stop "there is no apptainer in PATH, which runs the image"
gpus=
if [ -e /dev/nvidiactl ]; then gpus=--nv; elif [ -e /dev/kfd ]; then gpus=--rocm; fi
# The work folder, tokens and proxies are where the options name them: in this folder, TMPDIR or the home.
binds=$PWD
for folder in /cvmfs "${TMPDIR:-/tmp}" "${HOME:-}" "${X509_CERT_DIR:-}"; do
    if [ -n "$folder" ] && [ -d "$folder" ]; then binds=$binds,$folder; fi
done
# shellcheck disable=SC2086  # no flag, or one
exec "$apptainer" exec $gpus --bind "$binds" --pwd "$PWD" "$from" python3 -I -m hpo_pilot.pilot "$@"
