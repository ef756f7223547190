"""The version of Daybook, from which the package, greetings and metrics take it."""

__version__ = "0.1.0"
