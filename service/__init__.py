"""The service: models over HTTP."""
