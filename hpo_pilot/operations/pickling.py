"""Python functions that are sent to jobs: their pickles, and what identifies them.

cloudpickle sends by value what a job cannot import: functions, classes and modules of the script or notebook and of
the modules beside it. The bytes of such a pickle differ between two runs of an unchanged script: line numbers, the
order of sets, identities of classes. `identity_of` depends only on what the function does.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import io
import pickle
import random
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle

from hpo_pilot.errors import InputError

_Cached = functools._lru_cache_wrapper
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))


def pickled(function: Callable[..., Any], files: Path | None) -> tuple[bytes, str]:
    """Returns the pickle of a function, and its identity: the same text as long as the function does the same.

    Args:
        function: the function.
        files: the folder that goes to the jobs with it.

    Raises:
        InputError: the function refers to something that cannot be sent.
    """
    own = _own_modules(function, files)
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    names = frozenset(module.__name__ for module in own)
    stream = io.BytesIO()
    try:
        _Pickler(stream, names).dump(function)
    except Exception as error:  # any type: it depends on the objects that the function uses
        causes = [f"'{name}' ({type(value).__name__})" for name, value in _not_pickled(function, names, {})]
        remedy = f"; create {' and '.join(causes)} inside the function instead" if causes else ""
        raise InputError(f"the function cannot be sent to a job: {error}{remedy}") from error
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)
    content = stream.getvalue()
    try:
        return content, identity_of(function, names)
    except Exception:  # noqa: BLE001 - of the objects' own methods; the next run of the script then counts as a change
        return content, hashlib.sha256(content).hexdigest()


def _not_pickled(function: Any, own: frozenset[str], seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Yields what a function, or one of the user's that it calls, uses and no pickle can have: names and values."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen[id(function)] = function
    values = _global_values(function)
    values.update(zip(function.__code__.co_freevars, map(_content, function.__closure__ or ()), strict=True))
    for name, value in sorted(values.items()):
        if isinstance(value, FunctionType):
            if _is_sent_by_value(value, own):
                yield from _not_pickled(value, own, seen)
            continue
        try:
            _Pickler(io.BytesIO(), own).dump(value)
        except Exception:  # noqa: BLE001 - of the objects' own methods
            yield name, value


def _own_modules(function: Callable[..., Any], files: Path | None) -> list[ModuleType]:
    """Returns the modules to send by value: the function's unless a library's, and all that a job cannot import."""
    inner = getattr(function, "func", None)  # of functools.partial
    homes = {getattr(each, "__module__", None) for each in (function, inner)}
    loaded = {name: module for name, module in list(sys.modules.items()) if _is_of_user(name, module)}
    own = {name for name in loaded if name in homes}
    tops = sorted(name for name in loaded if "." not in name)
    return [loaded[name] for name in sorted(own | _not_found(tops, files))]


def _is_of_user(name: str, module: Any) -> bool:
    """Returns True for modules from files that are neither the standard library's, nor installed packages, nor ours."""
    top = name.partition(".")[0]
    if top in ("__main__", "__mp_main__", "hpo_pilot") or top in sys.stdlib_module_names:
        return False
    if getattr(module, "__name__", None) != name:  # an alias, or no module at all
        return False
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    path = next((place for place in places if isinstance(place, str)), None)
    return path is not None and not (
        path.startswith(_LIBRARIES) or {"site-packages", "dist-packages"} & set(Path(path).parts)
    )


def _not_found(names: Sequence[str], files: Path | None) -> set[str]:
    """Returns the modules that a Python started in `files` does not find: it has no script beside them."""
    if not names:
        return set()
    program = "import sys, importlib.util as u; print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))"
    words = [sys.executable, *([] if files else ["-P"]), "-c", program, *names]
    found = subprocess.run(words, cwd=files, capture_output=True, text=True, check=False)
    return set(found.stdout.split())


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Adds the user's functions with a cache, which cloudpickle looks for in the module of the script."""

    def __init__(self, stream: io.BytesIO, own: frozenset[str]) -> None:
        super().__init__(stream)
        self._own = own

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _Cached) and _is_sent_by_value(value, self._own):
            options = value.cache_parameters()
            made = (value.__wrapped__, options["maxsize"], options["typed"], functools._CacheInfo)
            return _Cached, made, vars(value)
        return super().reducer_override(value)


#: Py_TPFLAGS_HEAPTYPE
_MADE_AT_RUN_TIME = 1 << 9


def _is_sent_by_value(value: Any, own: frozenset[str]) -> bool:
    """Returns True if a function or class cannot be imported from its module by a job."""
    if isinstance(value, type) and not value.__flags__ & _MADE_AT_RUN_TIME:  # some have no name in any module
        return False
    name = getattr(value, "__module__", None)
    if name in (None, "__main__") or name not in sys.modules or _is_one_of(name, own):
        return True
    found: Any = sys.modules[name]
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not value


