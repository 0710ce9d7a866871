"""Apache Kafka's command line tools in one JVM for all calls. Starting a JVM costs a second of CPU, and a call in it a
tenth of a second.

py4j, which PySpark brings, makes each call in the JVM. So nothing is compiled, and a JRE is enough. A tool may end its
process by `Exit.exit`. In this JVM, `Exit.exit` records the status and throws an error, which ends only the call.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from testkit.kafka_server import SHORT_LIVED, ensure_jars, java_command

__all__ = ["jvm", "run_tool_here", "tool_here"]

_EXIT = "org.apache.kafka.common.utils.Exit"
_ENDED = "the tool called Exit.exit"
_CALL_SECONDS_MAX = 120.0
"""The longest time for a call. Beyond it the test fails."""


@functools.cache
def _launched() -> tuple[int, str]:
    """Start a JVM with Kafka's classes. The JVM ends with this process. Return its port and its token."""
    started: tuple[int, str] = launch_gateway(
        java_path=java_command(),
        classpath=f"{ensure_jars()}/*",
        javaopts=list(SHORT_LIVED),
        die_on_exit=True,
        enable_auth=True,
    )
    return started


def _gateway(read_seconds_max: float | None) -> JavaGateway:
    port, token = _launched()
    return JavaGateway(
        gateway_parameters=GatewayParameters(
            port=port, auth_token=token, auto_convert=True, auto_field=False, read_timeout=read_seconds_max
        )
    )


@functools.cache
def jvm() -> JavaGateway:
    """Return the JVM with Kafka's classes. Raises `testkit.kafka_server.KafkaUnavailable`."""
    return _gateway(None)


@functools.cache
def _place() -> _Place:
    return _Place(_gateway(_CALL_SECONDS_MAX))


class _Place:
    """Replaces the JVM's standard streams and its exit."""

    def __init__(self, gateway: JavaGateway) -> None:
        self.gateway = gateway
        self.java = gateway.jvm.java
        self.status = self.java.util.concurrent.atomic.AtomicReference()
        self.out, self.err = (self.java.io.ByteArrayOutputStream() for _ in range(2))
        # Scala's `println` keeps the first stream that it finds. So each call gets the same stream, emptied.
        self.java.lang.System.setOut(self.java.io.PrintStream(self.out, True, "UTF-8"))
        self.java.lang.System.setErr(self.java.io.PrintStream(self.err, True, "UTF-8"))
        self._take_exit()

    def _class(self, name: str) -> Any:
        return self.java.lang.Class.forName(name)

    def _array(self, kind: Any, items: Sequence[Any]) -> Any:
        array = self.gateway.new_array(kind, len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def _take_exit(self) -> None:
        """Replace Kafka's exit by a function that records the status and throws."""
        handles, method_type = self.java.lang.invoke.MethodHandles, self.java.lang.invoke.MethodType
        proxies, lookup = self.java.lang.invoke.MethodHandleProxies, handles.publicLookup()
        whole, nothing = self.java.lang.Integer.TYPE, self.java.lang.Void.TYPE
        text, anything = self._class("java.lang.String"), self._class("java.lang.Object")
        error = self._class("java.lang.Error")

        def classes(*items: Any) -> Any:
            return self._array(self.java.lang.Class, items)

        note = lookup.findVirtual(
            self.status.getClass(),
            "compareAndSet",
            method_type.methodType(self.java.lang.Boolean.TYPE, classes(anything, anything)),
        )
        # A tool may catch the error and exit again. A process would have ended with the first status.
        note = handles.insertArguments(
            note.bindTo(self.status), 0, self._array(self.java.lang.Object, [None])
        )
        note = note.asType(method_type.methodType(nothing, classes(whole)))
        note = handles.dropArguments(note, 1, classes(text))
        end = handles.throwException(nothing, error).bindTo(self.java.lang.Error(_ENDED))
        end = handles.foldArguments(handles.dropArguments(end, 0, classes(whole, text)), note)
        kafka = self.gateway.jvm.org.apache.kafka.common.utils.Exit
        procedure = proxies.asInterfaceInstance(self._class(f"{_EXIT}$Procedure"), end)
        kafka.setExitProcedure(procedure)
        kafka.setHaltProcedure(procedure)

    def call(self, class_name: str, arguments: Sequence[str], stdin: str) -> subprocess.CompletedProcess[str]:
        """Call `main` with the arguments, and return its output."""
        for each in (self.out, self.err):
            each.reset()
        self.status.set(None)
        self.java.lang.System.setIn(self.java.io.ByteArrayInputStream(stdin.encode()))
        words = self._array(self.java.lang.String, arguments)
        main = self._class(class_name).getMethod(
            "main", self._array(self.java.lang.Class, [words.getClass()])
        )
        with self._ended():
            main.invoke(None, self._array(self.java.lang.Object, [words]))
        self.java.lang.System.out.flush()
        return subprocess.CompletedProcess(
            [class_name, *arguments],
            self.status.get() or 0,
            *(bytes(each.toByteArray()).decode() for each in (self.out, self.err)),
        )

    @contextmanager
    def _ended(self) -> Iterator[None]:
        """Handle the error that stands for the tool's exit. Any other error means status 1, as in a process."""
        try:
            yield
        except Py4JJavaError as raised:
            error = raised.java_exception
            while error.getCause() is not None:
                error = error.getCause()
            if error.getMessage() != _ENDED:
                error.printStackTrace()
                self.status.compareAndSet(None, 1)


def tool_here(class_name: str, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Call a tool's `main` in the JVM that all calls share. Return its output and its exit status.

    A tool that runs until a signal comes needs a process of its own.
    """
    return _place().call(class_name, list(map(str, arguments)), stdin)


def run_tool_here(class_name: str, *arguments: str | Path) -> str:
    """Call a tool in the JVM that all calls share. Return its standard output.

    Raises `subprocess.CalledProcessError` when the tool fails, like `testkit.kafka_server.run_tool`.
    """
    done = tool_here(class_name, *arguments)
    done.check_returncode()
    return done.stdout
