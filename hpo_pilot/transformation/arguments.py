"""The arguments of PanDA's analysis transformation runGen, as panda-client 2.2.0 writes them."""

import ast
import re
import shlex
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import unquote

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure

_VALUE_NAMES = (
    "-a -o -p -j -r -i -l -f -t -u --sourceURL --containerImage --inMap --writeInputToTxt --inputGUIDs --oldPrefix "
    "--newPrefix --lfcHost --envvarFile --liveLog --dbrFile --dbrRun --accessmode --rootVer --cmtConfig --jem-config "
    "--overwriteQueuedata --datadir --workdir --useCentralRegistry --fileToSave --fileToLoad --skipInputByRetry"
)
_FLAG_NAMES = (
    "--preprocess --postprocess --debug --execWithRealFileNames --noTarballDownload --usePFCTurl --pilotpars --cvmfs "
    "--noX509 --noExpandDBR --notExpandDBR --directIn --useAthenaPackages --useCMake --useRootCore --givenPFN "
    "--mergeSingleFile --useFileStager --enable-jem"
)
#: Options that are followed by a value. What is passed over on purpose is here too, or its value would be an argument.
_WITH_VALUE, _FLAGS = frozenset(_VALUE_NAMES.split()), frozenset(_FLAG_NAMES.split())
#: Options whose effect a payload would miss: setting up a collaboration's software, reading inputs over the network.
_UNSUPPORTED = ("--useAthenaPackages", "--useCMake", "--useRootCore", "--rootVer", "--dbrFile", "--directIn")

_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"']+)+""")
_PART = re.compile(r""""([^"]*)"|'([^']*)'|([^\s"']+)""")


class Arguments(NamedTuple):
    """What a job is to do.

    Attributes:
        command: a shell command, as the job's owner wrote it.
        archive: name of the sandbox in the server's cache; empty: none.
        library: a sandbox that the pilot has put beside the job; empty: none.
        source_url: of the server that has the sandbox.
        run_dir: where in the sandbox the command runs.
        inputs: files that the pilot has put beside the job.
        input_map: more of them, by the name that stands for them in the command.
        input_lists: stream -> file into which its inputs' names are written.
        outputs: file, or pattern of files, where the command runs -> name in the storage.
        image: of a container; empty: none.
        step: `preprocess`, `postprocess`, or empty: all of it.
        real_names: whether the command knows the outputs by their names in the storage.
        warnings: what was passed over.
    """

    command: str
    archive: str = ""
    library: str = ""
    source_url: str = ""
    run_dir: str = "."
    inputs: Tuple[str, ...] = ()
    input_map: Mapping[str, Tuple[str, ...]] = {}
    input_lists: Mapping[str, str] = {}
    outputs: Mapping[str, str] = {}
    image: str = ""
    step: str = ""
    real_names: bool = False
    warnings: Tuple[str, ...] = ()


def parse(words: Sequence[str]) -> Arguments:
    """Reads the arguments; unknown ones become warnings, as they come and go with panda-client's versions.

    Raises:
        TransformationFailure: they make no sense.
    """
    found, flags, warnings = _options(words)
    try:
        archive, run_dir = found.get("-a", ""), found.get("-r", ".") or "."
        if "/" in archive or archive in (".", ".."):
            raise ValueError("-a %r is no file name" % archive)
        if run_dir.startswith("/") or ".." in run_dir.split("/"):
            raise ValueError("-r %r leads out of the job's folder" % run_dir)
        outputs = {str(file): str(name) for file, name in _literal(found.get("-o"), dict).items()}
        for name in outputs.values():
            if "/" in name or name in ("", ".", ".."):
                raise ValueError("-o: %r is no file name" % name)
        command = (unquote(found.get("-j", "")) + " " + unquote(found.get("-p", ""))).strip()
        step = "preprocess" if "--preprocess" in flags else "postprocess" if "--postprocess" in flags else ""
        if not command and step != "postprocess":
            raise ValueError("no command: neither -p nor -j")
        pairs = [part.split(":") for part in found.get("--writeInputToTxt", "").split(",") if part]
        return Arguments(
            command=command,
            archive=archive,
            library=found.get("-l", ""),
            source_url=found.get("--sourceURL", "").rstrip("/"),
            run_dir=run_dir,
            inputs=tuple(_files(found.get("-i", ""))),
            input_map={str(k): tuple(map(str, v)) for k, v in _literal(found.get("--inMap"), dict).items()},
            input_lists=dict(pairs),
            outputs=outputs,
            image=found.get("--containerImage", ""),
            step=step,
            real_names="--execWithRealFileNames" in flags,
            warnings=tuple(warnings),
        )
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise TransformationFailure(ExitCode.BAD_ARGUMENTS, "job parameters make no sense: %s" % error) from error


def parse_text(text: str) -> Arguments:
    """As `parse`, from one line.

    Raises:
        TransformationFailure: it makes no sense.
    """
    try:
        return parse(split_words(text))
    except ValueError as error:
        raise TransformationFailure(
            ExitCode.BAD_ARGUMENTS, "job parameters make no sense: %s in %.200r" % (error, text)
        ) from error


def split_words(text: str) -> List[str]:
    """`shlex.split`, which goes from character to character, in a hundredth of its time: points make long arguments."""
    words, end = [], 0
    for match in _WORD.finditer(text):
        words.append("".join(a or b or c for a, b, c in _PART.findall(match.group())))
        if text[end : match.start()].strip(" \t\r\n"):
            return shlex.split(text)
        end = match.end()
    # Escapes and open quotes: shlex knows, or says what is wrong.
    return shlex.split(text) if "\\" in text or text[end:].strip(" \t\r\n") else words


def _options(words: Sequence[str]) -> Tuple[Dict[str, str], List[str], List[str]]:
    found: Dict[str, str] = {}
    flags: List[str] = []
    warnings: List[str] = []
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        name, equals, value = word.partition("=")
        if name.startswith("--") and equals:
            found[name] = value
        elif name in _WITH_VALUE:
            found[name] = rest.pop() if rest else ""
        elif name[:2] in _WITH_VALUE and not name.startswith("--"):
            found[name[:2]] = word[2:]
        else:
            flags.append(word)
            if word.startswith("-") and word not in _FLAGS and rest and not rest[-1].startswith("-"):
                warnings.append("%s %s is not known and passed over" % (word, rest.pop()))
            elif word not in _FLAGS:
                warnings.append("%s is not known and passed over" % word)
    warnings += ["%s is not supported here" % name for name in _UNSUPPORTED if name in found or name in flags]
    return found, flags, warnings


def _literal(text: Optional[str], kind: type) -> Any:
    value = ast.literal_eval(text) if text else kind()
    if not isinstance(value, kind):
        raise ValueError("%.60r is no %s" % (text, kind.__name__))
    return value


def _files(text: str) -> List[str]:
    """Panda-client writes a Python list; JEDI may put plain names, separated by commas."""
    if text.lstrip().startswith(("[", "(")):
        return [str(name) for name in ast.literal_eval(text)]
    return [name for name in text.split(",") if name]
