"""Where and how this run takes place."""

from wit_world.imports.context import TraceContext, attempt, endpoint, handler, remaining, trace

__all__ = ["TraceContext", "attempt", "endpoint", "handler", "remaining", "trace"]