def _is_one_of(name: str, own: frozenset[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in own)


def identity_of(function: Callable[..., Any], own: frozenset[str] = frozenset()) -> str:
    """Returns a digest of a function: its code, constants, defaults, closure, and the values that it refers to.

    Line numbers, names of files, docstrings and annotations do not count, nor does the state of random generators. What
    a job imports counts by its name. Bytecode is that of one version of Python, as is a pickled function.

    Args:
        function: the function.
        own: modules whose functions and classes are sent by value.
    """
    digest = _Digest(own, {})
    digest.add(sys.implementation.cache_tag)
    digest.add(function)
    return digest.text


#: Attributes of classes that do not change what they do, or whose order is that of a set.
_IGNORED_ATTRIBUTES = frozenset(
    {
        *("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl", "__firstlineno__"),
        *("__static_attributes__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
    }
)
_SCALARS = frozenset({bool, int, float, complex, type(None), type(...), type(NotImplemented)})
_PLAIN = _SCALARS | {str, bytes}


class _Digest:
    """Digest of an object and of all to which it refers."""

    def __init__(self, own: frozenset[str], seen: dict[int, tuple[int, Any]]) -> None:
        self._own, self._seen = own, seen  # the objects are kept: another one could get the same id
        self._hash = hashlib.sha256()

    @property
    def text(self) -> str:
        return self._hash.hexdigest()

    def _update(self, *texts: str | bytes) -> None:
        for text in texts:
            content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
            self._hash.update(b"%d:" % len(content) + content)

    def add(self, value: Any) -> None:
        """Adds an object."""
        kind = type(value)
        self._update(f"{kind.__module__}.{kind.__qualname__}")
        if kind in _SCALARS:
            self._update(pickle.dumps(value, 4))
        elif kind in (str, bytes):
            self._update(value)
        elif kind is tuple:
            self._add_all(value)
        elif kind is CodeType:
            self._add_code(value)
        elif id(value) in self._seen:
            self._update(str(self._seen[id(value)][0]))
        else:
            self._seen[id(value)] = len(self._seen), value
            self._add_new(value)

    def _add_all(self, values: Sequence[Any]) -> None:
        self._update(str(len(values)))
        if set(map(type, values)) <= _SCALARS:  # perhaps a million numbers
            self._update(pickle.dumps(list(values), 4))
            return
        for each in values:
            self.add(each)

    def _add_new(self, value: Any) -> None:
        if isinstance(value, ModuleType):
            self._update(value.__name__)
            if _is_one_of(value.__name__, self._own):
                self._add_named(vars(value), (name for name in vars(value) if not name.startswith("__")))
        elif isinstance(value, FunctionType | type | _Cached) and not _is_sent_by_value(value, self._own):
            self._update(value.__module__, value.__qualname__)
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._update(value.__name__)
            self.add((type(value), *value.__bases__))
            self._add_named(vars(value), vars(value).keys() - _IGNORED_ATTRIBUTES)
        elif isinstance(value, _Cached):
            self.add((value.__wrapped__, value.cache_parameters()))
        elif isinstance(value, MethodType):
            self.add((value.__func__, value.__self__))
        elif type(value) in (set, frozenset):
            self._update(*sorted(self._digest_of(each) for each in value))
        elif type(value) is list:
            self._add_all(value)
        elif type(value) is dict:
            self._add_all([part for item in value.items() for part in item])
        elif not _is_generator(value):
            self._add_reduced(value)

    def _digest_of(self, value: Any) -> str:
        """Returns the digest of one element of a set, which has no order."""
        digest = _Digest(self._own, {} if type(value) in _PLAIN else dict(self._seen))
        digest.add(value)
        return digest.text

    def _add_named(self, values: Any, names: Iterable[str]) -> None:
        for name in sorted(names):
            self._update(name)
            self.add(values[name])

    def _add_function(self, function: FunctionType) -> None:
        cells = [_content(cell) for cell in function.__closure__ or ()]
        self._add_all([function.__defaults__, function.__kwdefaults__, vars(function), *cells])
        self._add_code(function.__code__)
        values = _global_values(function)
        self._add_named(values, values)

    def _add_code(self, code: CodeType) -> None:
        counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        self._add_all([*counts, code.co_varnames, code.co_freevars, code.co_exceptiontable])
        instructions = list(dis.get_instructions(code))
        for instruction, following in zip(instructions, [*instructions[1:], None], strict=True):
            self._update(instruction.opname)
            # The body of a class sets it to its line, since Python 3.13.
            if following is None or following.argval != "__firstlineno__":
                self.add(instruction.argval)

    def _add_reduced(self, value: Any) -> None:
        reducer = cloudpickle.Pickler.dispatch_table.get(type(value))
        reduced = reducer(value) if reducer is not None else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            self._update(value.__module__ or "", reduced)
            return
        made, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        self._add_all([made, arguments, state, list(items or ()), list(pairs or ())])


#: Their classes in numpy and torch.
_GENERATORS = ("Generator", "RandomState", "PCG64", "MT19937", "Philox", "SFC64")


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return ...


def _global_values(function: FunctionType) -> dict[str, Any]:
    """Returns the module variables that a function uses, by their names."""
    values = function.__globals__
    return {name: values[name] for name in _global_names(function.__code__) if name in values}


def _global_names(code: CodeType) -> set[str]:
    """Returns the names of module variables in a function's code and in that of functions in it."""
    loads = (one for one in dis.get_instructions(code) if one.opname == "LOAD_NAME" or "GLOBAL" in one.opname)
    names = {one.argval for one in loads}
    return names.union(*(_global_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def _is_generator(value: Any) -> bool:
    """Returns True for random generators, whose state may come from the system and is replaced in each trial."""
    kind = type(value)
    return isinstance(value, random.Random) or (
        kind.__module__.startswith(("numpy.random", "torch._C")) and kind.__name__.startswith(_GENERATORS)
    )
